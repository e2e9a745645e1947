// The text from top to bottom: the record of a run, the bodies (cuda_body.h), what a thread knows of its
// elements, its way through time (cuda_walk.h), the two entries.
#include "emit_cuda.h"

#include <algorithm>
#include <bit>

#include "cuda_lines.h"
#include "cuda_names.h"
#include "cuda_prelude.h"
#include "cuda_walk.h"
#include "environment.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::string_view kind_words[] = {"Inference", "Inference up to the last states", "Forward",
                                           "Backward"};

std::string_view words(Holds holds) {
  constexpr std::string_view all[] = {"input",
                                      "state before the first step",
                                      "parameter",
                                      "output",
                                      "states after each step",
                                      "state after the last step",
                                      "what backward needs of each step",
                                      "states between segments",
                                      "gradient of an output",
                                      "gradient of the last state",
                                      "gradients of the states after each step",
                                      "gradient of an input",
                                      "gradient of the first state",
                                      "gradient of a parameter"};
  return all[static_cast<int>(holds)];
}

/// May it be one of CudaScope::kept_rows: read by rebuilding and by the step after it, and more than one
/// value for all elements? A text leaves out what its bodies turn out not to use.
bool is_read_twice(const Plan& plan, int buffer) {
  const Slot load{Slot::Kind::load, buffer};
  const auto reads = [&](const Body& body) {
    return std::find(body.arguments.begin(), body.arguments.end(), load) != body.arguments.end();
  };
  return plan.buffers[at(buffer)].map != Map::scalar && reads(*plan.rebuild) && reads(plan.step);
}

class ModuleEmitter {
 public:
  explicit ModuleEmitter(const CudaScope& scope) : scope_(scope), plan_(scope.plan) {}

  CudaModule emit() {
    CudaModule module;
    module.options = scope_.options;
    record(module.fields);
    if (scope_.rebuild) lines_.append(scope_.rebuild->text);
    lines_.append(scope_.step.text);
    thread();
    lines_.append(cuda_walk(scope_));
    block();
    module.common = intro() + cuda_prelude(lines_.text()) + lines_.text();
    constexpr int most_blocks = 16;  // of a multiprocessor, on every device
    const CudaOptions& options = scope_.options;
    const auto wide = [&](int resident) {
      const std::string comment = options.vector == 1 ? "Many elements"
                                                      : join("Many elements, a multiple of ", options.vector,
                                                             ", as are the starts of their rows");
      return entry(cuda_wide, comment, options.vector, options.threads,
                   std::min(resident / options.threads, most_blocks), "false");
    };
    const auto narrow = [&](int resident, bool early) {
      return entry(cuda_narrow, "Any number of elements, whose rows lie anywhere", 1, options.narrow_threads,
                   resident / options.narrow_threads, early ? "true" : "false");
    };
    module.wide.push_back({wide(options.resident_threads), ""});
    module.narrow.push_back({narrow(options.narrow_resident_threads, options.early), ""});
    if (!options.again_if_spilled) return module;
    // A multiprocessor has 65536 registers, a thread at most 255 of them.
    if (options.early && options.narrow_resident_threads > 256)
      module.narrow.push_back({narrow(256, true), "at most 255 registers"});
    for (const auto& [resident, limit] :
         {std::pair(256, "at most 255 registers"), {512, "at most 128 registers"}}) {
      if (resident != options.resident_threads) module.wide.push_back({wide(resident), limit});
      module.narrow.push_back({narrow(resident, false), join(options.early ? "no early rows, " : "", limit)});
    }
    return module;
  }

 private:
  // ---- the record ------------------------------------------------------------------------------------

  std::string intro() const {
    CudaLines lines;
    lines.line("// ", kind_words[static_cast<int>(plan_.kind)], " of the neuron ", scope_.neuron,
               ", written by flexsn.");
    lines.line("// A thread owns V neighbouring elements for all of time, which runs in segments of K steps",
               plan_.reverse ? ", the last one first." : ".");
    if (plan_.rebuild)
      lines.line("// Each starts from the states of its checkpoint: its steps are rebuilt, then taken back.");
    if (scope_.in_pieces())
      lines.line("// ", scope_.options.early ? "Many elements" : "They",
                 " run in pieces of a segment, which keep what the way back needs in shared memory.");
    lines.line("// The loads of a segment", scope_.in_pieces() ? " or piece" : "",
               " are issued before the first of them is used.");
    lines.gap();
    return lines.text();
  }

  void record(std::vector<CudaField>& fields) {
    using What = CudaField::What;
    lines_.line("constexpr int K = ", scope_.segment, ";  // steps of a segment");
    lines_.gap();
    lines_.line("// What a run is given.");
    lines_.open("struct Run {");
    lines_.line("long long steps, elements;");
    lines_.line("long long first_step;  // the number of step 0");
    fields = {{What::steps}, {What::elements}, {What::first_step}};
    if (!plan_.reverse) {
      lines_.line(
          "long long beyond_cache;  // are its rows much more than the L2 cache holds (1) or not (0)?");
      fields.push_back({What::beyond_cache});
    }
    if (scope_.has_sums()) {
      lines_.line(
          "long long partial_sums;  // of sums over time, one is written for each block (1) or each element "
          "(0)");
      fields.push_back({What::partial_sums});
    }
    for (int i : scope_.touched()) {
      const Buffer& b = scope_.buffer(i);
      fields.push_back({What::data, i});
      const bool has_rows = b.lead != Lead::once;
      if (has_rows) fields.push_back({What::row_stride, i});
      std::string type = join(b.write ? "" : "const ", cuda_type(b.mem));
      if (b.map == Map::indexed) {
        fields.push_back({What::inner, i});
        fields.push_back({What::count, i});
        type = join(has_rows ? "flexsn_indexed_rows<" : "flexsn_indexed<", type, ">");
      } else if (has_rows) {
        type = join("flexsn_rows<", type, ">");
      } else if (b.map == Map::scalar) {
        fields.push_back({What::value, i});
        type = join("flexsn_scalar<", cuda_type(b.mem), ">");
      } else {
        type += "*";
      }
      lines_.line(type, " ", scope_.name(i), ";  // ", name_of(b.mem), ", ", words(b.holds));
    }
    lines_.close("};");
    lines_.gap();
  }

  /// What the L2 cache is to do with rows of a forward run. Read in the usual way they take the place of what
  /// other kernels left there, also of what was written and is not in memory yet: on an H200 2 to 4 % faster
  /// than to let go of them first. But where the cache still has much of them, they then take the place of
  /// outputs, which are read next; a neuron and its reader are up to a tenth faster where those are found.
  void policies() {
    lines_.line(
        "thread.reads = run.beyond_cache ? flexsn_policy<flexsn_usual>() : flexsn_policy<flexsn_first>();");
    lines_.line("thread.writes = flexsn_policy<flexsn_unchanged>();");
  }

  void thread() {
    lines_.line("// What a thread knows of its elements.");
    lines_.line("template <int V>");
    lines_.open("struct Thread {");
    lines_.line("long long first;");
    if (!plan_.reverse) lines_.line("unsigned long long reads, writes;  // of rows, for the L2 cache");
    for (int i : scope_.touched())
      if (scope_.buffer(i).map == Map::indexed) lines_.line("flexsn_places<V> ", scope_.name(i), "_places;");
    for (const auto& [cuda, body] : scope_.bodies())
      if (!cuda->once.empty()) lines_.line(cuda->once_type, " ", cuda->step, "[V];");
    lines_.close("};");
    lines_.line("template <int V>");
    lines_.open("__device__ __forceinline__ Thread<V> find_thread(const Run& run, const long long first) {");
    lines_.line("Thread<V> thread;");
    lines_.line("thread.first = first;");
    if (!plan_.reverse) policies();
    for (int i : scope_.touched())
      if (scope_.buffer(i).map == Map::indexed)
        lines_.line("thread.", scope_.name(i), "_places = flexsn_find<V>(first, run.", scope_.name(i),
                    ".inner, run.", scope_.name(i), ".count);");
    std::vector<std::string> known(plan_.buffers.size());
    CudaNames locals{"run", "first",          "thread",
                     "i",   scope_.step.once, scope_.rebuild ? scope_.rebuild->once : ""};
    for (const auto& [cuda, body] : scope_.bodies())
      for (int argument : cuda->once_reads) {
        const int index = body->arguments[at(argument)].index;
        if (!known[at(index)].empty()) continue;
        known[at(index)] = locals.add(scope_.name(index));
        lines_.line("const ", scope_.row_type(scope_.buffer(index).mem), " ", known[at(index)], " = ",
                    scope_.only_row(index), ";");
      }
    for (const auto& [cuda, body] : scope_.bodies()) {
      if (cuda->once.empty()) continue;
      lines_.line("#pragma unroll");
      std::vector<std::string> arguments;
      if (cuda->once_reads_element) arguments.push_back("int(unsigned(first + i))");
      for (int argument : cuda->once_reads) {
        const int index = body->arguments[at(argument)].index;
        arguments.push_back(cuda_loaded(scope_.buffer(index).mem, join(known[at(index)], ".of[i]")));
      }
      lines_.open("for (int i = 0; i < V; ++i)");
      lines_.list(join("thread.", cuda->step, "[i] = ", cuda->once, "("), arguments, ");");
      lines_.dedent();
    }
    lines_.line("return thread;");
    lines_.close();
    lines_.gap();
  }

  // ---- entries ---------------------------------------------------------------------------------------

  void block() {
    const bool in_pieces = scope_.in_pieces();
    lines_.line("// The elements of a block. `ahead`: rows of later segments are loaded early.");
    lines_.line("template <int V, int threads, bool ahead>");
    lines_.open("__device__ __forceinline__ void run_block(const Run& run) {");
    const std::string_view sums = scope_.has_sums() ? ", sums" : "";
    const auto walk = [&] {
      if (!in_pieces) return lines_.line("if (first < run.elements) walk<V, ahead>(run, first", sums, ");");
      if (scope_.options.early) {
        lines_.open("if constexpr (ahead) {");
        lines_.line("if (first < run.elements) walk<V>(run, first", sums, ");");
        lines_.dedent();
        lines_.open("} else {");
      }
      lines_.line("__shared__ Kept<V, threads> kept;");
      lines_.line("if (first < run.elements) walk_in_pieces<V, threads>(run, first, kept", sums, ");");
      if (scope_.options.early) lines_.close();
    };
    if (plan_.reverse)
      lines_.line("// Backward begins where forward ended: what that read last may still be in a cache.");
    lines_.line("const long long block = ", plan_.reverse ? "gridDim.x - 1 - blockIdx.x" : "blockIdx.x", ";");
    lines_.line("const long long first = (block * threads + threadIdx.x) * V;");
    if (!scope_.has_sums()) {
      walk();
    } else {
      lines_.line("Sums<V> sums;");
      lines_.line("#pragma unroll");
      lines_.open("for (int i = 0; i < V; ++i) {");
      for (std::size_t s = 0; s < scope_.sums.size(); ++s)
        if (!scope_.sums[s].empty())
          lines_.line("sums.", scope_.sums[s],
                      "[i] = ", cuda_constant(plan_.sums[s].type, bits_of(plan_.sums[s].type, -0.0)), ";");
      lines_.close();
      walk();
      lines_.line("if (run.partial_sums == 0) return;");
      for (std::size_t s = 0; s < scope_.sums.size(); ++s) {
        if (scope_.sums[s].empty()) continue;
        const std::string total = scope_.sums[s] + "_total";
        lines_.line("const ", cuda_type(plan_.sums[s].type), " ", total, " = flexsn_block_sum<threads, ", s,
                    ">(flexsn_tree(sums.", scope_.sums[s], "));");
        lines_.line("if (threadIdx.x == 0) run.", scope_.sums[s], "[block] = ", total, ";");
      }
    }
    lines_.close();
    lines_.gap();
  }

  static std::string entry(std::string_view name, std::string_view comment, int vector, int threads,
                           int blocks, std::string_view ahead) {
    CudaLines lines;
    lines.line("// ", comment, ": a block of ", threads, " threads for each ", vector * threads, " of them.");
    const std::string at_once = blocks > 1 ? join(", ", blocks) : "";
    lines.open("extern \"C\" __global__ void __launch_bounds__(", threads, at_once, ") ", name,
               "(const __grid_constant__ Run run) {");
    lines.line("run_block<", vector, ", ", threads, ", ", ahead, ">(run);");
    lines.close();
    return lines.text();
  }

  const CudaScope& scope_;
  const Plan& plan_;
  CudaLines lines_;
};

}  // namespace

std::int64_t cuda_kept_bytes(const Plan& plan, const CudaOptions& options) {
  std::int64_t bytes = 0;
  for (Type type : plan.kept) bytes += type == Type::b1 ? 1 : type == Type::f64 ? 8 : 4;
  for (int b = 0; b < static_cast<int>(plan.buffers.size()); ++b)
    if (plan.rebuild && is_read_twice(plan, b))
      bytes += static_cast<std::int64_t>(size_of(plan.buffers[at(b)].mem));
  return bytes * plan.segment * std::max(options.vector * options.threads, options.narrow_threads);
}

int steps_at_once(const Plan& plan, const CudaOptions& options) {
  // A block has 48 KiB at most, of which the part of a warp of several takes 8 bytes for each sum.
  constexpr std::int64_t most_shared = 48 << 10;
  const int warps = std::max(options.threads, options.narrow_threads) / 32;
  if (plan.segment == 0) return options.unroll;
  if (options.unroll >= plan.segment) return plan.segment;
  const std::int64_t sums = warps > 1 ? static_cast<std::int64_t>(plan.sums.size()) * warps * 8 : 0;
  return plan.rebuild && cuda_kept_bytes(plan, options) + sums > most_shared ? plan.segment : options.unroll;
}

CudaModule emit_cuda(const Plan& plan, const std::vector<bool>& present, const CudaOptions& options) {
  internal_check(present.size() == plan.buffers.size(), "presence is said for each buffer");
  internal_check(options.vector == 1 || options.vector == 2 || options.vector == 4,
                 "a thread owns 1, 2 or 4 elements");
  for (int steps : {plan.segment > 0 ? plan.segment : options.unroll, options.unroll})
    internal_check(std::has_single_bit(unsigned(steps)),
                   "the steps of a segment and a piece are a power of two");
  for (int threads : {options.threads, options.narrow_threads})
    internal_check(std::has_single_bit(unsigned(threads)) && threads <= 1024,
                   "the threads of a block are a power of two");
  const IeeeEnvironment environment;  // constants may be subnormal
  return ModuleEmitter(CudaScope(plan, present, options)).emit();
}

std::string cuda_too_many_fields(const Plan& plan, const CudaModule& module) {
  const std::size_t buffers = plan.buffers.size(), fields = module.fields.size();
  if (fields <= cuda_most_fields) return "";
  return join(
      "a CUDA kernel takes ", cuda_most_fields, " numbers at most, but this one needs ", fields,
      " to find its ", buffers,
      " arrays, which are inputs, states, outputs, parameters, values that are saved, and gradients of "
      "them; use fewer, or target \"cpu\"");
}

std::vector<const char*> cuda_compile_options_of(int nvrtc_major, int nvrtc_minor) {
  std::vector<const char*> options(std::begin(cuda_compile_options), std::end(cuda_compile_options));
  // Leaves out declarations that no kernel uses, whose reading takes time for each text.
  if (std::pair(nvrtc_major, nvrtc_minor) >= std::pair(12, 4)) options.push_back("--minimal");
  return options;
}

}  // namespace flexsn
