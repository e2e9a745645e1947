// One function of a kernel module: nodes of a graph between streams, written as LLVM IR.
#pragma once

#include "emit_llvm.h"

namespace flexsn {

/// A value that comes in through a stream (two for a carry that something is added to), or is -0 where
/// absent.
struct Reading {
  ir::Id value = ir::no_id;
  int stream = -1;
  int carry = -1;  ///< for a carry_in: the stream in which later steps find it
  int add = -1;
};

/// A value that goes out through a stream; added to what is there where it is a sum.
struct Writing {
  ir::Id value = ir::no_id;
  int stream = -1;
  bool sum = false;
};

/// What one function does: nodes of a graph, what they read and where they go.
struct LlvmTask {
  const ir::Graph* graph = nullptr;
  std::string name;
  bool reverse = false;
  std::vector<Stream> streams = {};
  std::vector<Reading> readings = {};
  std::vector<Writing> writings = {};

  /// The number of a stream, which is added where it is new.
  int stream(const Stream& wanted);
  /// How a node comes in; null where it is computed.
  const Reading* reading_of(ir::Id id) const;
};

/// Where a value is computed: before the loops, in the loop over time or in that over elements.
enum class Level : std::uint8_t { call, step, element };

/// The level of each node.
std::vector<Level> levels_of(const LlvmTask& task);
/// For each node: is it needed for what the task writes?
std::vector<bool> needed_nodes(const LlvmTask& task);
/// Is it computed from operands?
bool is_op(const ir::Node& node);

/// How much of the work one pass of the loops does.
struct Width {
  int lanes = 16;
  int vectors = 1;
  int steps = 1;  ///< of time, in which carries and sums stay in registers: 1 or 2
};

/// The function's definition.
std::string emit_function(const LlvmTask& task, const Width& width, const LlvmOptions& options);

}  // namespace flexsn
