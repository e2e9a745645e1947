// Loads, steps of a segment and the walk through time. What is indexed by a constant stays in registers, so
// loops over the steps of a segment and over a thread's elements are unrolled.
#include "cuda_walk.h"

#include <algorithm>

#include "cuda_lines.h"
#include "cuda_names.h"

namespace flexsn {

using namespace ir;

namespace {

class WalkEmitter {
 public:
  explicit WalkEmitter(const CudaScope& scope) : scope_(scope), plan_(scope.plan) {}

  std::string emit() {
    rows();
    segment();
    walk();
    return lines_.text();
  }

 private:
  // ---- the rows of a segment -------------------------------------------------------------------------

  void rows() {
    lines_.line("// The rows of a segment, as they are in memory.");
    lines_.line("template <int V>");
    lines_.open("struct Rows {");
    for (int i : scope_.rows_read())
      if (scope_.buffer(i).map == Map::scalar)
        lines_.line(cuda_type(scope_.buffer(i).mem), " ", scope_.name(i), "[K];");
      else
        lines_.line(scope_.row_type(scope_.buffer(i).mem), " ", scope_.name(i), "[K];");
    for (const Carry& carry : plan_.rebuilt)
      lines_.line(scope_.row_type(scope_.buffer(carry.first).mem), " ", scope_.name(carry.first), ";");
    lines_.close("};");
    lines_.line("template <int V, bool whole>");
    lines_.open_list("__device__ __forceinline__ void load(",
                     {"const Run& run", "const Thread<V>& thread", "const long long begin",
                      "const long long length", "Rows<V>& rows"},
                     ") {");
    for (const Carry& carry : plan_.rebuilt) load_states(carry);
    if (!scope_.rows_read().empty()) {
      lines_.line(scope_.unrolling());
      lines_.open("for (int k = 0; k < K; ++k)");
      lines_.open("if (whole || k < length) {");
      for (int i : scope_.rows_read()) load_step(i);
      lines_.close();
      lines_.dedent();
    }
    lines_.close();
    lines_.line("template <int V>");
    lines_.open_list(
        "__device__ __forceinline__ void load_segment(",
        {"const Run& run", "const Thread<V>& thread", "const long long segment", "Rows<V>& rows"}, ") {");
    lines_.line("const long long begin = segment * K;");
    lines_.open("if (run.steps - begin >= K)");
    lines_.line("load<V, true>(run, thread, begin, K, rows);");
    lines_.dedent();
    lines_.open("else");
    lines_.line("load<V, false>(run, thread, begin, run.steps - begin, rows);");
    lines_.dedent();
    lines_.close();
    lines_.gap();
  }

  /// Row k of a segment.
  void load_step(int index) {
    const Buffer& b = scope_.buffer(index);
    const std::string row = join("run.", scope_.name(index), ".row(begin + k)");
    const std::string to = join("rows.", scope_.name(index), "[k] = ");
    if (b.map == Map::scalar)
      lines_.line(to, "*", row, ";");
    else if (b.map == Map::indexed)
      lines_.line(to, "flexsn_gather<", cuda_type(b.mem), ", V>(", row, ", thread.", scope_.name(index),
                  "_places);");
    else
      lines_.line(to, "flexsn_load_once<", cuda_type(b.mem), ", V>(", row, " + thread.first);");
  }

  /// The states before a segment: those of the checkpoint after the one before it.
  void load_states(const Carry& carry) {
    const std::string to = join("rows.", scope_.name(carry.first), " = ");
    if (!scope_.has(carry.checkpoint)) return lines_.line(to, scope_.only_row(carry.first), ";");
    const Buffer& b = scope_.buffer(carry.checkpoint);
    internal_check(b.mem == scope_.buffer(carry.first).mem, "a checkpoint has the type of its state");
    lines_.open("if (begin == 0)");
    lines_.line(to, scope_.only_row(carry.first), ";");
    lines_.dedent();
    lines_.open("else");
    lines_.line(to, "flexsn_load_once<", cuda_type(b.mem), ", V>(run.", scope_.name(carry.checkpoint),
                ".row(begin / K - 1) + thread.first);");
    lines_.dedent();
  }

  // ---- the steps of a segment ------------------------------------------------------------------------

  void segment() {
    if (scope_.has_carries()) {
      lines_.line("// What goes from step to step.");
      lines_.line("template <int V>");
      lines_.open("struct Carried {");
      for (std::size_t i = 0; i < scope_.carries.size(); ++i)
        lines_.line(cuda_type(plan_.carries[i].type), " ", scope_.carries[i], "[V];");
      lines_.close("};");
    }
    if (scope_.has_sums()) {
      lines_.line("// Sums over time.");
      lines_.line("template <int V>");
      lines_.open("struct Sums {");
      for (std::size_t i = 0; i < scope_.sums.size(); ++i)
        if (!scope_.sums[i].empty()) lines_.line(cuda_type(plan_.sums[i].type), " ", scope_.sums[i], "[V];");
      lines_.close("};");
    }
    lines_.line("template <int V, bool whole>");
    std::vector<std::string> parameters = {"const Run& run", "const Thread<V>& thread",
                                           "const long long begin", "const long long length",
                                           "const Rows<V>& rows"};
    if (scope_.has_carries()) parameters.push_back("Carried<V>& carried");
    if (scope_.has_sums()) parameters.push_back("Sums<V>& sums");
    lines_.open_list("__device__ __forceinline__ void run_segment(", parameters, ") {");
    if (scope_.rebuild) rebuild_steps();
    lines_.line("// The steps", plan_.reverse ? ", the last one first." : ".");
    lines_.line(scope_.unrolling());
    lines_.open(plan_.reverse ? "for (int k = K - 1; k >= 0; --k)" : "for (int k = 0; k < K; ++k)");
    lines_.open("if (whole || k < length) {");
    steps();
    lines_.close();
    lines_.dedent();
    lines_.close();
    lines_.gap();
  }

  void rebuild_steps() {
    lines_.line("// The states of the segment again, and what its steps keep of them.");
    for (std::size_t i = 0; i < scope_.rebuilt.size(); ++i)
      lines_.line(cuda_type(plan_.rebuilt[i].type), " ", scope_.rebuilt[i], "[V];");
    for (std::size_t i = 0; i < scope_.kept.size(); ++i)
      lines_.line(cuda_type(plan_.kept[i]), " ", scope_.kept[i], "[K][V];");
    lines_.line("#pragma unroll");
    lines_.open("for (int i = 0; i < V; ++i) {");
    for (std::size_t i = 0; i < scope_.rebuilt.size(); ++i) {
      const int first = plan_.rebuilt[i].first;
      lines_.line(scope_.rebuilt[i], "[i] = ",
                  cuda_loaded(scope_.buffer(first).mem, join("rows.", scope_.name(first), ".of[i]")), ";");
    }
    lines_.close();
    lines_.line(scope_.unrolling());
    lines_.open("for (int k = 0; k < K; ++k)");
    lines_.open("if (whole || k < length) {");
    lines_.line("#pragma unroll");
    lines_.open("for (int i = 0; i < V; ++i)");
    call(*scope_.rebuild, *plan_.rebuild, scope_.rebuilt, "");
    lines_.dedent();
    lines_.close();
    lines_.dedent();
  }

  /// The call of a body for step k and element i.
  void call(const CudaBody& cuda, const Body& body, const std::vector<std::string>& carries,
            std::string_view carried) {
    std::vector<std::string> arguments;
    if (!cuda.once.empty()) arguments.push_back(join("thread.", cuda.step, "[i]"));
    if (cuda.reads_step) arguments.push_back("int(unsigned(run.first_step + begin + k))");
    for (int argument : cuda.reads) {
      const Slot& slot = body.arguments[at(argument)];
      if (slot.kind == Slot::Kind::carry) {
        arguments.push_back(join(carried, carries[at(slot.index)], "[i]"));
      } else if (slot.kind == Slot::Kind::keep) {
        arguments.push_back(join(scope_.kept[at(slot.index)], "[k][i]"));
      } else {
        const Buffer& b = scope_.buffer(slot.index);
        arguments.push_back(cuda_loaded(
            b.mem, join("rows.", scope_.name(slot.index), b.map == Map::scalar ? "[k]" : "[k].of[i]")));
      }
    }
    for (int result : cuda.gives) {
      const Slot& slot = body.results[at(result)];
      if (slot.kind == Slot::Kind::carry)
        arguments.push_back(join(carried, carries[at(slot.index)], "[i]"));
      else if (slot.kind == Slot::Kind::keep)
        arguments.push_back(join(scope_.kept[at(slot.index)], "[k][i]"));
      else if (slot.kind == Slot::Kind::sum)
        arguments.push_back(scope_.parts[at(slot.index)]);
      else
        arguments.push_back(is_natural(scope_.buffer(slot.index).mem)
                                ? join(scope_.rows[at(slot.index)], ".of[i]")
                                : scope_.unrounded[at(slot.index)]);
    }
    lines_.list(cuda.step + "(", arguments, ");");
  }

  void steps() {
    std::vector<int> stores;
    for (int result : scope_.step.gives)
      if (plan_.step.results[at(result)].kind == Slot::Kind::store)
        stores.push_back(plan_.step.results[at(result)].index);
    std::vector<std::pair<int, std::size_t>> sequences;
    for (std::size_t i = 0; i < plan_.carries.size(); ++i)
      if (scope_.has(plan_.carries[i].sequence)) sequences.push_back({plan_.carries[i].sequence, i});
    for (int index : stores)
      lines_.line(scope_.row_type(scope_.buffer(index).mem), " ", scope_.rows[at(index)], ";");
    for (const auto& [index, carry] : sequences)
      lines_.line(scope_.row_type(scope_.buffer(index).mem), " ", scope_.rows[at(index)], ";");
    lines_.line("#pragma unroll");
    lines_.open("for (int i = 0; i < V; ++i) {");
    for (std::size_t i = 0; i < plan_.carries.size(); ++i) {
      const int index = plan_.carries[i].add_sequence;
      if (!scope_.has(index)) continue;
      const std::string carry = join("carried.", scope_.carries[i], "[i]");
      const Buffer& b = scope_.buffer(index);
      lines_.line(
          carry, " = ", carry, " + ",
          cuda_loaded(b.mem, join("rows.", scope_.name(index), b.map == Map::scalar ? "[k]" : "[k].of[i]")),
          ";");
    }
    for (int index : stores)
      if (!is_natural(scope_.buffer(index).mem))
        lines_.line(cuda_type(value_type(scope_.buffer(index).mem)), " ", scope_.unrounded[at(index)], ";");
    std::vector<int> sums;
    for (int result : scope_.step.gives)
      if (plan_.step.results[at(result)].kind == Slot::Kind::sum)
        sums.push_back(plan_.step.results[at(result)].index);
    for (int sum : sums) lines_.line(cuda_type(plan_.sums[at(sum)].type), " ", scope_.parts[at(sum)], ";");
    call(scope_.step, plan_.step, scope_.carries, "carried.");
    for (int sum : sums) {
      const std::string to = join("sums.", scope_.sums[at(sum)], "[i]");
      lines_.line(to, " = ", to, " + ", scope_.parts[at(sum)], ";");
    }
    for (int index : stores)
      if (!is_natural(scope_.buffer(index).mem))
        lines_.line(scope_.rows[at(index)],
                    ".of[i] = ", cuda_stored(scope_.buffer(index).mem, scope_.unrounded[at(index)]), ";");
    for (const auto& [index, carry] : sequences)
      lines_.line(scope_.rows[at(index)], ".of[i] = ",
                  cuda_stored(scope_.buffer(index).mem, join("carried.", scope_.carries[carry], "[i]")), ";");
    lines_.close();
    const auto store = [&](int index) {
      lines_.line("flexsn_store(run.", scope_.name(index), ".row(begin + k) + thread.first, ",
                  scope_.rows[at(index)], ");");
    };
    for (int index : stores) store(index);
    for (const auto& [index, carry] : sequences) store(index);
  }

  // ---- the walk through time -------------------------------------------------------------------------

  void walk() {
    lines_.line("// All of time.");
    lines_.line("template <int V, bool ahead>");
    std::vector<std::string> parameters = {"const Run& run", "const long long first"};
    if (scope_.has_sums()) parameters.push_back("Sums<V>& sums");
    lines_.open_list("__device__ __forceinline__ void walk(", parameters, ") {");
    lines_.line("const Thread<V> thread = find_thread<V>(run, first);");
    if (scope_.has_carries()) lines_.line("Carried<V> carried;");
    first_values();
    lines_.line("Rows<V> rows;");
    lines_.open("if (ahead) {");
    walk_ahead();
    lines_.dedent();
    lines_.open("} else {");
    walk_in_turn();
    lines_.close();
    last_values();
    lines_.close();
    lines_.gap();
  }

  void first_values() {
    CudaNames locals{"ahead", "run", "first", "sums", "thread", "carried", "i"};
    std::vector<std::string> firsts(scope_.carries.size());
    for (std::size_t c = 0; c < scope_.carries.size(); ++c) {
      const int index = plan_.carries[c].first;
      if (!scope_.has(index)) continue;
      firsts[c] = locals.add(scope_.name(index));
      lines_.line("const ", scope_.row_type(scope_.buffer(index).mem), " ", firsts[c], " = ",
                  scope_.only_row(index), ";");
    }
    if (!scope_.has_carries() && !scope_.has_sums()) return;
    lines_.line("#pragma unroll");
    lines_.open("for (int i = 0; i < V; ++i) {");
    for (std::size_t c = 0; c < scope_.carries.size(); ++c) {
      const int index = plan_.carries[c].first;
      lines_.line("carried.", scope_.carries[c], "[i] = ",
                  scope_.has(index)
                      ? cuda_loaded(scope_.buffer(index).mem, firsts[c] + ".of[i]")
                      : join("flexsn_nothing<", cuda_type(plan_.carries[c].type), ">(run.steps)"),
                  ";");
    }
    for (std::size_t s = 0; s < scope_.sums.size(); ++s)
      if (!scope_.sums[s].empty())
        lines_.line("sums.", scope_.sums[s], "[i] = flexsn_nothing<", cuda_type(plan_.sums[s].type),
                    ">(run.steps);");
    lines_.close();
  }

  void segment_call(std::string_view form, std::string_view begin, std::string_view length) {
    lines_.line("run_segment<V, ", form, ">(run, thread, ", begin, ", ", length, ", rows",
                scope_.has_carries() ? ", carried" : "", scope_.has_sums() ? ", sums" : "", ");");
  }

  /// The entry for few elements: the rows of the next two segments are on their way while one is computed.
  /// They come in bursts: a thread can wait for a few groups of loads only, not for each load.
  void walk_ahead() {
    lines_.line("const long long segments = (run.steps + K - 1) / K;");
    lines_.line("Rows<V> next, after;");
    const std::string_view first = plan_.reverse ? "segments - 1" : "0";
    const std::string_view second = plan_.reverse ? "segments - 2" : "1";
    lines_.line("if (segments > 0) load_segment(run, thread, ", first, ", rows);");
    lines_.line("if (segments > 1) load_segment(run, thread, ", second, ", next);");
    if (plan_.reverse) {
      lines_.open("for (long long segment = segments - 1; segment >= 0; --segment) {");
      lines_.line("if (segment > 1) load_segment(run, thread, segment - 2, after);");
    } else {
      lines_.open("for (long long segment = 0; segment < segments; ++segment) {");
      lines_.line("if (segment + 2 < segments) load_segment(run, thread, segment + 2, after);");
    }
    lines_.line("const long long begin = segment * K;");
    lines_.open("if (run.steps - begin >= K)");
    segment_call("true", "begin", "K");
    lines_.dedent();
    lines_.open("else");
    segment_call("false", "begin", "run.steps - begin");
    lines_.dedent();
    checkpoints();
    lines_.line("rows = next;");
    lines_.line("next = after;");
    lines_.close();
  }

  /// The entry for many: other threads compute while one waits.
  void walk_in_turn() {
    lines_.line("const long long segments = run.steps / K, rest = run.steps - segments * K;  // whole ones");
    const auto whole_ones = [&] {
      lines_.open(plan_.reverse ? "for (long long segment = segments - 1; segment >= 0; --segment) {"
                                : "for (long long segment = 0; segment < segments; ++segment) {");
      lines_.line("const long long begin = segment * K;");
      lines_.line("load<V, true>(run, thread, begin, K, rows);");
      segment_call("true", "begin", "K");
      checkpoints();
      lines_.close();
    };
    if (!plan_.reverse) whole_ones();
    const auto partial_one = [&](std::string_view length) {
      lines_.line("load<V, false>(run, thread, segments * K, ", length, ", rows);");
      segment_call("false", "segments * K", length);
    };
    if (scope_.segment >= 4) {
      lines_.open("if (rest == K / 2) {  // a constant, so that its loads come first too");
      partial_one("K / 2");
      lines_.dedent();
      lines_.open("} else if (rest > 0) {");
    } else {
      lines_.open("if (rest > 0) {");
    }
    partial_one("rest");
    lines_.close();
    if (plan_.reverse) whole_ones();
  }

  /// A carry as a row in memory.
  void store_carry(std::size_t carry, int index, const std::string& to) {
    const Buffer& b = scope_.buffer(index);
    lines_.open("{");
    lines_.line(scope_.row_type(b.mem), " row;");
    lines_.line("#pragma unroll");
    lines_.line("for (int i = 0; i < V; ++i) row.of[i] = ",
                cuda_stored(b.mem, join("carried.", scope_.carries[carry], "[i]")), ";");
    lines_.line("flexsn_store(", to, ", row);");
    lines_.close();
  }

  void checkpoints() {
    const auto kept = [&](const Carry& carry) { return scope_.has(carry.checkpoint); };
    if (std::none_of(plan_.carries.begin(), plan_.carries.end(), kept)) return;
    lines_.line("// The states from which backward starts again, where more segments follow.");
    lines_.open("if (begin + K < run.steps) {");
    for (std::size_t c = 0; c < plan_.carries.size(); ++c) {
      const int index = plan_.carries[c].checkpoint;
      if (scope_.has(index))
        store_carry(c, index, join("run.", scope_.name(index), ".row(segment) + thread.first"));
    }
    lines_.close();
  }

  void last_values() {
    for (std::size_t c = 0; c < plan_.carries.size(); ++c) {
      const int index = plan_.carries[c].last;
      if (scope_.has(index)) store_carry(c, index, join("run.", scope_.name(index), " + thread.first"));
    }
    if (!scope_.has_sums()) return;
    lines_.open("if (run.partial_sums == 0) {");
    for (std::size_t s = 0; s < scope_.sums.size(); ++s) {
      if (scope_.sums[s].empty()) continue;
      const Buffer& b = scope_.buffer(plan_.sums[s].buffer);
      internal_check(is_natural(b.mem), "a sum is stored as it is");
      lines_.open("{");
      lines_.line(scope_.row_type(b.mem), " row;");
      lines_.line("#pragma unroll");
      lines_.line("for (int i = 0; i < V; ++i) row.of[i] = sums.", scope_.sums[s], "[i];");
      lines_.line("flexsn_store(run.", scope_.sums[s], " + thread.first, row);");
      lines_.close();
    }
    lines_.close();
  }

  const CudaScope& scope_;
  const Plan& plan_;
  CudaLines lines_;
};

}  // namespace

std::string cuda_walk(const CudaScope& scope) { return WalkEmitter(scope).emit(); }

}  // namespace flexsn
