// The interpreter's workbench: the values of all nodes of a graph for one block of elements. Nodes are
// evaluated one after another over the block by their row's kernel; an expanded row is a frame of its own,
// run on the same operands.
#pragma once

#include "ops.h"

namespace flexsn {

inline constexpr std::int64_t block_size = 512;
inline constexpr std::size_t value_bytes = 8;  // the largest value is an f64

/// Bytes of a value in a frame.
inline std::size_t size_of(Type type) { return size_of(ir::natural_memory(type)); }

/// Element `index` of an array.
const std::byte* element(const void* base, Mem mem, std::int64_t index);

/// Where a node's values are; stride 0 means one value for all elements.
struct Slice {
  const void* data = nullptr;
  int stride = 1;
};

class Frame {
 public:
  /// `block` is the largest number of elements that will be evaluated at once; `graph` must outlive the
  /// frame.
  Frame(const ir::Graph& graph, std::int64_t block);

  Slice& slice(ir::Id id) { return slices_[id]; }
  /// The node's own room for one block.
  void* room(ir::Id id) { return storage_.data() + static_cast<std::size_t>(id) * room_bytes_; }

  /// Evaluates one node that has operands.
  void run(ir::Id id, std::int64_t count);
  /// Evaluates what does not change with time; elements `first` to `first + count` are the block.
  void run_once(std::int64_t first, std::int64_t count);
  /// Evaluates the rest in step `step`.
  void run_step(std::int64_t step, std::int64_t count);

 private:
  void write_constant(ir::Id id, const ir::Node& node);
  Frame* expansion_frame(ir::Op op, Type t, std::int64_t block);

  const ir::Graph& graph_;
  const std::size_t room_bytes_;
  std::vector<Slice> slices_;
  std::vector<ir::Kernel> kernels_;
  std::map<std::pair<ir::Op, Type>, std::unique_ptr<Frame>> expansions_;
  std::vector<Frame*> inner_;  ///< for each node of an expanded row
  const std::vector<bool> hoisted_;
  std::vector<std::byte> storage_;
};

}  // namespace flexsn
