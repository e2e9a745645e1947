// Memory that runs out: whichever allocation of tracing, compiling or running fails, there is an exception,
// and the next call works. LLVM is made without exceptions, and may end the process where it gets no memory;
// so what is allocated below its functions does not fail here.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <new>
#include <utility>

#include "error.h"
#include "executable.h"
#include "jit.h"
#include "store.h"

namespace {

/// Allocations of this thread until one fails; 0: none does.
thread_local std::int64_t until_failure = 0;

/// Whether one of the functions that are running is of the library that holds LLVM.
bool inside_llvm() {
  Dl_info llvm = {}, other = {};
  if (dladdr(reinterpret_cast<const void*>(&flexsn::isa_with), &llvm) == 0) return false;
  void* frames[200];
  const int count = backtrace(frames, 200);
  for (int i = 0; i < count; ++i)
    if (dladdr(frames[i], &other) != 0 && other.dli_fbase == llvm.dli_fbase) return true;
  return false;
}

bool must_fail() {
  if (until_failure == 0 || --until_failure > 0) return false;
  if (!inside_llvm()) return true;
  until_failure = 1;  // the next one that is not LLVM's
  return false;
}

}  // namespace

// Not inlined: a compiler that sees one of the pair alone warns of the other.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  if (must_fail()) throw std::bad_alloc();
  if (void* made = std::malloc(bytes == 0 ? 1 : bytes)) return made;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return must_fail() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace flexsn::test {
namespace {

constexpr std::int64_t steps = 3, elements = 10;

/// Two inputs, three states, parameters, no name in common with another test.
Neuron odd() {
  return neuron("odd", [](Step& s) {
    const auto x = s.input("x"), y = s.input("y", Mem::f16);
    const auto u = s.state("u", 0.5), v = s.state("v"), n = s.state("n", 0, Mem::i32);
    const auto tau = s.param("tau", 2, {1, 10});
    const auto h = u + (x - u) / tau + y * v;
    const auto z = spike(h - 1.0, surrogate::atan());
    s.next(u, tanh(h) * (1 - z));
    s.next(v, v * 0.5 + z);
    s.next(n, select(z > 0, n + 1, n));
    s.output("z", z);
  });
}

struct Ran {
  Array z{Mem::f32, {steps, elements}}, grad_x{Mem::f32, {steps, elements}}, grad_tau{Mem::f32, {}};

  bool operator==(const Ran& other) const {
    return z.bytes == other.z.bytes && grad_x.bytes == other.grad_x.bytes &&
           grad_tau.bytes == other.grad_tau.bytes;
  }
};

/// From the step function to gradients.
Ran ran(const std::string& target) {
  const Array x(Mem::f32, {steps, elements}, 0.75), y(Mem::f16, {steps, elements}, 0.5),
      tau(Mem::f32, {}, 1.5);
  const Kernel kernel = compile(odd(), {.target = target, .threads = 1});
  Ran made;
  Run run = kernel.bind({steps, {elements}});
  run.in("x", x).in("y", y).param("tau", tau).out("z", made.z);
  std::vector<std::byte> workspace(run.workspace_bytes());
  run.forward(workspace);
  run.backward(workspace, {{"z", x}}, {{"x", made.grad_x}, {"tau", made.grad_tau}});
  return made;
}

/// Lets the n-th allocation fail, for n from 1 on until there are fewer; beyond the first ones with gaps of
/// n / sparse. Calls `between` after each.
template <class Work, class Between>
int fail_each(std::int64_t sparse, const Work& work, const Between& between) {
  int failures = 0;
  for (std::int64_t n = 1;; n += 1 + n / sparse) {
    until_failure = n;
    try {
      work();
      if (std::exchange(until_failure, 0) > 0) return failures;
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    until_failure = 0;
    between(n);
  }
}

TEST(Memory, WhereverItRunsOutInTheInterpreterTheNextCallWorks) {
  const Ran expected = ran("interpreter");
  const auto is_right = [&](std::int64_t n) { ASSERT_EQ(ran("interpreter"), expected) << "after " << n; };
  EXPECT_GT(fail_each(60, [&] { EXPECT_EQ(ran("interpreter"), expected); }, is_right), 200);
}

TEST(Memory, WhereverItRunsOutAroundMachineCodeTheNextCallWorks) {
  if (!cpu_absent().empty()) GTEST_SKIP() << cpu_absent();
  std::string home = (std::filesystem::temp_directory_path() / "flexsn_memory_XXXXXX").string();
  setenv("FLEXSN_CACHE_DIR", mkdtemp(home.data()), 1);
  const Ran expected = ran("interpreter");
  const auto is_right = [&](std::int64_t n) {
    ASSERT_EQ(ran("cpu"), expected) << "after " << n;
    if (n % 4 == 0) Store::standard().clear();  // so that the next one compiles, while most load
  };
  EXPECT_GT(fail_each(12, [&] { EXPECT_EQ(ran("cpu"), expected); }, is_right), 50);
  std::filesystem::remove_all(home);
}

TEST(Memory, WhereverItRunsOutInAnErrorsTextTheNextErrorIsWhole) {
  const auto said = [] {
    try {
      parse_neuron("neuron n {\n  inptu x : f32\n}", "some.fsn");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string expected = said();
  ASSERT_NE(expected, "");
  EXPECT_GT(fail_each(100, [&] { said(); }, [&](std::int64_t) { ASSERT_EQ(said(), expected); }), 5);
}

}  // namespace
}  // namespace flexsn::test
