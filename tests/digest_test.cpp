// Every machine, target and version gives the bits whose digests are committed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "error.h"
#include "flexsn/flexsn.h"
#include "flexsn/neurons.h"
#include "random_graph.h"
#include "store.h"

namespace flexsn {
namespace {

using test::random_graph;

const std::string committed = FLEXSN_TESTS_DIR "/digests.txt";

std::string contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// "DIGEST  WHAT" a line: each neuron, in f32 and one of the other types, then random graphs.
std::string digests() {
  std::string lines;
  constexpr Mem others[] = {Mem::f64, Mem::f16, Mem::bf16};
  std::size_t turn = 0;
  for (const NeuronInfo& info : neuron_list())
    for (const Mem type : {Mem::f32, others[turn++ % std::size(others)]})
      lines += join(digest(neuron_named(info.name), type), "  ", info.name, " ", name_of(type), "\n");
  constexpr std::uint64_t last = 100, together = 50;
  std::string some;
  for (std::uint64_t seed = 0; seed < last; ++seed) {
    some += digest(Neuron(random_graph(seed)));
    if ((seed + 1) % together != 0) continue;
    lines += join(sha256(some), "  random graphs ", seed + 1 - together, " to ", seed, "\n");
    some.clear();
  }
  return lines;
}

// FLEXSN_UPDATE_DIGESTS=1 writes them anew: results have changed on purpose, which the change must say.
TEST(Digests, OfNeuronsAndRandomGraphsAreTheCommittedOnes) {
  const std::string found = digests();
  if (std::getenv("FLEXSN_UPDATE_DIGESTS")) std::ofstream(committed) << found;
  std::istringstream now(found), then(contents(committed));
  std::string line, expected;
  while (std::getline(now, line)) {
    std::getline(then, expected);
    EXPECT_EQ(line, expected);
  }
  EXPECT_FALSE(std::getline(then, expected)) << expected;
}

}  // namespace
}  // namespace flexsn
