// How a CUDA kernel is cut: elements a thread, steps whose loads are issued together. A rule, not a trial.
#pragma once

#include "emit_cuda.h"

namespace flexsn {

/// In the narrow entry two sets of rows take turns where the steps of a segment are short; its code is there
/// twice. Else one set is copied to the other: a copy waits for loads that still arrive, which long steps
/// hide. On an H200 turns gave a LIF neuron's forward 0.84 instead of 0.72 of the floor (500 x 65536), and
/// its backward 0.35 instead of 0.41 (500 x 16384).
inline bool rows_take_turns(int ops, int steps) { return ops * steps <= 256; }

/// Is code too long in which the steps of a segment and the elements of a thread stand one after another?
/// NVRTC takes a second or so for the longest of the planner's that is not, up to four for quotients and
/// roots of f64, a few for 64 steps that a person asks for. `work` as of work_of: a quotient, which has a
/// path of its own for operands near the ends of the range, takes the compiler at least as long as it takes
/// the device.
inline bool is_too_long(std::int64_t work, std::int64_t steps, std::int64_t elements) {
  return work * steps * elements > 4096;
}

/// The most registers that the counted values of a graph take at once, in the order of its nodes; results
/// stay to the end.
int alive_at_once(const ir::Graph& graph, const std::vector<bool>& counted);

/// Which entry of a module runs. Automatic: the wide one where memory lies for it and fills_device; wide:
/// wherever memory lies for it.
enum class CudaEntry : std::uint8_t { automatic, wide, narrow };

/// What the rule goes by, and what it found; `explain` prints it.
struct CudaShape {
  CudaOptions options;
  CudaEntry entry = CudaEntry::automatic;
  int registers_a_step = 0;  ///< 4-byte registers that an element needs for each step that is loaded at once
  int loaded_a_step = 0;     ///< those that are loaded for a step
  int narrow_steps = 0;      ///< steps that the narrow entry loads at once
  int narrow_registers_a_step = 0;  ///< and what it needs for each
  int registers_at_once = 0;        ///< and those it needs once: carries, sums and the values of one step
  int ops = 0;                      ///< exact ops of one element and step, rebuilding included
  int work = 0;                     ///< of them
  int instructions = 0;             ///< that they become, roughly

  /// Registers of a thread of the wide entry, roughly.
  int registers() const { return options.vector * (options.unroll * registers_a_step + registers_at_once); }
  /// The same of the narrow entry, which may load later segments early.
  int narrow_registers() const {
    return narrow_steps * (narrow_registers_a_step + (options.early ? loaded_a_step : 0)) + registers_at_once;
  }
};

/// A thread loads 8 bytes of the narrowest row at once where its values fit into about 96 registers and its
/// code, work * steps * elements, is not too long. Steps are halved first where none are rebuilt, then
/// elements.
///
/// More steps between checkpoints are rebuilt in pieces of as many as are loaded at once, where what they
/// keep for backward finds room in a block's shared memory, of fewer threads or elements where need be: with
/// 16 steps a LIF neuron's backward has the 64 registers of 1024 threads for two elements and spills none.
/// The narrow entry loads whole segments all the same where their values fit, as those of 16 steps of a LIF
/// neuron do: in pieces, whose loads it waits for more often, 500 x 16384 took 1.9 times as long.
///
/// The compiler is told how many threads a multiprocessor is to hold, and so of the registers: without that
/// it took more for a learnable tau, and training 1.11 instead of 1.05 times as long as without tau. Where
/// 512 are the rule, a short body of few rows is asked for 1024: a LIF neuron's backward took 70 registers,
/// so 7 blocks were held instead of 8, an eighth of 128 x 262144 came last and alone, and training had 0.78
/// instead of 0.86 of the floor on an H200. Other bodies would spill: what is counted are values, not
/// addresses, of which loops over pieces have more. The narrow entry loads early where its values fit into
/// 192 of a thread's 255 registers; where those of a long segment fit into 112, it is asked for 512 threads:
/// 384 took 1.2 times as long for 500 x 65536. Where one spills after all, as the compiled kernel says, it is
/// compiled in other ways (CudaModule), and the one that spills least runs; but one step that is too long is
/// compiled once, with at most 255 registers.
CudaShape cuda_shape(const Plan& plan);

/// Counts what an element needs with the options that the shape has.
void count_registers(const Plan& plan, CudaShape& shape);

/// The same with what the environment variable FLEXSN_CUDA_SHAPE asks for; a plan's segments stay.
CudaShape cuda_shape_to_run(const Plan& plan);

/// Do so many elements fill a device's multiprocessors with blocks of the wide entry? Where not, one element
/// a thread gives more blocks, and loads of the next segments are issued early.
bool fills_device(const CudaOptions& options, std::int64_t elements, int multiprocessors);

/// The same with what a person asks for instead,
/// "entry=wide,vector=4,unroll=4,threads=128,narrow_threads=64,resident_threads=512", each where given. Where
/// a number is, what spills is not compiled in other ways. Throws a UserError where that cannot be.
CudaShape cuda_shape_asked(std::string_view asked, CudaShape rule);

}  // namespace flexsn
