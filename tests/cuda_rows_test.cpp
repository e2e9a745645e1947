// Every row of the op table as a CUDA kernel on a device, its value and its gradient, on operands that tell:
// the interpreter's bits. Without a GPU a few of them run on the host (cuda_fake).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "accuracy.h"
#include "cuda_kernel.h"
#include "gpu_memory.h"
#include "schedule.h"

namespace flexsn::test {
namespace {

using namespace ir;

std::vector<std::byte> packed(const Values& column, Mem mem) {
  std::vector<std::byte> bytes(column.size() * size_of(mem));
  for (std::size_t n = 0; n < column.size(); ++n)
    std::memcpy(&bytes[n * size_of(mem)], &column[n], size_of(mem));
  return bytes;
}

/// What differs from the interpreter's columns; "" where nothing does.
std::string difference(const Graph& graph, const std::vector<Values>& inputs, CudaEntry entry) {
  const CudaKernel kernel(schedule_inference(graph, Kind::inference), Cuda::standard(), Store::standard(),
                          {.entry = entry});
  const auto count = static_cast<std::int64_t>(inputs[0].size());
  const std::vector<Values> expected = run_columns(graph, inputs, count);
  std::vector<GpuMemory> rooms;
  PlanRun run;
  run.steps = 1;
  run.elements = count;
  for (const Buffer& buffer : kernel.plan().buffers) {
    rooms.push_back(buffer.write
                        ? GpuMemory(inputs[0].size() * size_of(buffer.mem))
                        : GpuMemory(packed(inputs[static_cast<std::size_t>(buffer.index)], buffer.mem)));
    run.buffers.push_back({.data = rooms.back().data(), .row_stride = count});
  }
  kernel.run(run);
  wait_for(nullptr);
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    const Buffer& buffer = kernel.plan().buffers[i];
    if (!buffer.write) continue;
    const Values& wanted = expected[static_cast<std::size_t>(buffer.index)];
    const std::vector<std::byte> content = rooms[i].content();
    const Type type = value_type(buffer.mem);
    for (std::size_t n = 0; n < wanted.size(); ++n) {
      std::uint64_t found = 0;
      std::memcpy(&found, &content[n * size_of(buffer.mem)], size_of(buffer.mem));
      if (found == wanted[n] ||
          (std::isnan(number_of(type, found)) && std::isnan(number_of(type, wanted[n]))))
        continue;
      std::string operands;
      for (std::size_t k = 0; k < inputs.size(); ++k)
        operands += join(" ", number_of(value_type(graph.arguments[k].mem), inputs[k][n]));
      return join(buffer.name, " of", operands, ": ", number_of(type, found), ", not ",
                  number_of(type, wanted[n]));
    }
  }
  return "";
}

constexpr int shards = 16;

class CudaRows : public OnGpu, public testing::WithParamInterface<int> {};

TEST_P(CudaRows, HaveTheInterpretersBits) {
  const std::vector<RowCase> cases =
      row_cases([](const RowCase& c) { return !c.row().is_leaf() && !c.row().raw; });
  // What pretends compiles each kernel for a second or more.
  const std::size_t stride = pretends() ? 4 * shards : shards;
  for (auto i = static_cast<std::size_t>(GetParam()); i < cases.size(); i += stride) {
    const auto [op, t] = cases[i];
    std::vector<Values> operands = operands_to_try(cases[i]);
    if (operands[0].size() % 2 != 0)  // else no memory lies for the wide entry
      for (Values& column : operands) column.push_back(column.front());
    for (CudaEntry entry : {CudaEntry::wide, CudaEntry::narrow}) {
      EXPECT_EQ(difference(graph_of(op, t), operands, entry), "") << cases[i];
      const Type result = type_of(cases[i].row().meaning.sig.result, t);
      if (!is_float(t) || !is_float(result)) continue;
      Random random(5);
      std::vector<Values> with_gradient = operands;
      Values& gradient = with_gradient.emplace_back();
      while (gradient.size() < operands[0].size())
        gradient.push_back(random_value(random, {.low = -2, .high = 2}, result));
      const Graph graph = gradient_of(op, t);
      if (graph.results.empty()) continue;
      EXPECT_EQ(difference(graph, with_gradient, entry), "") << "gradient of " << cases[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, CudaRows, testing::Range(0, shards));

}  // namespace
}  // namespace flexsn::test
