// Fuzzes the reader of `.fsn`: any bytes give a graph or a UserError, and a legal graph's text means that
// graph.
#include <cstdio>
#include <cstdlib>

#include "text.h"
#include "verify.h"

using namespace flexsn;

namespace {

[[noreturn]] void stop(const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s\n%s\n", what, detail.c_str());
  std::abort();
}

void expect_same(const std::string& text, const std::string& identity) {
  try {
    if (canonical(parse(text, "printed")) != identity) stop("the printed text is another neuron", text);
  } catch (const UserError& error) {
    stop(error.what(), text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ir::Graph graph;
  try {
    graph = parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    verify(graph);
  } catch (const UserError&) {
    return 0;
  }
  const std::string identity = canonical(graph);
  expect_same(identity, identity);
  expect_same(print(graph), identity);
  expect_same(print(graph, {.names = true, .locations = true}), identity);
  return 0;
}
