// What a target makes of a plan. Whoever holds one need not know the target.
#pragma once

#include <functional>

#include "broadcast.h"
#include "emit_llvm.h"
#include "execute.h"
#include "pool.h"

namespace flexsn {

/// The gradient of a parameter that a run of backward is to give, in the parameter's own shape and type.
struct ParamGradient {
  int buffer = no_buffer;       ///< of the plan: the grad_param
  Mem mem = Mem::f32;           ///< the parameter's
  Shape shape = {};             ///< the parameter's, without T
  void* to = nullptr;           ///< where the run's buffers lie
  std::int64_t row_stride = 0;  ///< of `to`, in elements, where the parameter changes with time
};

/// All of them that one run gives.
struct ParamGradients {
  Shape step = {};  ///< the step's shape
  std::vector<ParamGradient> list = {};
  void* scratch = nullptr;  ///< scratch_bytes() of it, where the run's buffers lie, at a multiple of 256
};

/// Parameter gradients need memory: as much as this run takes, or as any run of the neuron may take,
/// whichever gradients arrive.
enum class Scratch : std::uint8_t { this_plan, any_plan };

class Executable {
 public:
  virtual ~Executable() = default;
  virtual const Plan& plan() const = 0;
  /// Same bits as execute(plan(), run). On a GPU it is queued on the run's stream, and nothing is waited for.
  virtual void run(const PlanRun& run, const Threads& threads) const = 0;
  /// Makes the code that `run` needs, which need not have its data yet: `to_come` says that a buffer will be
  /// there.
  virtual void prepare(const PlanRun&) const {}
  /// Would `run` start without waiting for a compiler that takes long?
  virtual bool is_ready(const PlanRun&) const { return true; }
  /// The same as run(), and sums of parameter gradients with the bits of store_param_gradient; what `run` has
  /// for their buffers is not used.
  virtual void run_backward(PlanRun run, const ParamGradients& gradients, const Threads& threads) const;
  /// Bytes for ParamGradients::scratch, whatever its `to`.
  virtual std::int64_t scratch_bytes(std::int64_t steps, const ParamGradients& gradients,
                                     Scratch whose = Scratch::this_plan) const;
};

/// A buffer of a run that is prepared, or one without elements, whose own pointer may be null.
Bound to_come();

/// Prepares a run and backward, which will follow it, side by side; `has` says which of its buffers backward
/// will likely have. Where backward fails, its own run will say so.
void prepare_both(const Executable& forward, const PlanRun& run, const Executable& backward,
                  const std::function<bool(const Buffer&)>& has);

/// Why a plan is more than a compiler takes in bearable time; "" where it is not.
std::string too_many_ops(const Plan& plan, bool gpu);

/// Throws a UserError that names the way out where this build or this machine has no CPU kernels.
std::shared_ptr<const Executable> cpu_executable(Plan plan);

/// Why there are no CPU kernels here; "" where there are. What follows is for where there are.
std::string cpu_absent();
/// "LLVM 19.1.7"
std::string cpu_compiler();
/// The instruction set of this machine.
Isa cpu_isa();
/// A module of emit_llvm as an assembly listing.
std::string cpu_assembly(const std::string& text, Isa isa);

/// For all devices of this machine. Throws a UserError where there are no CUDA kernels here.
/// `as_many`: runs of few elements use the code that many would, where memory lies for it.
std::shared_ptr<const Executable> cuda_executable(Plan plan, bool as_many = false);

/// Why there are no CUDA kernels here: no driver, no device, no NVRTC, or one that is too old; "" where there
/// are. What follows is for where there are.
std::string cuda_absent();
/// "1 device: NVIDIA H200 (sm_90); driver 13.0, NVRTC 13.0"
std::string cuda_description();
int cuda_device_count();
/// On which device this memory is; nothing where it is the host's. `asking` is a device that is in use.
std::optional<int> cuda_device_of(const void* data, int asking);
/// Copies on a device, queued on a stream of it.
void cuda_copy(void* to, const void* from, std::int64_t bytes, int device, void* stream);
/// Writes a few bytes of the host's memory on a device, queued on a stream of it; they are read at once.
void cuda_write(void* to, const void* from, std::int64_t bytes, int device, void* stream);
/// Memory of a device that is there from here on in the order of a stream, until it is given back in it.
void* cuda_allocate(std::int64_t bytes, int device, void* stream);
void cuda_free(void* data, int device, void* stream);
/// spread_out() on a device.
void cuda_spread_out(const Shape& step, const Shape& param, std::size_t bytes, std::int64_t rows,
                     const void* from, void* to, int device, void* stream);

/// Runs on copies of arrays of the host, which get what was written: for checks.
void cuda_run_on_copies(const Executable& executable, PlanRun run);
/// A module of emit_cuda as PTX: for the first device, or where there is none for those of capability 9.0.
std::string cuda_ptx(const std::string& text);

/// What a driver says of a device.
struct CudaDevice {
  int multiprocessors = 0;
  double instructions_a_byte = 0;  ///< that it starts in the time its memory moves a byte; 0: unknown
};
CudaDevice cuda_device(int device);

/// What the compiler made of one entry.
struct CudaFigures {
  std::string entry;
  int threads = 0;       ///< of a block
  int registers = 0;     ///< of a thread
  int local_bytes = 0;   ///< of a thread: what did not fit into registers
  int shared_bytes = 0;  ///< of a block
  std::string again;     ///< it spilled at first and was compiled once more: with what; else ""
};
/// How a GPU finishes the gradient of a parameter: what backward leaves of it, and who adds that up.
struct CudaSums {
  std::int64_t left = 0;  ///< bytes that backward writes
  int launches = 0;
  std::int64_t read = 0, written = 0;  ///< bytes, of all launches
};
/// Of each of the gradients, in a run of some elements over some steps; `wide` says which entry runs.
std::vector<CudaSums> cuda_sums(const Plan& backward, const ParamGradients& gradients, std::int64_t steps,
                                bool wide);
/// The entries of a plan, all of whose buffers are there, compiled for a device.
std::vector<CudaFigures> cuda_figures(const Plan& plan, int device);

}  // namespace flexsn
