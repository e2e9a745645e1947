// The same kernels for another instruction set: that of the other architecture, linked with a small C program
// and run by an emulator, or an older one of this machine. A kernel function sees nothing but its table of
// streams, so any plan's functions can be run on any memory; what they leave there must be the same, bit for
// bit.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "error.h"
#include "jit.h"
#include "ops.h"
#include "random_graph.h"
#include "train.h"

namespace flexsn::test {
namespace {

using namespace ir;

constexpr std::int64_t steps = 5, blocks = 3;

/// One function and the memory of its streams.
struct Trial {
  std::string what;    ///< for messages
  std::string symbol;  ///< of the function in the other architecture's program
  const LlvmFunction* function = nullptr;
  LlvmCall call = nullptr;
  std::vector<Array> streams = {};  ///< a row for each step
};

struct Kernel {
  LlvmModule module;
  std::optional<Code> code;
};

/// A step that applies one row to its inputs.
Graph step_of_row(Op op, Type t) {
  const Row& row = row_of(op);
  Graph graph;
  graph.name = row.name;
  V operands[max_arity];
  for (int i = 0; i < row.arity; ++i)
    operands[i] = add_argument(
        graph, {.role = Role::input, .name = join("x", i), .mem = natural_memory(operand_type(row, i, t))});
  const V result = apply(op, operands, row.arity);
  graph.results.push_back(
      {.gives = Gives::output, .name = "y", .mem = natural_memory(result.type()), .value = result.id});
  return graph;
}

class Cross : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "flexsn_cross_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  /// Every op and some neurons, for this machine and for `there`.
  void add_all(Isa there) {
    Dice dice(11);
    for (Op op : all_ops()) {
      const Row& row = row_of(op);
      if (row.is_leaf() || row.raw) continue;
      for (Type t : {Type::f32, Type::f64, Type::i32, Type::b1})
        if (row.meaning.sig.types.has(t))
          add(join(row.name, " ", name_of(t)), schedule_inference(step_of_row(op, t), Kind::inference), there,
              dice);
    }
    for (const char* name : {"lif", "plif", "alif", "adex"})
      for (Mem type : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16}) {
        const Training training{.type = type, .saving = Saving::rebuild, .segment = 4};
        const TrainingPlans plans = lower(neuron_named(name).graph(type), training).plans;
        add(join(name, " ", name_of(type), " forward"), plans.forward, there, dice);
        add(join(name, " ", name_of(type), " backward"), plans.backward, there, dice);
      }
  }

  /// Compiles all functions of a plan for both instruction sets.
  void add(const std::string& what, const Plan& plan, Isa there, Dice& dice) {
    const std::vector<bool> present(plan.buffers.size(), true);
    const Isa here = host_isa();
    Kernel& kernel = *kernels_.emplace_back(std::make_unique<Kernel>());
    kernel.module = emit_llvm(plan, present, {.isa = here});
    kernel.code.emplace(compile_object(kernel.module.text, here));
    const std::string prefix = join("k", kernels_.size(), "_");
    std::string text = emit_llvm(plan, present, {.isa = there}).text;
    for (std::size_t at = 0; (at = text.find("@flexsn_", at)) != std::string::npos; at += prefix.size() + 1)
      text.insert(at + 1, prefix);
    const std::string object = join(directory_, "/", prefix, ".o");
    std::ofstream(object, std::ios::binary) << compile_object(text, there);
    objects_ += " " + object;
    const LlvmModule& module = kernel.module;
    add_trial(what, prefix, &module.step, *kernel.code, dice);
    for (const auto* function : {&module.rebuild, &module.step_hoist, &module.rebuild_hoist})
      if (*function) add_trial(what, prefix, &**function, *kernel.code, dice);
  }

  void add_trial(const std::string& what, const std::string& prefix, const LlvmFunction* function,
                 const Code& code, Dice& dice) {
    Trial trial{join(what, ", ", function->name), prefix + function->name, function,
                code.function(function->name)};
    const std::int64_t row = kernels_.back()->module.block * blocks;
    for (const Stream& stream : function->streams) {
      Array values(stream.mem, {steps * row});
      for (std::int64_t n = 0; n < values.size(); ++n) values.set(n, draw(dice));
      trial.streams.push_back(std::move(values));
    }
    rows_.push_back(row);
    trials_.push_back(std::move(trial));
  }

  static double draw(Dice& dice) {
    constexpr double inf = std::numeric_limits<double>::infinity();
    constexpr double edges[] = {0.0,
                                -0.0,
                                1,
                                -1,
                                0.5,
                                1e-40,
                                2147483648,
                                -2147483648,
                                3e38,
                                inf,
                                -inf,
                                65520,
                                6e-8,
                                31,
                                255,
                                1e9,
                                2.5,
                                1e-38,
                                std::numeric_limits<double>::quiet_NaN()};
    return dice.chance(0.1) ? dice.pick(edges) : dice.uniform(-3, 3);
  }

  std::int64_t stride(const Trial& trial, std::size_t index, std::int64_t row) const {
    const Stream& stream = trial.function->streams[index];
    return stream.lead == Lead::once ? 0 : row * static_cast<std::int64_t>(size_of(stream.mem));
  }

  void run_here() {
    for (std::size_t i = 0; i < trials_.size(); ++i) {
      std::vector<StreamPointer> table;
      for (std::size_t s = 0; s < trials_[i].streams.size(); ++s)
        table.push_back({trials_[i].streams[s].bytes.data(), stride(trials_[i], s, rows_[i])});
      trials_[i].call(table.data(), steps, blocks, 7, 100);
    }
  }

  /// Runs `command` in the test's directory.
  void shell(const std::string& command) const {
    const int status = std::system(join("cd ", directory_, " && ", command, " >log 2>&1").c_str());
    std::ifstream log(join(directory_, "/log"));
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << command << "\n"
        << std::string(std::istreambuf_iterator<char>(log), {}).substr(0, 2000);
  }

  /// Writes the memory of all streams as it is before the run, and the program that runs all functions on it.
  void write_program() const {
    std::ofstream memory(join(directory_, "/memory"), std::ios::binary);
    std::string declarations, calls;
    for (std::size_t i = 0; i < trials_.size(); ++i) {
      const Trial& trial = trials_[i];
      declarations += join("void ", trial.symbol, "(struct stream*, long, long, long, long);\n");
      calls += "  {\n";
      std::string table;
      for (std::size_t s = 0; s < trial.streams.size(); ++s) {
        const Array& values = trial.streams[s];
        memory.write(reinterpret_cast<const char*>(values.bytes.data()),
                     static_cast<std::streamsize>(values.bytes.size()));
        calls += join("    char* s", s, " = take(", values.bytes.size(), ");\n");
        table += join(s == 0 ? "" : ", ", "{s", s, ", ", stride(trial, s, rows_[i]), "}");
      }
      calls += join("    struct stream table[] = {", table, "};\n    ", trial.symbol, "(table, ", steps, ", ",
                    blocks, ", 7, 100);\n  }\n");
    }
    std::ofstream(join(directory_, "/main.c"))
        << "#include <stdio.h>\n#include <stdlib.h>\n"
           "struct stream { char* data; long stride; };\n"
        << declarations
        << "static char *memory, *next;\n"
           "static char* take(long size) { char* here = next; next += size; return here; }\n"
           "int main(void) {\n"
           "  FILE* file = fopen(\"memory\", \"rb\");\n  fseek(file, 0, SEEK_END);\n"
           "  long size = ftell(file);\n  rewind(file);\n  next = memory = malloc(size);\n"
           "  if (fread(memory, 1, size, file) != (size_t)size) return 1;\n"
        << calls
        << "  file = fopen(\"after\", \"wb\");\n  fwrite(memory, 1, size, file);\n  return "
           "fclose(file);\n}\n";
  }

  void compare() const {
    std::ifstream after(join(directory_, "/after"), std::ios::binary);
    for (const Trial& trial : trials_)
      for (std::size_t s = 0; s < trial.streams.size(); ++s) {
        const Array& here = trial.streams[s];
        Array there = here;
        after.read(reinterpret_cast<char*>(there.bytes.data()),
                   static_cast<std::streamsize>(there.bytes.size()));
        ASSERT_TRUE(after.good());
        if (here.bytes == there.bytes) continue;
        const bool nan_is_open = here.type == Mem::f32 || here.type == Mem::f64;
        const std::size_t size = size_of(here.type);
        for (std::int64_t n = 0; n < here.size(); ++n) {
          const std::size_t at = static_cast<std::size_t>(n) * size;
          if (std::equal(&here.bytes[at], &here.bytes[at] + size, &there.bytes[at])) continue;
          if (nan_is_open && here[n] != here[n] && there[n] != there[n]) continue;
          ADD_FAILURE() << trial.what << ", stream " << s << " at " << n << ": here " << digits_of(here[n])
                        << ", there " << digits_of(there[n]);
          break;
        }
      }
  }

  std::string directory_, objects_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Trial> trials_;
  std::vector<std::int64_t> rows_;
};

TEST_F(Cross, TheOtherArchitectureGivesTheSameBits) {
  add_all(is_x86(host_isa()) ? Isa::neon : Isa::x86_64_v3);
  write_program();
  // Debian's libm.a for x86-64 is a script that names the archive by the place it would have on such a
  // machine.
  const std::string libm = join("$(ls $(dirname $(", FLEXSN_CROSS_CC,
                                " -print-file-name=libc.a))/libm-*.a 2>/dev/null || echo -lm)");
  ASSERT_NO_FATAL_FAILURE(
      shell(join(FLEXSN_CROSS_CC, " -static main.c", objects_, " ", libm, " -o program")));
  ASSERT_NO_FATAL_FAILURE(shell(join(FLEXSN_QEMU, " -cpu max ./program")));
  run_here();
  compare();
}

TEST_F(Cross, AnOlderInstructionSetGivesTheSameBits) {
  if (host_isa() != Isa::x86_64_v4) GTEST_SKIP() << "this machine has one instruction set for kernels";
  add_all(Isa::x86_64_v3);
  write_program();
  ASSERT_NO_FATAL_FAILURE(shell(join("cc main.c", objects_, " -lm -o program && ./program")));
  run_here();
  compare();
}

}  // namespace
}  // namespace flexsn::test
