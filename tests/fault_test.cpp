// Faults around compiled kernels: processes that are killed while they write the cache, cache directories
// that cannot be used, libraries that are no libraries, and processes that fork. After each a run has the
// right bits.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "child_process.h"
#include "cpu_kernel.h"
#include "cuda_code.h"
#include "error.h"
#include "random.h"
#include "train.h"

namespace flexsn::test {
namespace {

namespace fs = std::filesystem;

constexpr uid_t nobody = 65534;
constexpr std::int64_t steps = 4, elements = 50;

/// A neuron that nobody else has: its leak makes it so.
Neuron leaky(int number) {
  return neuron(join("leaky", number), [number](Step& s) {
    const auto x = s.input("x"), v = s.state("v");
    const auto h = v * (0.25 + number / 1024.0) + x;
    const auto z = spike(h - 1.0, surrogate::atan());
    s.next(v, h * (1 - z));
    s.output("z", z + tanh(h));
  });
}

/// Whether a run, by a kernel or by the interpreter, gives what `run` gives.
bool is_right(int number, const std::function<void(const Plan&, const PlanRun&)>& runner) {
  const Plan plan = plan_of(leaky(number).graph(), Kind::inference_final_state, {});
  const Array x(Mem::f32, {steps, elements}, 0.5 + number % 7);
  std::vector<Array> arrays;
  PlanRun run{.steps = steps, .elements = elements, .buffers = {}};
  for (const Buffer& buffer : plan.buffers)
    arrays.push_back(buffer.holds == Holds::input ? x : Array(buffer.mem, {steps, elements}));
  for (Array& array : arrays) run.buffers.push_back({.data = array.bytes.data(), .row_stride = elements});
  runner(plan, run);
  const Results expected = flexsn::run(leaky(number), {.inputs = {{"x", x}}});
  for (std::size_t b = 0; b < plan.buffers.size(); ++b)
    if (plan.buffers[b].holds == Holds::output) return arrays[b].bytes == expected.outputs.at("z").bytes;
  return false;
}

bool compiled_is_right(int number, const Store& store) {
  return is_right(number, [&](const Plan& plan, const PlanRun& run) { CpuKernel(plan, store).run(run); });
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Faults : public testing::Test {
 protected:
  Faults() {
    std::string name = (fs::temp_directory_path() / "flexsn_faults_XXXXXX").string();
    home = mkdtemp(name.data());
    directory = home / "store";
  }
  ~Faults() override { fs::remove_all(home); }

  Store store() const { return Store(directory.string()); }

  std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    if (fs::exists(directory))
      for (const auto& file : fs::directory_iterator(directory))
        if (file.path().extension() != ".tmp") found.push_back(file.path());
    return found;
  }

  /// The entry that a kernel leaves, which must be the only new one.
  fs::path entry_of(int number) const {
    const std::vector<fs::path> before = entries();
    EXPECT_TRUE(compiled_is_right(number, store()));
    for (const fs::path& file : entries())
      if (std::find(before.begin(), before.end(), file) == before.end()) return file;
    ADD_FAILURE() << "no new entry";
    return {};
  }

  fs::path home, directory;
};

// ---- kill -9 ----------------------------------------------------------------------------------------

/// Whether the file of an entry is whole: its second line is the digest of what follows.
bool is_whole(const std::string& bytes) {
  const std::size_t first = bytes.find('\n'), second = bytes.find('\n', first + 1);
  return second != bytes.npos &&
         bytes.substr(first + 1, second - first - 1) == sha256(std::string_view(bytes).substr(second + 1));
}

TEST_F(Faults, ProcessesKilledWhileTheyWriteTheCacheLeaveWholeEntriesOrNone) {
  constexpr int kills = 200, kernels = 12;
  const std::string large(100000, 'x');
  ASSERT_TRUE(compiled_is_right(0, Store("")));  // LLVM is there before the children are
  fs::create_directory(directory);
  chmod(directory.c_str(), 0700);
  const auto compile_and_save = [&](int number) {
    const bool right = compiled_is_right(number % kernels, store());
    for (int k = 0; k < 5; ++k) store().save("cpu", join("large ", k), large);
    return right;
  };
  // Moments all over what a process does once, however fast this build and this machine are.
  const auto start_time = std::chrono::steady_clock::now();
  ASSERT_EQ(in_child([&] { return compile_and_save(0) ? 0 : 1; }), 0);
  const std::chrono::duration<double> once = std::chrono::steady_clock::now() - start_time;
  Random random(7);
  int in_the_middle = 0;
  for (int round = 0; round < kills; ++round) {
    const pid_t child = start([&] {
      for (int i = 0; i < 1000; ++i) {
        if (!compile_and_save(round + i)) return 1;
        if (i % kernels == kernels - 1) store().clear();
      }
      return 2;
    });
    const auto files_of_child = [&] {
      return std::ranges::count_if(fs::directory_iterator(directory), [&](const auto& file) {
        return file.path().filename().string().starts_with(join("flexsn-", child, "-"));
      });
    };
    const auto end = std::chrono::steady_clock::now() + random.uniform(0, 1.5) * once;
    std::this_thread::sleep_until(end);
    // Writing takes a hundredth of the time, so every other one is killed when it is seen to write.
    if (round % 2 == 1)
      while (files_of_child() == 0 && std::chrono::steady_clock::now() < end + 2 * once) continue;
    kill(child, SIGKILL);
    ASSERT_EQ(finish(child), 1000 + SIGKILL) << "round " << round;
    in_the_middle += static_cast<int>(files_of_child());
    for (const fs::path& file : entries()) ASSERT_TRUE(is_whole(bytes_of(file))) << file << " in " << round;
    for (int k = 0; k < 5; ++k) {
      const std::optional<std::string> content = store().load("cpu", join("large ", k));
      ASSERT_TRUE(!content || *content == large);
    }
    if (round % 20 == 19) {
      ASSERT_EQ(in_child([&] { return compiled_is_right(round % kernels, store()) ? 0 : 1; }), 0);
    }
  }
  EXPECT_GT(in_the_middle, 0) << "no process was killed while it wrote";
  for (int number = 0; number < kernels; ++number) EXPECT_TRUE(compiled_is_right(number, store()));
  store().clear();
  EXPECT_TRUE(fs::is_empty(directory)) << "temporary files of the dead are cleared too";
}

// ---- what lies in the place of an entry -----------------------------------------------------------------

TEST_F(Faults, AnEntryThatIsAnotherKernelsOrDamagedIsMadeAgain) {
  const fs::path one = entry_of(1), two = entry_of(2);
  const std::string good = bytes_of(one), other = bytes_of(two);
  ASSERT_NE(good, other);
  for (const std::string& bad : {other, good.substr(0, good.size() / 2), good.substr(0, 80), std::string(),
                                 std::string(good.size(), '\xff'), good + other}) {
    std::ofstream(one, std::ios::binary) << bad;
    EXPECT_EQ(in_child([&] { return compiled_is_right(1, store()) ? 0 : 1; }), 0);
    EXPECT_EQ(bytes_of(one), good);
  }
}

// ---- directories that cannot be used --------------------------------------------------------------------

/// Runs a kernel in a process whose standard store is this directory; 0 when it has the right bits.
int run_with_cache(const fs::path& directory, const std::function<bool()>& prepare = [] { return true; }) {
  return in_child([&] {
    setenv("FLEXSN_CACHE_DIR", directory.c_str(), 1);
    unsetenv("FLEXSN_CACHE");
    if (!prepare()) return 77;
    for (int round = 0; round < 2; ++round)
      if (!compiled_is_right(3, Store::from_environment())) return 1;
    return 0;
  });
}

TEST_F(Faults, ADirectoryThatCannotBeUsedCostsTheCachingOnly) {
  fs::create_directory(home / "real");
  fs::create_directory_symlink(home / "real", home / "link");
  EXPECT_EQ(run_with_cache(home / "link"), 0);
  EXPECT_TRUE(fs::is_empty(home / "real")) << "a link is not followed";

  std::ofstream(home / "file") << "no directory";
  EXPECT_EQ(run_with_cache(home / "file"), 0);
  EXPECT_EQ(run_with_cache("/proc/nowhere/at/all"), 0);

  fs::create_directory(home / "open");
  std::ofstream(home / "open" / "letter.txt") << "not a kernel";
  chmod((home / "open").c_str(), 0777);
  EXPECT_EQ(run_with_cache(home / "open"), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(home / "open"), {}), 1) << "others could write there";

  const auto as_nobody = [] { return geteuid() != 0 || (setgid(nobody) == 0 && setuid(nobody) == 0); };
  chmod(home.c_str(), 0755);
  fs::create_directory(home / "sealed");
  chmod((home / "sealed").c_str(), 0500);
  if (geteuid() == 0) {
    EXPECT_EQ(lchown((home / "sealed").c_str(), nobody, nobody), 0);
    fs::create_directory(home / "ours");
    EXPECT_EQ(run_with_cache(home / "ours", as_nobody), 0) << "a directory of another user";
    EXPECT_TRUE(fs::is_empty(home / "ours"));
  }
  EXPECT_EQ(run_with_cache(home / "sealed", as_nobody), 0) << "a directory that must not be written";
  EXPECT_TRUE(fs::is_empty(home / "sealed"));
}

TEST_F(Faults, AFullOrReadOnlyDiskCostsTheCachingOnly) {
  fs::create_directory(directory);
  const auto small_disk = [&](const char* size) {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("tmpfs", directory.c_str(), "tmpfs", 0, join("mode=0700,size=", size).c_str()) == 0;
  };
  const int full = run_with_cache(directory, [&] { return small_disk("4k"); });
  if (full == 77) GTEST_SKIP() << "no right to mount a small disk";
  EXPECT_EQ(full, 0);
  const auto read_only = [&] {
    return small_disk("64k") &&
           mount(nullptr, directory.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  };
  EXPECT_EQ(run_with_cache(directory, read_only), 0);
}

// ---- libraries ------------------------------------------------------------------------------------------

TEST_F(Faults, ALibraryOfCudaThatIsCutOffIsNamed) {
  const std::string whole = bytes_of(FLEXSN_FAKE_CUDA), path = (home / "libcut.so").string();
  for (const std::string& content : {std::string(), std::string("no library"), whole.substr(0, 100)}) {
    std::ofstream(path, std::ios::binary) << content;
    const Cuda cuda(path, path, Store(""));
    for (int round = 0; round < 2; ++round) {
      try {
        cuda.driver.functions();
        ADD_FAILURE() << "opened";
      } catch (const UserError& error) {
        EXPECT_EQ(std::string(error.what()).find("there is no CUDA driver (" + path + ": "), 0u)
            << error.what();
      }
      try {
        cuda.nvrtc.version();
        ADD_FAILURE() << "opened";
      } catch (const UserError& error) {
        EXPECT_EQ(std::string(error.what()).find("there is no NVRTC (" + path + ": "), 0u) << error.what();
      }
    }
  }
  // One that works in its place is found by the next call.
  const Cuda mended(path, path, Store(""));
  EXPECT_THROW(mended.driver.functions(), UserError);
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << whole;
  EXPECT_GT(mended.driver.device_count(), 0);
  EXPECT_NE(mended.nvrtc.version(), "");
}

// ---- forks ------------------------------------------------------------------------------------------

/// Whether a kernel whose runs are worth several threads gives what `run` gives.
bool large_is_right(const Kernel& kernel, int number) {
  static const Array x(Mem::f32, {steps, 200000}, 0.75);
  static const Array expected = flexsn::run(leaky(number), {.inputs = {{"x", x}}}).outputs.at("z");
  Array z(Mem::f32, x.shape);
  Run run = kernel.bind({steps, {200000}});
  run.in("x", x).out("z", z).inference();
  return z.bytes == expected.bytes;
}

TEST_F(Faults, AProcessForkedAfterUseRunsOldKernelsAndNewOnes) {
  setenv("FLEXSN_CACHE_DIR", directory.c_str(), 1);
  const Kernel kernel = compile(leaky(5), {.threads = 3});
  ASSERT_TRUE(large_is_right(kernel, 5));
  EXPECT_EQ(in_child([&] {
              if (!large_is_right(kernel, 5)) return 1;
              if (!compiled_is_right(6, store())) return 2;
              const Kernel fresh = compile(leaky(5), {.threads = 2});
              return large_is_right(fresh, 5) ? 0 : 3;
            }),
            0);
  EXPECT_TRUE(large_is_right(kernel, 5));
}

}  // namespace
}  // namespace flexsn::test
