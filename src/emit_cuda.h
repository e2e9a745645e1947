// A plan as CUDA C++ text: one thread owns a few neighbouring elements for all of time.
//
// A module holds two entries of one signature: `flexsn_wide`, whose threads own `vector` elements each and
// load and store them together, and `flexsn_narrow`, one element a thread, for any number of elements and any
// alignment. Each can be compiled alone. An entry takes one record by value, made of fields of 8 bytes. Time
// runs in segments whose loads are issued before the first of them is used; the narrow entry, which also
// serves few elements, loads rows of later segments while it computes one. Where more steps are rebuilt
// together than are loaded at once, what backward needs of them lies in shared memory; a narrow entry that
// loads early loads all of them and keeps it in registers.
#pragma once

#include "plan.h"

namespace flexsn {

/// What beside the plan decides the code. How to choose them: cuda_shape.h.
struct CudaOptions {
  int vector = 2;            ///< elements of a thread of the wide entry: 1, 2 or 4
  int unroll = 8;            ///< steps whose rows are loaded at once, a power of two; see steps_at_once
  int threads = 128;         ///< of a block of the wide entry, a power of two
  int narrow_threads = 128;  ///< of a block of the narrow entry, a power of two
  /// Threads of the wide entry that a multiprocessor has registers for at least, a power of two; 0: any
  /// number.
  int resident_threads = 512;
  int narrow_resident_threads = 0;  ///< the same of the narrow entry
  bool early = true;                ///< does the narrow entry load rows of later segments early?
  bool again_if_spilled = true;     ///< is an entry that spills compiled in other ways?

  bool operator==(const CudaOptions&) const = default;
};

/// Bytes of shared memory for what backward needs of the steps between checkpoints, by a block of the entry
/// that takes more, where they are not all loaded at once.
std::int64_t cuda_kept_bytes(const Plan& plan, const CudaOptions& options);
/// Steps whose rows are loaded at once: no more than lie between checkpoints, and all of those where they are
/// rebuilt and that would be too much shared memory.
int steps_at_once(const Plan& plan, const CudaOptions& options);
/// Are the steps between checkpoints rebuilt in pieces of fewer?
inline bool in_pieces(const Plan& plan, const CudaOptions& options) {
  return plan.rebuild && steps_at_once(plan, options) < plan.segment;
}
/// The same of the narrow entry: whole segments where it loads early.
inline int narrow_steps_at_once(const Plan& plan, const CudaOptions& options) {
  return options.early && in_pieces(plan, options) ? plan.segment : steps_at_once(plan, options);
}

/// One field of an entry's record.
struct CudaField {
  enum class What : std::uint8_t {
    steps,         ///< T
    elements,      ///< N
    first_step,    ///< the number of step 0
    beyond_cache,  ///< 1: the rows of a run are much more than the L2 cache holds; 0: they are not
    partial_sums,  ///< 0: sums are written for each element; 1: one for each block of elements, see below
    data,          ///< the address of a buffer in device memory; null for a scalar that is given as a value
    value,         ///< of a scalar with one row that lies in host memory: its bytes, the rest zero
    row_stride,    ///< in elements
    inner,
    count,  ///< of an indexed buffer
  };
  What what = What::steps;
  int buffer = no_buffer;

  bool operator==(const CudaField&) const = default;
};

/// The names of the entries.
inline constexpr const char *cuda_wide = "flexsn_wide", *cuda_narrow = "flexsn_narrow";

/// One way to compile an entry.
struct CudaWay {
  std::string entry;
  std::string how;  ///< it differs from the usual way, which has "": for a person
};

struct CudaModule {
  std::string common;  ///< what both entries need
  /// The usual way first, then those for a device where it spills: with a limit of 255 registers, with one of
  /// 128, of the narrow entry without rows that are loaded early (but first with them, where it was asked for
  /// less). Told nothing, the compiler gave some long bodies 32 registers; told of fewer, it orders others so
  /// that less is alive at once.
  std::vector<CudaWay> wide, narrow;
  CudaOptions options;
  std::vector<CudaField> fields;  ///< of both entries, in order; none of buffers that the text leaves alone

  std::string text() const { return common + wide.front().entry + narrow.front().entry; }
  /// With one of the entries.
  std::string text(const CudaWay& way) const { return common + way.entry; }
};

/// `present` says for each buffer of the plan whether the run has it, as for emit_llvm.
/// The wide entry needs: elements a multiple of `vector`, and for each buffer with an entry for each element
/// that its address and, where it has several rows, its row stride are multiples of `vector` entries.
/// An entry is launched with ceil(elements / (vector * threads)) blocks (narrow: vector 1) in x.
/// With partial_sums a sum's buffer gets one value for each block of `vector * threads` elements (narrow:
/// narrow_threads): the tree of reduce.h over the block, elements beyond the last counting as -0.
CudaModule emit_cuda(const Plan& plan, const std::vector<bool>& present, const CudaOptions& options);

/// A kernel takes so many numbers, each of which its module has as a field.
inline constexpr std::size_t cuda_most_fields = 4096 / sizeof(std::uint64_t);
/// Why a module's kernels cannot run: they take more; "" where they can.
std::string cuda_too_many_fields(const Plan& plan, const CudaModule& module);

/// The kernels that finish parameter gradients; they know no plan.
///   flexsn_reduce_f32, _f64 (from, to, long long outer, long long n, long long inner): `from` is
///     [outer, n, inner]; `to` is [outer, ceil(n / cuda_reduce_block), inner]: aligned blocks of the middle
///     dimension by the tree of reduce.h. Launched with `threads` = cuda_reduce_threads and blocks as
///     cuda_reduce_blocks says.
///   flexsn_reduce_whole_f32, _f64 (from, to, long long n, long long inner, long long tail): `from` is
///     [outer, n, inner, tail]; `to` is [outer, inner]: the tail, then the dimension before the inner one by
///     that tree, where cuda_reduces_whole. Launched with outer * inner blocks of cuda_reduce_whole_threads.
///   flexsn_store_f32, _f64, _f16, _bf16 (from, to, long long count): rounds sums to a parameter's memory
///     type (f16 and bf16 from f32). Launched with cuda_reduce_threads threads, ceil(count / threads) blocks.
std::string emit_cuda_reduce();
inline constexpr int cuda_reduce_threads = 256;
inline constexpr int cuda_reduce_block = 1024;  ///< a power of two
inline constexpr int cuda_reduce_whole_threads = 1024;
std::int64_t cuda_reduce_blocks(std::int64_t outer, std::int64_t n, std::int64_t inner);
/// Few enough for a block of threads each?
bool cuda_reduces_whole(std::int64_t n, std::int64_t inner, std::int64_t tail);

/// What NVRTC is given beside the text and the architecture, so that every operation rounds as written.
inline constexpr const char* cuda_compile_options[] = {"--fmad=false", "--std=c++17", "--prec-div=true",
                                                       "--prec-sqrt=true", "--ftz=false"};
/// The same and what else a version of NVRTC knows that changes no bit of the object code.
std::vector<const char*> cuda_compile_options_of(int nvrtc_major, int nvrtc_minor);

}  // namespace flexsn
