// Random legal neurons, and random data to run them on: the same on every machine for the same seed.
#pragma once

#include "interpret.h"
#include "ir.h"
#include "random.h"

namespace flexsn::test {

/// Draw in separate statements: the order in which the arguments of a call are evaluated is open.
class Dice : public Random {
 public:
  using Random::Random;
  /// From 0 to n - 1.
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  bool chance(double probability) { return uniform(0, 1) < probability; }
  template <class List>
  auto pick(const List& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(std::size(list))))];
  }
};

/// The rows that a step graph may hold.
const std::vector<ir::Op>& step_rows();

/// What random graphs are made of.
struct GraphMix {
  int min_ops = 3, max_ops = 30;
  std::vector<ir::Op> rows = step_rows();
};

/// A legal step graph. It is drawn from the op table, so that a new row occurs in it without more ado.
ir::Graph random_graph(std::uint64_t seed, const GraphMix& mix = {});

/// What a run gave for one result.
struct Column {
  std::string what;
  Array sequence;  ///< [steps, elements]
  Array last;      ///< [elements]; of an output zeros where there are no steps
};
using Outcome = std::vector<Column>;

/// Are at least three in four values finite, and those not all the same?
bool is_alive(const Array& array);

/// The first place where the bits differ, in words; "" when there is none. A NaN equals every NaN.
std::string difference(const Outcome& a, const Outcome& b);

/// Fills an array of the argument's type, with numbers of one range that some row is tested in. `edge_share`
/// of them are corners: zeros, ties, subnormals, infinities, NaN, ends of types, constants of the graph.
void draw_values(Array& values, const ir::Graph& graph, const ir::Argument& argument, double edge_share,
                 Dice& dice);

/// Random data for a graph, and for all that passes make of it; a text of it read back is one of those.
class RandomRun {
 public:
  RandomRun(const ir::Graph& graph, std::uint64_t seed);

  std::int64_t steps() const { return steps_; }
  std::int64_t elements() const { return elements_; }

  Outcome run(const ir::Graph& graph) const;
  /// The same in two chunks, the second of which starts with the states that the first ends with.
  Outcome run_in_chunks(const ir::Graph& graph) const;

 private:
  struct Data {
    Array values;
    Map map = Map::element;
    std::int64_t row_stride = 0;
    std::vector<std::int64_t> indices = {};
  };
  Data random_data(const ir::Graph& graph, const ir::Argument& argument, double edge_share, Dice& dice) const;
  Outcome room_for(const ir::Graph& graph) const;
  void run_steps(const ir::Graph& graph, const std::vector<Data>& data, std::int64_t from, std::int64_t to,
                 Outcome& outcome) const;

  std::int64_t steps_ = 0, elements_ = 0, first_step_ = 0, cut_ = 0;
  std::vector<Data> data_;  ///< in the order in which a text lists arguments; outcomes follow that of results
};

}  // namespace flexsn::test
