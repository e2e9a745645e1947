// Kernels at their limits: work that cannot be compiled, and callers who do not keep their part.
#include <gtest/gtest.h>

#include "error.h"
#include "executable.h"
#include "kernels.h"
#include "user_error.h"

namespace flexsn {
namespace {

TEST(Kernel, AParallelForOfTheCallersIsHeldToItsRule) {
  const Neuron doubled = neuron("doubled", [](Step& s) { s.output("y", s.input("x") * 2.0); });
  constexpr std::int64_t many = 1 << 20;
  const std::vector<float> x(many, 3);
  const auto error_with = [&](const ParallelFor& parallel_for) {
    std::vector<float> y(many);
    const Kernel kernel = compile(doubled, {.threads = 2, .parallel_for = parallel_for});
    return error([&] { kernel.bind({4, {many / 4}}).in("x", x).out("y", y).inference(); });
  };
  if (!cpu_absent().empty()) GTEST_SKIP() << cpu_absent();
  EXPECT_EQ(error_with([](std::int64_t n, const auto& task) {
              for (std::int64_t i = n; i-- > 0;) task(i);
            }),
            "no error");
  const std::string rule = "; it must call its function once for each number below its count";
  EXPECT_EQ(error_with([](std::int64_t n, const auto& task) {
              for (std::int64_t i = 0; i <= n; ++i) task(i);
            }),
            "parallel_for was given 2 tasks and ran task 2" + rule);
  EXPECT_EQ(error_with([](std::int64_t, const auto& task) { task(-1); }),
            "parallel_for was given 2 tasks and ran task -1" + rule);
  EXPECT_EQ(error_with([](std::int64_t, const auto& task) { task(1), task(1); }),
            "parallel_for was given 2 tasks and ran task 1 twice" + rule);
  EXPECT_EQ(error_with([](std::int64_t, const auto& task) { task(0); }),
            "parallel_for was given 2 tasks and returned without running task 1" + rule);
}

TEST(Kernel, RowsLieWithinTheBytesThatMemoryCanHave) {
  const Neuron doubled = neuron("doubled", [](Step& s) { s.output("y", s.input("x") * 2.0); });
  const Kernel kernel = compile(doubled, {.target = "interpreter"});
  std::vector<float> x(8);
  constexpr std::int64_t far = std::int64_t{1} << 61;  // of 4 bytes each: more than 63 bits count
  flexsn::Run run = kernel.bind({2, {4}}), empty = kernel.bind({2, {0}});
  EXPECT_EQ(error([&] { run.in("x", View(x.data(), 2 * far).rows_every(far)); }),
            join("neuron 'doubled': input 'x' has rows every ", far,
                 " elements, which is more than memory can have"));
  auto* const between = reinterpret_cast<float*>(reinterpret_cast<char*>(x.data()) + 2);
  EXPECT_EQ(error([&] { empty.in("x", View(between, 5).rows_every(5)); }), "no error")
      << "where an array without elements starts is nobody's business";
}

Neuron long_neuron(int ops) {
  std::string text = "neuron long {\ninput x : f32\n%0 = add %x, 1\n";
  for (int i = 1; i < ops; ++i) text += join("%", i, " = mul %", i - 1, ", %x\n");
  return parse_neuron(join(text, "output y = %", ops - 1, "\n}\n"));
}

TEST(Kernel, MoreOperationsThanCompilersForGpusCanTakeAreRefused) {
  const Neuron long_one = long_neuron(30000);
  ExplainOptions options;
  options.training.costs = cost_model_named("gpu");
  const Explanation explained = explain(long_one, options);
  EXPECT_TRUE(explained.gpu.at(0).refused.starts_with("a kernel of it has 30"));
  EXPECT_NE(explained.text.find("inference_final_state: cannot run: a kernel of it has"), std::string::npos);
  const std::string remedy =
      "operations, but one that is compiled for a GPU has 20000 at most; split the step into neurons that "
      "follow each other, or use the target \"cpu\"";
  EXPECT_NE(explained.gpu[0].refused.find(remedy), std::string::npos) << explained.gpu[0].refused;
  EXPECT_EQ(explain(long_neuron(5000), options).gpu.at(0).refused, "");
  Kernels kernels(long_one.graph(), {.target = "interpreter"});
  const std::string found = error([&] { kernels.executable_on("cuda", Kind::inference, {}); });
  EXPECT_NE(found.find(remedy), std::string::npos) << found;
}

TEST(Kernel, MoreOperationsThanCompilersCanTakeAreRefused) {
  if (!cpu_absent().empty()) GTEST_SKIP() << cpu_absent();
  const Neuron long_one = long_neuron(60000);
  std::vector<float> x(2, 1), y(2);
  const std::string found =
      error([&] { compile(long_one).bind({1, {2}}).in("x", x).out("y", y).inference(); });
  EXPECT_TRUE(found.starts_with("neuron 'long': a kernel of it has 60")) << found;
  EXPECT_NE(explain(long_one, {}).text.find("\ninference_final_state cannot run: a kernel of it has 60"),
            std::string::npos);
  EXPECT_NE(found.find("operations, but one that is compiled for a CPU has 50000 at most; split the step "
                       "into neurons that "
                       "follow each other, or use the target \"interpreter\""),
            std::string::npos)
      << found;
  compile(long_one, {.target = "interpreter"}).bind({1, {2}}).in("x", x).out("y", y).inference();
  EXPECT_EQ(y[1], 2);
}

}  // namespace
}  // namespace flexsn
