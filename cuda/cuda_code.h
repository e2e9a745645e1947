// CUDA C++ texts in this process: compiled once for each kind of device, loaded once for each device.
#pragma once

#include "driver.h"
#include "nvrtc.h"
#include "store.h"

namespace flexsn {

class CudaCode;

/// A function of loaded code.
struct CudaFunction {
  void* handle = nullptr;
  int registers = 0;     ///< of a thread
  int local_bytes = 0;   ///< of a thread
  int shared_bytes = 0;  ///< of a block
};

/// The driver and the compiler, and code that no neuron decides.
class Cuda {
 public:
  /// Libraries by name, "" for those of the environment.
  explicit Cuda(const std::string& driver_library = "", const std::string& nvrtc_library = "",
                const Store& store = Store::standard());
  ~Cuda();
  /// That of the environment, for the whole process.
  static const Cuda& standard();

  const Driver driver;
  const Nvrtc nvrtc;
  /// The kernels of emit_cuda_reduce, in the order of cuda_sums.h.
  const CudaCode& sums() const { return *sums_; }
  /// The kernels of cuda_spread.h.
  const CudaCode& spread() const { return *spread_; }

 private:
  const std::unique_ptr<const CudaCode> sums_, spread_;
};

/// One text. It may be used from several threads at once; what fails is tried again by the next call.
class CudaCode {
 public:
  /// Object code is looked for and left in `store`. `cuda` must outlive this.
  CudaCode(const Cuda& cuda, Store store, std::string text, std::vector<std::string> entries);
  ~CudaCode();

  /// The entries, in order, on a device; the first call for it compiles and loads them. Throws where that
  /// fails, with the compiler's log and the path of the text.
  const std::vector<CudaFunction>& on(const Gpu& gpu) const;

  /// Has one for this device been made?
  bool is_on(const Gpu& gpu) const;

  /// Queues entry `index`; its parameters are pointers to their values. `neuron`: for errors.
  void launch(const Gpu& gpu, std::size_t index, std::int64_t blocks, int threads, void* stream,
              void** parameters, std::string_view neuron = "") const;

 private:
  struct Loaded;
  struct Object;
  void load(const Gpu& gpu, Loaded& loaded) const;
  void link(const Gpu& gpu, const std::string& object, Loaded& loaded) const;

  const Cuda& cuda_;
  Store store_;
  std::string text_;
  std::vector<std::string> entries_;
  mutable std::mutex mutex_;
  mutable std::map<int, std::unique_ptr<Loaded>> loaded_;           ///< by device
  mutable std::map<std::string, std::unique_ptr<Object>> objects_;  ///< by architecture
};

}  // namespace flexsn
