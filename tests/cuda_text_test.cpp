// The CUDA text, compiled for the host (cuda_host.h), against the interpreter: the same bits, and not a byte
// outside the buffers.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <functional>

#include <filesystem>
#include <fstream>
#include <thread>

#include "cuda_lines.h"
#include "cuda_modules.h"
#include "cuda_names.h"
#include "ops.h"
#include "plan_case.h"
#include "reduce.h"
#include "train.h"

namespace flexsn::test {
namespace {

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

using namespace ir;

/// Texts compiled into shared objects, which are there while this is.
class HostLibrary {
 public:
  /// One translation unit each; compilers run side by side.
  explicit HostLibrary(const std::vector<std::string>& units) {
    static int count = 0;
    home_ = std::filesystem::temp_directory_path() / join("flexsn_cuda_", getpid(), "_", count++);
    std::filesystem::create_directories(home_);
    std::vector<int> codes(units.size());
    std::vector<std::thread> compilers;
    for (std::size_t i = 0; i < units.size(); ++i) {
      const std::string base = (home_ / join("unit", i)).string();
      std::ofstream(base + ".cpp") << "#include \"" FLEXSN_TESTS_DIR "/cuda_host.h\"\n" << units[i];
      const std::string command = join("\"" FLEXSN_CXX
                                       "\" -std=c++17 -O0 -w -ffp-contract=off -fPIC -shared "
                                       "-fvisibility=hidden \"",
                                       base, ".cpp\" -o \"", base, ".so\" 2> \"", base, ".log\"");
      compilers.emplace_back([command, &code = codes[i]] { code = std::system(command.c_str()); });
    }
    for (std::thread& compiler : compilers) compiler.join();
    for (std::size_t i = 0; i < units.size(); ++i) {
      const std::string base = (home_ / join("unit", i)).string();
      std::ifstream log(base + ".log");
      EXPECT_EQ(codes[i], 0) << std::string(std::istreambuf_iterator<char>(log), {}).substr(0, 4000);
      if (void* handle = dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL)) handles_.push_back(handle);
    }
  }
  HostLibrary(const HostLibrary&) = delete;
  HostLibrary& operator=(const HostLibrary&) = delete;
  ~HostLibrary() {
    for (void* handle : handles_) dlclose(handle);
    std::filesystem::remove_all(home_);
  }

  template <class Function>
  Function* function(const std::string& name) const {
    for (void* handle : handles_)
      if (void* found = dlsym(handle, name.c_str())) return reinterpret_cast<Function*>(found);
    ADD_FAILURE() << name << " was not compiled";
    return nullptr;
  }

 private:
  std::filesystem::path home_;
  std::vector<void*> handles_;
};

using Launch = void(const void* record, long long blocks, unsigned threads, bool waits, bool wide);

/// A module in a namespace of its own, with a function that launches its entries.
std::string as_unit(const CudaModule& module, std::size_t number) {
  std::string defines, undefines;
  for (const char* entry : {"flexsn_wide", "flexsn_narrow"}) {
    defines += join("#define ", entry, " ", entry, "_", number, "\n");
    undefines += join("#undef ", entry, "\n");
  }
  const auto call = [&](const char* entry) {
    return join("[](const void* r) { module_", number, "::", entry, "(*static_cast<const module_", number,
                "::Run*>(r)); }");
  };
  return join(defines, "namespace module_", number, " {\n", module.text(), "}\n",
              "extern \"C\" __attribute__((visibility(\"default\"))) void launch_", number,
              "(const void* record, long long blocks, unsigned threads, bool waits, bool wide) {\n"
              "  cuda_host::Block::Kernel kernel = ",
              call("flexsn_narrow"), ";\n  if (wide) kernel = ", call("flexsn_wide"),
              ";\n  cuda_host::launch(blocks, threads, waits, kernel, record);\n}\n", undefines);
}

/// What an entry takes; a scalar's value is sometimes given instead of its address.
std::vector<std::uint64_t> record_of(const Plan& plan, const CudaModule& module, const PlanRun& run,
                                     bool partial_sums, bool by_value) {
  std::vector<std::uint64_t> record;
  for (const CudaField& field : module.fields) {
    const auto* bound =
        field.buffer == no_buffer ? nullptr : &run.buffers[static_cast<std::size_t>(field.buffer)];
    const auto* buffer =
        field.buffer == no_buffer ? nullptr : &plan.buffers[static_cast<std::size_t>(field.buffer)];
    const bool is_value =
        by_value && buffer != nullptr && buffer->map == Map::scalar && buffer->lead == Lead::once;
    std::uint64_t word = 0;
    switch (field.what) {
      case CudaField::What::steps:
        word = static_cast<std::uint64_t>(run.steps);
        break;
      case CudaField::What::elements:
        word = static_cast<std::uint64_t>(run.elements);
        break;
      case CudaField::What::first_step:
        word = static_cast<std::uint64_t>(run.first_step);
        break;
      case CudaField::What::beyond_cache:
        word = run.elements % 2;  // no bit depends on it
        break;
      case CudaField::What::partial_sums:
        word = partial_sums ? 1 : 0;
        break;
      case CudaField::What::data:
        word = is_value ? 0 : reinterpret_cast<std::uint64_t>(bound->data);
        break;
      case CudaField::What::value:
        if (is_value) std::memcpy(&word, bound->data, size_of(buffer->mem));
        break;
      case CudaField::What::row_stride:
        word = static_cast<std::uint64_t>(bound->row_stride);
        break;
      case CudaField::What::inner:
        word = static_cast<std::uint64_t>(bound->inner);
        break;
      case CudaField::What::count:
        word = static_cast<std::uint64_t>(bound->count);
        break;
    }
    record.push_back(word);
  }
  return record;
}

/// Does the run have what the wide entry needs?
bool is_wide(const Plan& plan, const PlanRun& run, int vector) {
  if (run.elements % vector != 0) return false;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.map != Map::element || run.buffers[i].data == nullptr) continue;
    const std::uint64_t entry = size_of(buffer.mem) * static_cast<std::uint64_t>(vector);
    if (reinterpret_cast<std::uint64_t>(run.buffers[i].data) % entry != 0) return false;
    if (buffer.lead != Lead::once && run.buffers[i].row_stride % vector != 0) return false;
  }
  return true;
}

template <class F>
void sum_blocks(const std::vector<std::byte>& each, std::vector<std::byte>& to, std::int64_t elements,
                std::int64_t block) {
  for (std::int64_t b = 0; b * block < elements; ++b) {
    std::vector<F> values(static_cast<std::size_t>(std::min(block, elements - b * block)));
    std::memcpy(values.data(), each.data() + static_cast<std::size_t>(b * block) * sizeof(F),
                values.size() * sizeof(F));
    const std::int64_t count = static_cast<std::int64_t>(values.size());
    const F sum = reduce(std::move(values), {count}, {})[0];
    std::memcpy(to.data() + static_cast<std::size_t>(b) * sizeof(F), &sum, sizeof(F));
  }
}

/// The kernels of a test, compiled together.
class Kernels {
 public:
  explicit Kernels(std::vector<CudaCase> cases) : cases_(std::move(cases)) {
    std::vector<std::string> units(2);
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      modules_.push_back(cases_[i].module());
      units[i % units.size()] += as_unit(modules_.back(), i);
    }
    library_.emplace(units);
    for (std::size_t i = 0; i < cases_.size(); ++i)
      launches_.push_back(library_->function<Launch>(join("launch_", i)));
  }

  const std::vector<CudaCase>& cases() const { return cases_; }
  int wide_runs() const { return wide_runs_; }
  int sums() const { return sums_; }

  /// Runs a kernel with the guards on both sides, each entry, and sums for each element or each block.
  std::string broken(std::size_t number, const CaseSizes& sizes, std::uint64_t seed) {
    const CudaCase& one = cases_[number];
    const PlanCase trial(one.plan, one.present, sizes, seed);
    const PlanCase::Bytes expected = trial.by_interpreter();
    const bool has_sums = std::any_of(one.plan.sums.begin(), one.plan.sums.end(), [&](const Sum& sum) {
      return one.present[static_cast<std::size_t>(sum.buffer)];
    });
    for (bool wide : {false, true})
      for (bool partial : {false, true}) {
        if (partial && !has_sums) continue;
        const int vector = wide ? one.options.vector : 1;
        const int threads = wide ? one.options.threads : one.options.narrow_threads;
        const std::int64_t block = static_cast<std::int64_t>(vector) * threads;
        bool ran = true;
        const bool at_end = (seed + sizes.elements + wide) % 2 == 0;
        const PlanCase::Bytes found = trial.after(at_end, [&](const PlanRun& run) {
          ran = !wide || is_wide(one.plan, run, vector);
          if (!ran) return;
          const auto record = record_of(one.plan, modules_[number], run, partial, at_end);
          launches_[number](record.data(), (sizes.elements + block - 1) / block,
                            static_cast<unsigned>(threads), partial, wide);
        });
        if (!ran) continue;
        wide_runs_ += wide;
        sums_ += partial;
        const std::string difference =
            trial.difference(partial ? by_blocks(trial, expected, one, block) : expected, found);
        if (!difference.empty())
          return join(one.what, wide ? ", wide, " : ", narrow, ", partial ? "sums of blocks, " : "",
                      difference, "\n", print(one.plan), modules_[number].text());
      }
    return "";
  }

 private:
  static PlanCase::Bytes by_blocks(const PlanCase& trial, PlanCase::Bytes expected, const CudaCase& one,
                                   std::int64_t block) {
    for (const Sum& sum : one.plan.sums) {
      const auto index = static_cast<std::size_t>(sum.buffer);
      if (!one.present[index]) continue;
      const std::vector<std::byte> each = std::exchange(expected[index], trial.before()[index]);
      if (sum.type == Type::f64)
        sum_blocks<double>(each, expected[index], trial.shape().elements, block);
      else
        sum_blocks<float>(each, expected[index], trial.shape().elements, block);
    }
    return expected;
  }

  std::vector<CudaCase> cases_;
  std::vector<CudaModule> modules_;
  std::optional<HostLibrary> library_;
  std::vector<Launch*> launches_;
  int wide_runs_ = 0, sums_ = 0;
};

/// All kernels, numbers of steps around the segment's length and numbers of elements around the vector's.
void run_all(Kernels& kernels, bool many_sizes) {
  for (std::size_t i = 0; i < kernels.cases().size(); ++i) {
    const CudaCase& one = kernels.cases()[i];
    const std::int64_t K = one.segment(), V = one.options.vector;
    std::uint64_t seed = i;
    for (std::int64_t steps :
         {std::int64_t{0}, std::int64_t{1}, K / 2, K - 1, K, K + 1, K + K / 4 + 1, 3 * K + 2, 5 * K - 1}) {
      const std::int64_t elements[] = {1, std::max<std::int64_t>(V - 1, 1), 257, 1003, 64 * V, 4 * V};
      for (std::int64_t n : elements) {
        ++seed;
        if (!many_sizes && n > 64 * V && steps != K + 1) continue;
        const std::int64_t padding = n % V == 0 ? static_cast<std::int64_t>(seed % 2) * V : 1;
        const std::string broken =
            kernels.broken(i, {.steps = steps, .elements = n, .padding = padding}, seed);
        ASSERT_EQ(broken, "");
      }
    }
  }
  EXPECT_GT(kernels.wide_runs(), static_cast<int>(kernels.cases().size()));
}

TEST(CudaText, EveryNeuronHasTheInterpretersBits) {
  Kernels kernels(neuron_cases());
  run_all(kernels, false);
}

TEST(CudaText, EveryTypeAndMapHasTheInterpretersBits) {
  Kernels kernels(type_cases());
  run_all(kernels, true);
  EXPECT_GT(kernels.sums(), 100);
}

TEST(CudaText, OddNeuronsHaveTheInterpretersBits) {
  Kernels kernels(odd_cases());
  run_all(kernels, true);
  EXPECT_GT(kernels.sums(), 100);
}

TEST(CudaText, EveryRowHasTheInterpretersBits) {
  Kernels kernels(row_cases());
  for (std::size_t i = 0; i < kernels.cases().size(); ++i)
    for (std::uint64_t seed = 0; seed < 5; ++seed)
      ASSERT_EQ(kernels.broken(i, {.steps = 5, .elements = 500}, seed), "");
}

/// What a launch function of reduce_unit leaves of `values`.
template <class F>
std::vector<F> launched(const HostLibrary& library, std::string_view entry, const std::vector<F>& values,
                        std::int64_t left, std::array<long long, 3> sizes, std::int64_t blocks) {
  const Guarded from(values.size() * sizeof(F), true);
  const Guarded to(static_cast<std::size_t>(left) * sizeof(F), true);
  std::memcpy(from.data(), values.data(), from.size());
  using Reduce = void(const F*, F*, long long, long long, long long, long long blocks);
  library.function<Reduce>(join("launch_", entry, sizeof(F) == 8 ? "f64" : "f32"))(
      reinterpret_cast<const F*>(from.data()), reinterpret_cast<F*>(to.data()), sizes[0], sizes[1], sizes[2],
      blocks);
  return {reinterpret_cast<const F*>(to.data()), reinterpret_cast<const F*>(to.data() + to.size())};
}

/// [outer, n, inner] summed over n as flexsn_reduce does it, launch after launch, until one row is left.
template <class F>
std::vector<F> reduced_by_text(const HostLibrary& library, std::vector<F> values, std::int64_t outer,
                               std::int64_t n, std::int64_t inner) {
  while (n > 1) {
    const std::int64_t left = (n + cuda_reduce_block - 1) / cuda_reduce_block;
    values = launched(library, "", values, outer * left * inner, {outer, n, inner},
                      cuda_reduce_blocks(outer, n, inner));
    n = left;
  }
  return values;
}

/// The reduce kernels with functions that launch them.
std::string reduce_unit() {
  std::string launches;
  for (const char* entry : {"f32", "f64", "whole_f32", "whole_f64"}) {
    const std::string_view name = entry;
    const char* type = name.ends_with("f32") ? "float" : "double";
    launches += join("extern \"C\" __attribute__((visibility(\"default\"))) void launch_", entry, "(const ",
                     type, "* from, ", type,
                     "* to, long long a, long long b, long long c, long long blocks) {\n"
                     "  struct Arguments { const ",
                     type, "* from; ", type,
                     "* to; long long a, b, c; };\n"
                     "  const Arguments all = {from, to, a, b, c};\n"
                     "  cuda_host::launch(blocks, ",
                     name.starts_with("whole") ? "WHOLE_THREADS" : "THREADS",
                     ", true, [](const void* given) {\n"
                     "    const Arguments& all = *static_cast<const Arguments*>(given);\n    flexsn_reduce_",
                     entry, "(all.from, all.to, all.a, all.b, all.c);\n  }, &all);\n}\n");
  }
  for (const char* type : {"f32", "f64", "f16", "bf16"}) {
    const std::string_view value = std::string_view(type) == "f64" ? "double" : "float";
    const std::string_view entry = type == std::string_view("f32")   ? "float"
                                   : type == std::string_view("f64") ? "double"
                                                                     : "unsigned short";
    launches +=
        join("extern \"C\" __attribute__((visibility(\"default\"))) void store_", type,
             "(const void* from, void* to, long long count) {\n"
             "  struct Arguments { const void* from; void* to; long long count; };\n"
             "  const Arguments all = {from, to, count};\n"
             "  cuda_host::launch((count + THREADS - 1) / THREADS, THREADS, false, [](const void* given) {\n"
             "    const Arguments& a = *static_cast<const Arguments*>(given);\n    flexsn_store_",
             type, "(static_cast<const ", value, "*>(a.from), static_cast<", entry,
             "*>(a.to), a.count);\n  }, &all);\n}\n");
  }
  return emit_cuda_reduce() + launches;
}

template <class F>
std::vector<F> numbers_for_sums(Dice& dice, std::int64_t count) {
  std::vector<F> values(static_cast<std::size_t>(count));
  for (F& value : values) value = static_cast<F>(dice.uniform(-1, 1) * (dice.chance(0.01) ? 1e6 : 1));
  return values;
}

template <class F>
void expect_same_bits(const std::vector<F>& found, const std::vector<F>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(F)), 0) << what;
}

TEST(CudaText, SumsOfParameterGradientsAreThoseOfReduce) {
  struct Sum {
    std::int64_t outer, n, inner;
  };
  const HostLibrary library({reduce_unit()});
  const Sum sums[] = {{1, 2, 1},    {1, 1023, 1}, {1, 1024, 1}, {1, 1025, 1},  {1, 100003, 1}, {3, 5, 1},
                      {1000, 3, 1}, {700, 4, 1},  {2, 7, 3},    {5, 1030, 2},  {1, 2049, 33},  {3, 64, 64},
                      {1, 130, 31}, {2, 9, 100},  {300, 2, 2},  {1, 40000, 5}, {17, 33, 17},   {4, 1024, 9}};
  Dice dice(5);
  const auto compare = [&]<class F>(const Sum& sum, F) {
    const std::vector<F> values = numbers_for_sums<F>(dice, sum.outer * sum.n * sum.inner);
    expect_same_bits(reduced_by_text(library, values, sum.outer, sum.n, sum.inner),
                     reduce(values, {sum.outer, sum.n, sum.inner}, {sum.outer, 1, sum.inner}),
                     join(sum.outer, " x ", sum.n, " x ", sum.inner));
  };
  for (const Sum& sum : sums) {
    compare(sum, float());
    compare(sum, double());
  }
}

TEST(CudaText, WholeSumsAreThoseOfReduce) {
  struct Sum {
    std::int64_t outer, n, inner, tail;
  };
  const HostLibrary library({reduce_unit()});
  const Sum sums[] = {{1, 16384, 1, 1}, {3, 16383, 1, 1}, {1, 1025, 1, 1}, {1, 64, 12, 4}, {2, 33, 7, 5},
                      {1, 1, 3, 2},     {4, 2, 1, 300},   {1, 3, 2, 4096}, {3, 9, 5, 1},   {1, 4, 3, 2049},
                      {2, 4, 5, 16},    {1, 16, 1, 1000}, {1, 16384, 4, 1}};
  Dice dice(7);
  const auto compare = [&]<class F>(const Sum& sum, F) {
    const std::vector<F> values = numbers_for_sums<F>(dice, sum.outer * sum.n * sum.inner * sum.tail);
    ASSERT_TRUE(cuda_reduces_whole(sum.n, sum.inner, sum.tail));
    const std::int64_t results = sum.outer * sum.inner;
    const std::vector<F> tails =
        reduce(values, {sum.outer * sum.n * sum.inner, sum.tail}, {sum.outer * sum.n * sum.inner, 1});
    expect_same_bits(launched(library, "whole_", values, results, {sum.n, sum.inner, sum.tail}, results),
                     reduce(tails, {sum.outer, sum.n, sum.inner}, {sum.outer, 1, sum.inner}),
                     join(sum.outer, " x ", sum.n, " x ", sum.inner, " x ", sum.tail));
  };
  for (const Sum& sum : sums) {
    compare(sum, float());
    compare(sum, double());
  }
  EXPECT_FALSE(cuda_reduces_whole(16385, 1, 1));
  EXPECT_FALSE(cuda_reduces_whole(64, 1, 257));
  EXPECT_FALSE(cuda_reduces_whole(1024, 65, 1));
  EXPECT_FALSE(cuda_reduces_whole(1, 1, std::int64_t{1} << 40));
}

TEST(CudaText, SumsAreRoundedToTheParametersType) {
  const HostLibrary library({reduce_unit()});
  for (Mem mem : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16}) {
    const Type type = value_type(mem);
    Dice dice(6);
    Array values(natural_memory(type), {1000});
    for (std::int64_t n = 0; n < values.size(); ++n) values.set(n, draw_entry(dice, natural_memory(type)));
    Array found(mem, {values.size()}), expected(mem, {values.size()});
    using Store = void(const void*, void*, long long);
    library.function<Store>(join("store_", name_of(mem)))(values.bytes.data(), found.bytes.data(),
                                                          values.size());
    store(mem, values.bytes.data(), expected.bytes.data(), values.size());
    EXPECT_EQ(found.bytes, expected.bytes) << name_of(mem);
  }
}

// ---- the text itself -----------------------------------------------------------------------------------

CudaModule module_of(const Neuron& neuron, Kind kind) {
  const Plan plan = plan_of(neuron.graph(), kind, {.saving = Saving::rebuild, .segment = 8});
  return emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), {});
}

TEST(CudaText, ShowsTheNeuronOneStatementAValue) {
  const Neuron leaky = neuron("leaky", [](Step& s) {
    auto x = s.input("x"), v = s.state("v");
    auto tau = s.param("tau", 2);
    auto decay = 1 - 1 / tau;
    auto h = v * decay + x;
    s.next(v, select(h >= 1, 0.0, h));
    s.output("h", h);
  });
  const std::string shown = R"(// What does not change with time, for one element.
struct leaky_step_values {
  float v1;
};
__device__ __forceinline__ leaky_step_values leaky_step_once(const float tau) {
  const float v0 = flexsn_div(1.0f, tau);
  const float v1 = 1.0f - v0;
  return {v1};
}

// A step for one element.
__device__ __forceinline__ void leaky_step(const leaky_step_values& once, const float v, const float x,
    float& out_h, float& out_v) {
  const float v2 = v * once.v1;
  const float v3 = x + v2;
  const bool v4 = v3 >= 1.0f;
  const float v5 = v4 ? 0.0f : v3;
  out_h = v3;
  out_v = v5;
}
)";
  const std::string text = module_of(leaky, Kind::inference_final_state).text();
  EXPECT_NE(text.find(shown), std::string::npos) << text;
}

TEST(CudaText, ChoicesAreHiddenWhereTheyMayGiveTheOtherZeroAndOnlyThere) {
  const auto hides = [](const std::function<Value(Value)>& core, bool carried = false) {
    const Neuron neuron_of_core = neuron("some", [&](Step& s) {
      auto state = s.state("state");
      auto y = core(s.input("x"));
      s.next(state, carried ? y : state + y);
      s.output("y", y);
    });
    return module_of(neuron_of_core, Kind::inference).text().find("flexsn_hidden(") != std::string::npos;
  };
  const auto spike = [](Value x) { return cast(x > 1, Type::f32); };
  EXPECT_FALSE(hides(spike));
  EXPECT_FALSE(hides([&](Value x) { return x * (1 - spike(x)); }));
  EXPECT_TRUE(hides([&](Value x) { return -spike(x) * x; }));
  EXPECT_TRUE(hides([&](Value x) { return -(1 - spike(x)) * x; }));
  EXPECT_TRUE(hides([](Value x) { return select(x > 4, -0.0, -1.0); }));
  EXPECT_TRUE(hides([](Value x) { return -select(x == 1, x, 0.0); }));
  EXPECT_FALSE(hides([](Value x) { return -select(x == 3, x, 0.0); }));
  EXPECT_FALSE(hides([&](Value x) { return spike(x) * -3; }));
  EXPECT_TRUE(hides(spike, true));  // the next step may negate it
  EXPECT_EQ(module_of(neuron_named("lif"), Kind::inference).text().find("flexsn_hidden"), std::string::npos);
}

TEST(CudaText, HoldsBothEntriesAndCanBeHadWithOne) {
  const CudaModule module = module_of(neuron_named("lif"), Kind::backward);
  EXPECT_TRUE(has(module.text(), cuda_wide) && has(module.text(), cuda_narrow));
  const std::string wide = module.text(module.wide[0]), narrow = module.text(module.narrow[0]);
  EXPECT_TRUE(has(wide, cuda_wide) && !has(wide, cuda_narrow));
  EXPECT_TRUE(has(narrow, cuda_narrow) && !has(narrow, cuda_wide));
}

TEST(CudaText, FewElementsLoadRowsEarlyByTheLengthOfTheSteps) {
  const auto takes_turns = [](const char* neuron, Kind kind) {
    const CudaModule module = module_of(neuron_named(neuron), kind);
    const std::string text = module.text(module.narrow[0]);
    const bool copies = text.find("rows = next;") != text.npos;
    EXPECT_NE(copies, text.find("segments) break;") != text.npos || text.find("< 0) break;") != text.npos);
    return !copies;
  };
  EXPECT_TRUE(takes_turns("lif", Kind::forward));
  EXPECT_TRUE(takes_turns("lif:surrogate=rectangle", Kind::backward));
  EXPECT_FALSE(takes_turns("lif", Kind::backward));
  EXPECT_FALSE(takes_turns("adex", Kind::forward));
}

TEST(CudaText, TheCacheIsToldHowLongRowsAreNeeded) {
  const auto text_of = [](Kind kind) {
    const Plan plan = plan_of(neuron_named("lif").graph(), kind, {.saving = Saving::rebuild, .segment = 8});
    return emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), {}).text();
  };
  for (Kind kind : {Kind::inference, Kind::inference_final_state, Kind::forward}) {
    const std::string text = text_of(kind);
    EXPECT_TRUE(
        has(text, "run.beyond_cache ? flexsn_policy<flexsn_usual>() : flexsn_policy<flexsn_first>()"));
    EXPECT_TRUE(has(text, "flexsn_load_with<float, V>(run.x.row(begin + k) + thread.first, thread.reads)"));
    EXPECT_TRUE(has(text, "flexsn_store_with(run.s.row(begin + k) + thread.first, s, thread.writes)"));
  }
  const std::string backward = text_of(Kind::backward);
  EXPECT_TRUE(has(backward, "flexsn_load_past_l1<float, V>(run.x.row(begin + k) + thread.first)"));
  EXPECT_TRUE(has(backward, "flexsn_store(run.grad_x.row(begin + k) + thread.first, grad_x)"));
  EXPECT_FALSE(has(backward, "beyond_cache"));
}

TEST(CudaText, NoKernelUsesAtomics) {
  for (const CudaCase& one : type_cases())
    EXPECT_EQ(one.module().text().find("atomic"), std::string::npos) << one.what;
}

TEST(CudaText, WhatARunLacksIsNotInTheRecord) {
  const Plan plan =
      plan_of(neuron_named("lif").graph(), Kind::backward, {.saving = Saving::rebuild, .segment = 4});
  for (bool given : {false, true}) {
    std::vector<bool> present(plan.buffers.size(), true);
    int arriving = no_buffer;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
      if (plan.buffers[i].optional) arriving = static_cast<int>(i);
    ASSERT_NE(arriving, no_buffer);
    present[static_cast<std::size_t>(arriving)] = given;
    const CudaModule module = emit_cuda(plan, present, {});
    const CudaField field{CudaField::What::data, arriving};
    EXPECT_EQ(std::count(module.fields.begin(), module.fields.end(), field), given ? 1 : 0);
    EXPECT_EQ(module.text().find("grad_last_v") != std::string::npos, given);
    EXPECT_EQ(module.text().find("flexsn_nothing<float>") == std::string::npos, given);
  }
}

TEST(CudaText, ALongBodyIsALoopOverStepsInsteadOfMuchCode) {
  const auto loops = [](int segment) {
    const Plan plan = plan_of(neuron_named("adex").graph(), Kind::backward,
                              {.saving = Saving::rebuild, .segment = segment});
    const std::string text = emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), {}).text();
    return text.find("#pragma unroll 1\n") != std::string::npos;
  };
  EXPECT_FALSE(loops(4));
  EXPECT_TRUE(loops(64));
}

TEST(CudaText, MoreStepsThanAreLoadedAtOnceKeepWhatBackwardNeedsInSharedMemory) {
  const auto text_of = [](int segment, const CudaOptions& options) {
    const Plan plan =
        plan_of(neuron_named("lif").graph(), Kind::backward, {.saving = Saving::rebuild, .segment = segment});
    return emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), options).text();
  };
  const std::string pieces = text_of(32, {});
  for (const char* part : {"constexpr int K = 32;", "constexpr int P = 8;",
                           "__shared__ Kept<V, threads> kept;", "flexsn_row<float, V> kept_h[K][threads];",
                           "struct Rest", "run_block<2, 128, false>", "run_block<1, 128, true>"})
    EXPECT_TRUE(has(pieces, part)) << part;
  EXPECT_TRUE(has(pieces, "walk<V>(run, first)")) << "the narrow entry loads whole segments";
  EXPECT_TRUE(has(pieces, "if (!is_there) carried = carried_before;")) << "the last of which may be short";
  const std::string one = text_of(32, {.unroll = 1, .early = false});
  EXPECT_FALSE(has(one, "struct Rest")) << "no step is beside pieces of one";
  EXPECT_FALSE(has(one, "run_segment")) << "and no segment runs as a whole";
  EXPECT_FALSE(has(one, "const int count")) << "so none may be short";
  // A block has 48 KiB.
  for (const auto& [segment, options] : {std::pair(8, CudaOptions{}),
                                         {64, CudaOptions{}},
                                         {32, CudaOptions{.threads = 256}},
                                         {128, CudaOptions{.vector = 1, .threads = 32}}}) {
    const std::string whole = text_of(segment, options);
    EXPECT_TRUE(has(whole, join("constexpr int K = ", segment, ";"))) << segment;
    EXPECT_FALSE(has(whole, "__shared__ Kept")) << segment;
    EXPECT_FALSE(has(whole, "constexpr int P")) << segment;
  }
}

TEST(CudaNames, AreLegalAndUsedOnce) {
  CudaNames names{"run"};
  const std::pair<const char*, const char*> wanted[] = {{"x", "x"},
                                                        {"x", "x_2"},
                                                        {"float", "float_"},
                                                        {"float", "float_2"},
                                                        {"run", "run_2"},
                                                        {"τ", "v"},
                                                        {"a b.c", "a_b_c"},
                                                        {"__x_", "x_3"},
                                                        {"9", "v9"},
                                                        {"", "v_2"},
                                                        {"NAN", "NAN_"},
                                                        {"V", "V_"},
                                                        {"flexsn_max", "v_flexsn_max"},
                                                        {"errno", "errno_"},
                                                        {"\n#error", "error"}};
  for (const auto& [name, legal] : wanted) EXPECT_EQ(names.add(name), legal) << name;
  EXPECT_LE(names.add(std::string(100000, 'x')).size(), 60u);
}

TEST(CudaConstants, ReadBackToTheSameBits) {
  Dice dice(7);
  const auto check = [](Type type, std::uint64_t bits) {
    const std::string text = cuda_constant(type, bits);
    const double value = number_of(type, bits);
    if (!std::isfinite(value)) {
      EXPECT_NE(text.find("0x"), std::string::npos) << text;
      return;
    }
    const double found =
        type == Type::f32 ? std::strtof(text.c_str(), nullptr) : std::strtod(text.c_str(), nullptr);
    EXPECT_EQ(bits_of(type, found), bits) << text;
    EXPECT_EQ(text.back() == 'f', type == Type::f32) << text;
  };
  for (int i = 0; i < 20000; ++i) {
    check(Type::f32, dice.next() & 0xffffffffu);
    check(Type::f64, dice.next());
    check(Type::f32, bits_of(Type::f32, dice.below(2000) / 8.0 - 100));
    check(Type::f64, bits_of(Type::f64, dice.below(2000) / 8.0 - 100));
  }
  EXPECT_EQ(cuda_constant(Type::f32, bits_of(Type::f32, 0.1)), "0.1f");
  EXPECT_EQ(cuda_constant(Type::f32, bits_of(Type::f32, 2)), "2.0f");
  EXPECT_EQ(cuda_constant(Type::f64, bits_of(Type::f64, -0.0)), "-0.0");
  EXPECT_EQ(cuda_constant(Type::f64, bits_of(Type::f64, 0.1)), "0x1.999999999999ap-4");
  EXPECT_EQ(cuda_constant(Type::i32, 0x80000000u), "int(0x80000000u)");
  EXPECT_EQ(cuda_constant(Type::b1, 1), "true");
}

constexpr int shards = 2;

class CudaTextRandom : public testing::TestWithParam<int> {};

// FLEXSN_CUDA_RANDOM_GRAPHS says how many graphs are tried; each is compiled, so they are few.
TEST_P(CudaTextRandom, GraphsHaveTheInterpretersBits) {
  constexpr int batch = 40;
  const char* wanted = std::getenv("FLEXSN_CUDA_RANDOM_GRAPHS");
  const int count = wanted ? std::atoi(wanted) : 80;
  for (int first = GetParam() * batch; first < count; first += shards * batch) {
    Kernels kernels(random_cases(static_cast<std::uint64_t>(first), std::min(batch, count - first)));
    run_all(kernels, false);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, CudaTextRandom, testing::Range(0, shards));

}  // namespace
}  // namespace flexsn::test
