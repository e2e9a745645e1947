// Dinic's algorithm: shortest augmenting paths, a whole layered network at a time.
#include "mincut.h"

#include <algorithm>

namespace flexsn {

void Network::connect(int from, int to, std::int64_t capacity) {
  edges_of_[from].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({to, capacity});
  edges_of_[to].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({from, 0});
}

/// Distances from the source over edges with capacity left.
bool Network::measure(int source, int sink) {
  distance_.assign(edges_of_.size(), -1);
  distance_[source] = 0;
  std::vector<int> queue = {source};
  for (std::size_t at = 0; at < queue.size(); ++at)
    for (int e : edges_of_[queue[at]])
      if (edges_[e].left > 0 && distance_[edges_[e].to] < 0) {
        distance_[edges_[e].to] = distance_[queue[at]] + 1;
        queue.push_back(edges_[e].to);
      }
  return distance_[sink] >= 0;
}

/// Pushes flow along one shortest path; gives how much. The path is walked without recursion, since a graph
/// may be thousands of nodes deep.
std::int64_t Network::push(int from, int sink, std::int64_t limit) {
  std::vector<int> path;  // edges
  int at = from;
  while (at != sink) {
    bool advanced = false;
    for (int& i = next_[at]; i < static_cast<int>(edges_of_[at].size()); ++i) {
      const Edge& edge = edges_[edges_of_[at][i]];
      if (edge.left <= 0 || distance_[edge.to] != distance_[at] + 1) continue;
      path.push_back(edges_of_[at][i]);
      at = edge.to;
      advanced = true;
      break;
    }
    if (advanced) continue;
    if (path.empty()) return 0;
    at = edges_[path.back() ^ 1].to;
    ++next_[at];
    path.pop_back();
  }
  for (int e : path) limit = std::min(limit, edges_[e].left);
  for (int e : path) {
    edges_[e].left -= limit;
    edges_[e ^ 1].left += limit;
  }
  return limit;
}

std::vector<bool> Network::sink_side(int source, int sink) {
  while (measure(source, sink)) {
    next_.assign(edges_of_.size(), 0);
    while (push(source, sink, unlimited) > 0) {
    }
  }
  // Backward from the sink over edges that could still take flow: the smallest sink side.
  std::vector<bool> side(edges_of_.size());
  side[sink] = true;
  std::vector<int> queue = {sink};
  for (std::size_t at = 0; at < queue.size(); ++at)
    for (int e : edges_of_[queue[at]])
      if (edges_[e ^ 1].left > 0 && !side[edges_[e].to]) {
        side[edges_[e].to] = true;
        queue.push_back(edges_[e].to);
      }
  return side;
}

}  // namespace flexsn
