// The interpreter: the law. What it computes is what every op, step and scan over time means.
#pragma once

#include "ir.h"

namespace flexsn {

/// How the elements of a step find theirs in one row of an argument.
enum class Map : std::uint8_t { element, scalar, indexed };

/// An argument in memory: a row for each step where it changes with time (stride 0 where not).
struct Source {
  Mem mem = Mem::f32;
  const void* data = nullptr;
  std::int64_t row_stride = 0;  ///< in elements
  Map map = Map::element;
  const std::int64_t* indices = nullptr;  ///< for Map::indexed: where element n is found in a row
};

/// Where a result goes: a row for each step (`sequence`), the row of the last step (`last`), or nowhere.
struct Target {
  void* sequence = nullptr;
  std::int64_t row_stride = 0;  ///< in elements
  void* last = nullptr;
};

/// One run over time; sources and targets stand in the order of the graph's arguments and results.
struct Scan {
  std::int64_t steps = 0;
  std::int64_t elements = 0;
  std::int64_t first_step = 0;
  std::vector<Source> sources;
  std::vector<Target> targets;
};

/// Runs `graph` for each element, from step to step. States start at their source; with no steps at all,
/// the last state is the first. Arguments that are neither state nor parameter give one row a step.
void interpret(const ir::Graph& graph, const Scan& scan);

/// The bits of a row's result on constants of these types: the one function that folds.
std::uint64_t evaluate(ir::Op op, const Type* types, const std::uint64_t* bits);

/// The expansion of a row for T = `t`: a graph of one output.
const ir::Graph& expansion_of(ir::Op op, Type t);

/// `count` elements from memory to values and back; what is stored was rounded before.
void load(Mem mem, const void* from, void* to, std::int64_t count);
void store(Mem mem, const void* from, void* to, std::int64_t count);

}  // namespace flexsn
