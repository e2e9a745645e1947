// Minimum cut of a small directed network.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace flexsn {

class Network {
 public:
  static constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max() / 4;

  explicit Network(int nodes) : edges_of_(static_cast<std::size_t>(nodes)) {}

  void connect(int from, int to, std::int64_t capacity);

  /// For each node: is it on the sink's side of a minimum cut? Of several such cuts, the one nearest to the
  /// sink.
  std::vector<bool> sink_side(int source, int sink);

 private:
  struct Edge {
    int to;
    std::int64_t left;  ///< capacity that is not in use
  };
  bool measure(int source, int sink);
  std::int64_t push(int from, int sink, std::int64_t limit);

  std::vector<Edge> edges_;  ///< an edge and its reverse stand side by side
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> distance_, next_;
};

}  // namespace flexsn
