// A plan as LLVM IR text: the loops over time and over one tile of elements, the body as explicit vectors.
//
// A module holds functions of one signature, LlvmCall. `flexsn_rebuild` and `flexsn_step` run
// their body for consecutive steps over blocks of elements; `..._hoist` computes once a tile what depends on
// parameters with an entry for each element only. A function finds all it touches through a table of streams:
// pointers that it walks along by a number of bytes each step. Who calls decides what a stream points to, so
// tails, segments and sequences need no second copy of a body.
#pragma once

#include "plan.h"

namespace flexsn {

/// The instruction sets that CPU kernels are made for.
enum class Isa : std::uint8_t { x86_64_v3, x86_64_v4, neon };
/// "x86-64-v3", "x86-64-v4" or "neon"
inline std::string_view name_of(Isa isa) {
  return isa == Isa::x86_64_v3 ? "x86-64-v3" : isa == Isa::x86_64_v4 ? "x86-64-v4" : "neon";
}
inline bool is_x86(Isa isa) { return isa != Isa::neon; }

/// What beside the plan decides the code.
struct LlvmOptions {
  Isa isa = Isa::x86_64_v3;
  /// Rows that are only written go past the caches. Each must then lie at a multiple of 64 bytes.
  bool streaming = false;
};

/// One pointer of a function's table.
struct Stream {
  enum class Use : std::uint8_t {
    read,      ///< a buffer that the body loads
    write,     ///< a buffer that the body stores, a sequence of states among them
    add,       ///< the add_sequence of a carry
    carry_in,  ///< a carry before the first step of the call
    carry,     ///< the row that a carry is written to; the next step reads it there
    keep,      ///< a kept value: a row for each step of the segment
    sum,       ///< a sum over time, read and written by each step
    hoisted,   ///< a row that the hoist function writes and the others read
  };
  Use use = Use::read;
  int index = 0;  ///< of a buffer (read, write, add), carry, kept value, sum or hoisted row
  Mem mem = Mem::f32;
  Lead lead = Lead::once;  ///< once: the pointer stands still
  Map map = Map::element;  ///< scalar or element: an indexed row is spread out by the caller

  bool operator==(const Stream&) const = default;
};

/// What the table holds for each stream.
struct StreamPointer {
  void* data = nullptr;
  std::int64_t stride = 0;  ///< in bytes, from step to step; negative where time runs backward
};

/// Runs `steps` steps on `blocks` blocks of elements; both are at least 1. `first_step` is the number of the
/// step that runs first, `first_element` that of the first element.
using LlvmCall = void (*)(const StreamPointer* streams, std::int64_t steps, std::int64_t blocks,
                          std::int64_t first_step, std::int64_t first_element);

struct LlvmFunction {
  std::string name;
  std::vector<Stream> streams;
};

/// Functions of one row: from memory to the values that a carry is kept in, and back.
struct LlvmConversion {
  Mem mem = Mem::f16;
  std::string load, store;  ///< streams: from, to
};

struct LlvmModule {
  std::string text;
  int block = 0;  ///< elements of one block
  LlvmFunction step;
  std::optional<LlvmFunction> rebuild = {}, step_hoist = {}, rebuild_hoist = {};
  std::vector<Type> step_rows = {}, rebuild_rows = {};  ///< the rows that the hoist functions write
  std::vector<LlvmConversion> conversions = {};         ///< for the half types that carries are stored in
};

/// `present` says for each buffer of the plan whether the run has it. An absent gradient that is loaded reads
/// as -0; what is absent and would be written is not computed.
LlvmModule emit_llvm(const Plan& plan, const std::vector<bool>& present, const LlvmOptions& options);

}  // namespace flexsn
