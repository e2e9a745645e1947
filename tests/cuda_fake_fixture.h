// CUDA kernels on a driver and an NVRTC that are not there.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "cuda_fake/fake.h"
#include "cuda_kernel.h"
#include "error.h"
#include "train.h"

namespace flexsn::test {

inline const char* const library = FLEXSN_FAKE_CUDA;
inline const Store no_store("");

/// The folder for temporary files, until the end of the scope.
struct TemporaryFolder {
  TemporaryFolder() {
    std::filesystem::create_directory(path);
    setenv("TMPDIR", path.c_str(), 1);
  }
  ~TemporaryFolder() {
    before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);
    std::filesystem::remove_all(path);
  }

  const std::string before = getenv("TMPDIR") == nullptr ? "" : getenv("TMPDIR");
  const std::filesystem::path path = std::filesystem::temp_directory_path() / join("flexsn_texts_", getpid());
};

class CudaFake : public testing::Test {
 protected:
  void SetUp() override {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    const auto find = reinterpret_cast<fake::Fake* (*)()>(dlsym(handle, "flexsn_fake"));
    ASSERT_NE(find, nullptr);
    fake_ = find();
    forget();
  }
  void TearDown() override {
    if (fake_ == nullptr) return;
    EXPECT_EQ(fake_->misuse, "");
    EXPECT_EQ(fake_->modules, 0) << "code that nobody uses is still on a device";
    EXPECT_EQ(fake_->programs, 0);
    EXPECT_TRUE(fake_->memory.empty());
    forget();
  }

  bool has_failed() {
    const std::lock_guard lock(fake_->mutex);
    return fake_->failing.empty();
  }
  /// What is done in the background is done soon.
  static void wait_until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(done());
  }

  void forget() { static_cast<fake::Notes&>(*fake_) = {}; }

  const TemporaryFolder texts_;
  fake::Fake* fake_ = nullptr;
};

template <class Call>
std::string error(const Call& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  } catch (const InternalError& e) {
    return join("internal: ", e.what());
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

inline Plan lif_plan(Kind kind = Kind::inference_final_state) {
  return plan_of(neuron_named("lif").graph(), kind, {});
}

/// A run with all buffers somewhere, as far as launches look at them.
inline PlanRun run_of(const Plan& plan, std::int64_t steps, std::int64_t elements) {
  PlanRun run{.steps = steps, .elements = elements, .buffers = {}};
  std::uint64_t address = 0x10000;
  for (const Buffer& buffer : plan.buffers) {
    Bound bound{.data = reinterpret_cast<void*>(address), .row_stride = elements};
    if (buffer.map == Map::scalar) {
      static const double value = 0.5;
      bound.data = const_cast<double*>(&value);
      bound.host = true;
    }
    run.buffers.push_back(bound);
    address += 0x10000;
  }
  return run;
}

/// The name of the entry that a run takes.
inline std::string entry_of(fake::Fake& state, const Executable& kernel, const PlanRun& run) {
  state.launches.clear();
  kernel.run(run, {});
  return state.launches.size() == 1 ? state.launches[0].function : "not one launch";
}

}  // namespace flexsn::test
