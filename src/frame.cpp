#include "frame.h"

#include "error.h"
#include "interpret.h"

namespace flexsn {

using namespace ir;

namespace {

bool has_operands(const Node& node) {
  return node.op != Op::constant && node.op != Op::argument && !row_of(node.op).is_leaf();
}

}  // namespace

const std::byte* element(const void* base, Mem mem, std::int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<std::int64_t>(size_of(mem));
}

Frame::Frame(const Graph& graph, std::int64_t block)
    : graph_(graph),
      room_bytes_(static_cast<std::size_t>(block) * value_bytes),
      slices_(graph.nodes.size()),
      kernels_(graph.nodes.size()),
      inner_(graph.nodes.size()),
      hoisted_(hoistable(graph)) {
  storage_.resize(graph.nodes.size() * room_bytes_);
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    const Node& node = graph.nodes[id];
    if (node.op == Op::constant) write_constant(static_cast<Id>(id), node);
    if (!has_operands(node)) continue;
    const Row& row = row_of(node.op);
    Type types[max_arity] = {};
    for (int i = 0; i < row.arity; ++i) types[i] = graph.at(node.operands[i]).type;
    const std::optional<Type> t = type_variable(row, types);
    internal_check(t.has_value(), "the interpreter got an illegal graph");
    if (row.is_expanded())
      inner_[id] = expansion_frame(node.op, *t, block);
    else
      kernels_[id] = row.meaning.kernels[static_cast<int>(*t)];
  }
}

void Frame::run(Id id, std::int64_t count) {
  const Node& node = graph_.at(id);
  const int arity = row_of(node.op).arity;
  const void* operands[max_arity] = {};
  int strides[max_arity] = {};
  bool uniform = true;
  for (int i = 0; i < arity; ++i) {
    const Slice& operand = slices_[node.operands[i]];
    operands[i] = operand.data;
    strides[i] = operand.stride;
    uniform &= operand.stride == 0;
  }
  if (Frame* expansion = inner_[id]) {
    for (int i = 0; i < arity; ++i)
      expansion->slice(expansion->graph_.arguments[i].value) = {operands[i], strides[i]};
    for (Id inside = 0; inside < static_cast<Id>(expansion->slices_.size()); ++inside) {
      const Op op = expansion->graph_.at(inside).op;
      if (op != Op::constant && op != Op::argument) expansion->run(inside, count);
    }
    // Other nodes use the same frame, so the result is copied out.
    const Slice& result = expansion->slice(expansion->graph_.results[0].value);
    std::memcpy(room(id), result.data,
                static_cast<std::size_t>(result.stride == 0 ? 1 : count) * size_of(node.type));
    slices_[id] = {room(id), result.stride};
    return;
  }
  kernels_[id](operands, strides, room(id), uniform ? 1 : count);
  slices_[id] = {room(id), uniform ? 0 : 1};
}

void Frame::run_once(std::int64_t first, std::int64_t count) {
  for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) {
    if (graph_.at(id).op == Op::element_index) {
      auto* indices = static_cast<std::int32_t*>(room(id));
      for (std::int64_t n = 0; n < count; ++n)
        indices[n] = static_cast<std::int32_t>(static_cast<std::uint32_t>(first + n));
      slices_[id] = {indices, 1};
    }
    if (hoisted_[id] && has_operands(graph_.at(id))) run(id, count);
  }
}

void Frame::run_step(std::int64_t step, std::int64_t count) {
  for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) {
    if (graph_.at(id).op == Op::step_index) {
      *static_cast<std::int32_t*>(room(id)) = static_cast<std::int32_t>(static_cast<std::uint32_t>(step));
      slices_[id] = {room(id), 0};
    }
    if (!hoisted_[id] && has_operands(graph_.at(id))) run(id, count);
  }
}

void Frame::write_constant(Id id, const Node& node) {
  const std::uint32_t word = static_cast<std::uint32_t>(node.immediate);
  const bool truth = node.immediate != 0;
  if (node.type == Type::f64)
    std::memcpy(room(id), &node.immediate, sizeof node.immediate);
  else if (node.type == Type::b1)
    std::memcpy(room(id), &truth, sizeof truth);
  else
    std::memcpy(room(id), &word, sizeof word);
  slices_[id] = {room(id), 0};
}

/// One frame serves all nodes of the same row and type.
Frame* Frame::expansion_frame(Op op, Type t, std::int64_t block) {
  std::unique_ptr<Frame>& frame = expansions_[{op, t}];
  if (!frame) frame = std::make_unique<Frame>(expansion_of(op, t), block);
  return frame.get();
}

}  // namespace flexsn
