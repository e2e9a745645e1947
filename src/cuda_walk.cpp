// Loads, steps of a segment and the walk through time. What is indexed by a constant stays in registers, so
// loops over the steps of a segment and over a thread's elements are unrolled.
#include "cuda_walk.h"

#include <algorithm>

#include "cuda_lines.h"
#include "cuda_names.h"
#include "cuda_shape.h"

namespace flexsn {

using namespace ir;

namespace {

/// Of the steps that a short segment lacks, how many are left out by one branch. With 8, T = 4 took a
/// backward kernel of few elements 2.8 instead of 2.4 us on an H200; a branch for each step would keep the
/// compiler from computing several at once.
constexpr int steps_left_out = 4;

class WalkEmitter {
 public:
  explicit WalkEmitter(const CudaScope& scope) : scope_(scope), plan_(scope.plan) {}

  std::string emit() {
    rows();
    if (scope_.rebuild) rebuild();
    steps();
    if (has_rest()) rest();
    if (has_whole_segments()) {
      segment();
      walk();
    }
    if (scope_.in_pieces()) walk_in_pieces();
    return lines_.text();
  }

 private:
  /// Does an entry run segments at once?
  bool has_whole_segments() const { return !scope_.in_pieces() || scope_.options.early; }
  /// May there be steps beside whole segments, or beside pieces where there are such?
  bool has_rest() const { return scope_.piece > 1; }
  /// Are functions told which of L steps there are? So the last one of long segments may have fewer: with
  /// steps beside whole ones, as of Rest, NVRTC took twice as long for a LIF neuron.
  bool may_be_fewer() const { return scope_.in_pieces() && has_whole_segments(); }
  /// Arguments that say which: all of so many, and those that a function was told.
  std::string all_of(std::string_view steps) const { return may_be_fewer() ? join(", 0, ", steps) : ""; }
  std::string_view those_there() const { return may_be_fewer() ? ", from, count" : ""; }

  // ---- rows ------------------------------------------------------------------------------------------

  void rows() {
    if (may_be_fewer()) {
      lines_.line(
          "// Of L steps there are those from `from` on, a multiple of G, and before `count`, one of");
      lines_.line("// the last G.");
      lines_.line("constexpr int G = ", steps_left_out, ";");
    }
    lines_.line("// The rows of L steps, as they are in memory",
                plan_.rebuilt.empty() ? "." : ", and the states before them where they begin a segment.");
    lines_.line("template <int V, int L>");
    lines_.open("struct Rows {");
    for (int i : scope_.rows_read())
      if (scope_.buffer(i).map == Map::scalar)
        lines_.line(cuda_type(scope_.buffer(i).mem), " ", scope_.name(i), "[L];");
      else
        lines_.line(scope_.row_type(scope_.buffer(i).mem), " ", scope_.name(i), "[L];");
    for (const Carry& carry : plan_.rebuilt)
      lines_.line(scope_.row_type(scope_.buffer(carry.first).mem), " ", scope_.name(carry.first), ";");
    lines_.close("};");
    if (scope_.in_pieces()) return loads_in_pieces();
    load("load", plan_.rebuilt, scope_.rows_read());
    lines_.gap();
  }

  /// A function that loads rows, and states where a segment begins.
  void load(std::string_view name, const std::vector<Carry>& states, const std::vector<int>& rows) {
    steps_function(name, {"Rows<V, L>& rows"});
    if (!states.empty()) {
      lines_.open(segment_begins());
      for (const Carry& carry : states) load_states(carry);
      lines_.close();
    }
    if (!rows.empty()) {
      if (may_be_fewer())
        for (int i : rows)
          lines_.line("const ", cuda_type(scope_.buffer(i).mem), "* ", scope_.pointers[at(i)], " = ",
                      address(i, "begin + from"), ";");
      open_steps();
      for (int i : rows) load_step(i);
      // A step that is not there reads the row before it again.
      if (may_be_fewer()) {
        lines_.open("if (k < L - G || k + 1 < count) {");
        for (int i : rows) lines_.line(scope_.pointers[at(i)], " += run.", scope_.name(i), ".stride;");
        lines_.close();
      }
      close_steps();
    }
    lines_.close();
  }

  /// Has each element an entry of this row, in their order?
  bool is_at_element(int index) const { return scope_.buffer(index).map == Map::element; }

  std::string_view segment_begins() const {
    return may_be_fewer() ? "if (L == K || begin % K == 0) {" : "if (begin % K == 0) {";
  }

  /// The loop over L steps; those that are left out together are passed over. Pieces lack none: with loops in
  /// loops what is beside them would be unrolled too late to be in registers on Blackwell.
  void open_steps(bool last_first = false) {
    if (may_be_fewer()) lines_.line("constexpr int together = L == K ? G : L;");
    lines_.line(scope_.unrolling());
    if (!may_be_fewer())
      return lines_.open(last_first ? "for (int k = L - 1; k >= 0; --k) {" : "for (int k = 0; k < L; ++k) {");
    lines_.open(last_first
                    ? "for (int group = (L - 1) / together * together; group >= 0; group -= together) {"
                    : "for (int group = 0; group < L; group += together) {");
    lines_.line("if (group < from) continue;");
    lines_.line("const int end = group + together < L ? group + together : L;");
    lines_.line(scope_.unrolling());
    lines_.open(last_first ? "for (int k = end - 1; k >= group; --k) {"
                           : "for (int k = group; k < end; ++k) {");
  }
  void close_steps() {
    lines_.close();
    if (may_be_fewer()) lines_.close();
  }

  /// What rebuilding reads is loaded apart from what the steps read after it. A row that both read is kept;
  /// one that is a single value is loaded again.
  void loads_in_pieces() {
    const std::vector<int> first = scope_.rows_read_by(*scope_.rebuild, *plan_.rebuild);
    const std::vector<int> again = scope_.rows_read_by(scope_.step, plan_.step);
    const auto contains = [](const std::vector<int>& list, int i) {
      return std::find(list.begin(), list.end(), i) != list.end();
    };
    std::vector<int> later = scope_.rows_read();
    std::erase_if(later, [&](int i) {
      return contains(first, i) && !(scope_.buffer(i).map == Map::scalar && contains(again, i));
    });
    load("load_to_rebuild", plan_.rebuilt, first);
    load("load_to_run", {}, later);
    if (has_rest() || has_whole_segments()) {
      steps_function("load", {"Rows<V, L>& rows"});
      lines_.line("load_to_rebuild<V, L>(run, thread, begin", those_there(), ", rows);");
      lines_.line("load_to_run<V, L>(run, thread, begin", those_there(), ", rows);");
      lines_.close();
    }
    lines_.gap();
  }

  /// The beginning of a function for L steps from step `begin` on.
  void function(std::string_view name, const std::vector<std::string>& more) {
    std::vector<std::string> parameters = {"const Run& run", "const Thread<V>& thread",
                                           "const long long begin"};
    parameters.insert(parameters.end(), more.begin(), more.end());
    const bool knows_block = std::any_of(more.begin(), more.end(), [](const std::string& one) {
      return one.find("Kept<V, threads>") != one.npos;
    });
    lines_.line("template <int V, int L", knows_block ? ", int threads>" : ">");
    lines_.open_list(join("__device__ __forceinline__ void ", name, "("), parameters, ") {");
  }

  /// The same where there may be fewer of them.
  void steps_function(std::string_view name, std::vector<std::string> more) {
    if (may_be_fewer()) more.insert(more.begin(), {"const int from", "const int count"});
    function(name, more);
  }

  /// What a function that takes steps is given besides rows.
  std::vector<std::string> carried_along() const {
    std::vector<std::string> parameters;
    if (scope_.has_carries()) parameters.push_back("Carried<V>& carried");
    if (scope_.has_sums()) parameters.push_back("Sums<V>& sums");
    return parameters;
  }

  /// A thread's entries of a row from an address on, read and written. Forward the thread was told how the L2
  /// cache is to treat rows; backward was fastest in one way, whatever ran before.
  std::string loaded(Mem mem, std::string_view from) const {
    const std::string_view function = plan_.reverse ? "flexsn_load_past_l1<" : "flexsn_load_with<";
    return join(function, cuda_type(mem), ", V>(", from, plan_.reverse ? ")" : ", thread.reads)");
  }
  std::string stored(std::string_view to, std::string_view row) const {
    return join(plan_.reverse ? "flexsn_store(" : "flexsn_store_with(", to, ", ", row,
                plan_.reverse ? ")" : ", thread.writes)");
  }
  /// Where a thread's entries of a row of a step are.
  std::string address(int index, std::string_view step) const {
    return join("run.", scope_.name(index), ".row(", step, ")",
                is_at_element(index) ? " + thread.first" : "");
  }

  /// The same for step k of a function's: a whole segment goes from row to row, which takes fewer
  /// instructions; pieces have no registers to spare for where they are.
  std::string address_of_step(int index) const {
    const std::string computed = address(index, "begin + k");
    return may_be_fewer() ? join("L == K ? ", scope_.pointers[at(index)], " : ", computed) : computed;
  }

  /// Row k of them.
  void load_step(int index) {
    const Buffer& b = scope_.buffer(index);
    const std::string from = address_of_step(index);
    const std::string to = join("rows.", scope_.name(index), "[k] = ");
    if (b.map == Map::scalar)
      lines_.line(to, may_be_fewer() ? join("*(", from, ")") : join("*", from), ";");
    else if (b.map == Map::indexed)
      lines_.line(to, "flexsn_gather<", cuda_type(b.mem), ", V>(", from, ", thread.", scope_.name(index),
                  "_places);");
    else
      lines_.line(to, loaded(b.mem, from), ";");
  }

  /// The states before a segment: those of the checkpoint after the one before it.
  void load_states(const Carry& carry) {
    const std::string to = join("rows.", scope_.name(carry.first), " = ");
    if (!scope_.has(carry.checkpoint)) return lines_.line(to, scope_.only_row(carry.first), ";");
    const Buffer& b = scope_.buffer(carry.checkpoint);
    internal_check(b.mem == scope_.buffer(carry.first).mem, "a checkpoint has the type of its state");
    const std::string_view start = may_be_fewer() ? "(begin + from)" : "begin";
    lines_.open(may_be_fewer() ? "if (begin + from == 0)" : "if (begin == 0)");
    lines_.line(to, scope_.only_row(carry.first), ";");
    lines_.dedent();
    lines_.open("else");
    lines_.line(to, loaded(b.mem, address(carry.checkpoint, join(start, " / K - 1"))), ";");
    lines_.dedent();
  }

  // ---- steps -----------------------------------------------------------------------------------------

  void rebuild() {
    lines_.line("// States that are rebuilt, and what their steps keep of them.");
    carries_struct("States", plan_.rebuilt, scope_.rebuilt);
    const bool in_pieces = scope_.in_pieces();
    lines_.line(in_pieces ? "template <int V, int threads>" : "template <int V, int L>");
    lines_.open("struct Kept {");
    for (const auto& [name, type] : kept())
      if (in_pieces)
        lines_.line(type, " ", name, "[K][threads];");
      else
        lines_.line(type, " ", name, "[L][V];");
    lines_.close("};");
    steps_function("rebuild", {"const Rows<V, L>& rows", "States<V>& states", join(kept_type(), "& kept")});
    if (!plan_.rebuilt.empty()) {
      lines_.open(segment_begins());
      lines_.line("#pragma unroll");
      lines_.open("for (int i = 0; i < V; ++i) {");
      for (std::size_t i = 0; i < scope_.rebuilt.size(); ++i) {
        const int first = plan_.rebuilt[i].first;
        lines_.line("states.", scope_.rebuilt[i], "[i] = ",
                    cuda_loaded(scope_.buffer(first).mem, join("rows.", scope_.name(first), ".of[i]")), ";");
      }
      lines_.close();
      lines_.close();
    }
    if (in_pieces) kept_place();
    open_steps();
    if (in_pieces)
      for (std::size_t i = 0; i < scope_.kept.size(); ++i)
        lines_.line(kept()[i].second, " ", scope_.kept[i], ";");
    lines_.line("#pragma unroll");
    lines_.open("for (int i = 0; i < V; ++i) {");
    call(*scope_.rebuild, *plan_.rebuild, scope_.rebuilt, "states.");
    if (in_pieces)
      for (std::size_t i = 0; i < scope_.kept.size(); ++i)
        if (plan_.kept[i] != Type::b1)
          lines_.line("if (threads == 1) flexsn_hold(", scope_.kept[i], ".of[i]);");
    lines_.close();
    if (in_pieces) {
      for (const std::string& name : scope_.kept)
        lines_.line("kept.", name, "[place + k][lane] = ", name, ";");
      for (int i : scope_.rows_read())
        if (const std::string& name = scope_.kept_rows[at(i)]; !name.empty())
          lines_.line("kept.", name, "[place + k][lane] = rows.", scope_.name(i), "[k];");
    }
    close_steps();
    lines_.close();
    lines_.gap();
  }

  /// Where a thread keeps its steps: those of pieces in shared memory, by step and thread; a whole segment in
  /// registers of a single thread, so at constant places.
  void kept_place() {
    lines_.line("const int place = L < K ? int(begin % K) : 0;");
    lines_.line("const int lane = threads > 1 ? threadIdx.x : 0;");
  }

  std::string_view kept_type() const { return scope_.in_pieces() ? "Kept<V, threads>" : "Kept<V, L>"; }

  /// Names and types of what is kept of each step: where it lies in shared memory values, and rows that
  /// rebuilding read.
  std::vector<std::pair<std::string, std::string>> kept() const {
    std::vector<std::pair<std::string, std::string>> list;
    for (std::size_t i = 0; i < scope_.kept.size(); ++i) {
      const std::string_view type = cuda_type(plan_.kept[i]);
      list.push_back(
          {scope_.kept[i], scope_.in_pieces() ? join("flexsn_row<", type, ", V>") : std::string(type)});
    }
    for (int i : scope_.rows_read())
      if (const std::string& name = scope_.kept_rows[at(i)]; !name.empty())
        list.push_back({name, scope_.row_type(scope_.buffer(i).mem)});
    return list;
  }

  void steps() {
    if (scope_.has_carries()) {
      lines_.line("// What goes from step to step.");
      carries_struct("Carried", plan_.carries, scope_.carries);
    }
    if (scope_.has_sums()) {
      lines_.line("// Sums over time.");
      lines_.line("template <int V>");
      lines_.open("struct Sums {");
      for (std::size_t i = 0; i < scope_.sums.size(); ++i)
        if (!scope_.sums[i].empty()) lines_.line(cuda_type(plan_.sums[i].type), " ", scope_.sums[i], "[V];");
      lines_.close("};");
    }
    lines_.line("// L steps", plan_.reverse ? ", the last one first." : ".");
    const bool in_pieces = scope_.in_pieces();
    std::vector<std::string> parameters = {"const Rows<V, L>& rows"};
    if (scope_.rebuild) parameters.push_back(join("const ", kept_type(), "& kept"));
    for (const std::string& one : carried_along()) parameters.push_back(one);
    steps_function("run_steps", parameters);
    if (in_pieces) kept_place();
    if (may_be_fewer())
      for (int i : scope_.rows_written())
        lines_.line(cuda_type(scope_.buffer(i).mem), "* ", scope_.pointers[at(i)], " = ",
                    address(i, "begin + L - 1"), ";");
    open_steps(plan_.reverse);
    if (may_be_fewer()) lines_.line("const bool is_there = k <= L - G || k < count;");
    const bool fewer = may_be_fewer() && scope_.has_carries(), sums = may_be_fewer() && scope_.has_sums();
    if (fewer) lines_.line("const Carried<V> carried_before = carried;");
    if (sums) lines_.line("const Sums<V> sums_before = sums;");
    if (in_pieces)
      for (const auto& [name, type] : kept())
        lines_.line("const ", type, " ", name, " = kept.", name, "[place + k][lane];");
    step();
    if (fewer) lines_.line("if (!is_there) carried = carried_before;");
    if (sums) lines_.line("if (!is_there) sums = sums_before;");
    if (may_be_fewer())
      for (int i : scope_.rows_written())
        lines_.line(scope_.pointers[at(i)], " -= run.", scope_.name(i), ".stride;");
    close_steps();
    lines_.close();
    lines_.gap();
  }

  /// What a thread carries of each of its elements.
  void carries_struct(std::string_view name, const std::vector<Carry>& carries,
                      const std::vector<std::string>& names) {
    lines_.line("template <int V>");
    lines_.open(join("struct ", name, " {"));
    for (std::size_t i = 0; i < names.size(); ++i)
      lines_.line(cuda_type(carries[i].type), " ", names[i], "[V];");
    lines_.close("};");
  }

  /// The call of a body for step k and element i.
  void call(const CudaBody& cuda, const Body& body, const std::vector<std::string>& carries,
            std::string_view carried) {
    const auto kept = [&](int index) {
      return join(scope_.in_pieces() ? "" : "kept.", scope_.kept[at(index)],
                  scope_.in_pieces() ? ".of[i]" : "[k][i]");
    };
    const auto row = [&](int index) {
      if (scope_.buffer(index).map == Map::scalar) return join("rows.", scope_.name(index), "[k]");
      const std::string& kept_row = scope_.kept_rows[at(index)];
      return &cuda == &scope_.step && !kept_row.empty() ? kept_row + ".of[i]"
                                                        : join("rows.", scope_.name(index), "[k].of[i]");
    };
    std::vector<std::string> arguments;
    if (!cuda.once.empty()) arguments.push_back(join("thread.", cuda.step, "[i]"));
    if (cuda.reads_step) arguments.push_back("int(unsigned(run.first_step + begin + k))");
    for (int argument : cuda.reads) {
      const Slot& slot = body.arguments[at(argument)];
      if (slot.kind == Slot::Kind::carry) {
        arguments.push_back(join(carried, carries[at(slot.index)], "[i]"));
      } else if (slot.kind == Slot::Kind::keep) {
        arguments.push_back(kept(slot.index));
      } else {
        arguments.push_back(cuda_loaded(scope_.buffer(slot.index).mem, row(slot.index)));
      }
    }
    for (int result : cuda.gives) {
      const Slot& slot = body.results[at(result)];
      if (slot.kind == Slot::Kind::carry)
        arguments.push_back(join(carried, carries[at(slot.index)], "[i]"));
      else if (slot.kind == Slot::Kind::keep)
        arguments.push_back(kept(slot.index));
      else if (slot.kind == Slot::Kind::sum)
        arguments.push_back(scope_.parts[at(slot.index)]);
      else
        arguments.push_back(is_natural(scope_.buffer(slot.index).mem)
                                ? join(scope_.rows[at(slot.index)], ".of[i]")
                                : scope_.unrounded[at(slot.index)]);
    }
    lines_.list(cuda.step + "(", arguments, ");");
  }

  /// Step k of all elements of a thread.
  void step() {
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
      lines_.line(may_be_fewer() ? "if (is_there) " : "",
                  stored(address_of_step(index), scope_.rows[at(index)]), ";");
    };
    for (int index : stores) store(index);
    for (const auto& [index, carry] : sequences) store(index);
  }

  // ---- whole segments --------------------------------------------------------------------------------

  void segment() {
    lines_.line(may_be_fewer() ? "// A segment." : "// A whole segment.");
    lines_.line("template <int V>");
    std::vector<std::string> parameters = {"const Run& run", "const Thread<V>& thread"};
    if (may_be_fewer())
      parameters.insert(parameters.end(), {"const long long begin", "const int from", "const int count"});
    else
      parameters.push_back("const long long segment");
    parameters.push_back("const Rows<V, K>& rows");
    for (const std::string& one : carried_along()) parameters.push_back(one);
    lines_.open_list("__device__ __forceinline__ void run_segment(", parameters, ") {");
    if (!may_be_fewer()) lines_.line("const long long begin = segment * K;");
    if (scope_.rebuild) {
      lines_.line("States<V> states;");
      lines_.line(scope_.in_pieces() ? "Kept<V, 1> kept;" : "Kept<V, K> kept;");
      lines_.line("rebuild<V, K>(run, thread, begin", those_there(), ", rows, states, kept);");
    }
    steps_call("", "K", those_there(), "rows");
    checkpoints();
    lines_.close();
    lines_.gap();
  }

  // ---- steps beside whole segments or pieces ---------------------------------------------------------

  void rest() {
    lines_.line("// Steps beside whole ", scope_.in_pieces() ? "pieces" : "segments",
                ": runs of half as many, a quarter, ... and 1 of them,");
    lines_.line("// whose lengths are constants, so that their loads come first too.");
    lines_.line("template <int V, int L>");
    lines_.open("struct Rest {");
    lines_.line("Rows<V, L> rows;");
    lines_.line("Rest<V, L / 2> less;");
    lines_.close("};");
    lines_.line("template <int V>");
    lines_.line("struct Rest<V, 0> {};");
    function("load_rest", {"const long long rest", "Rest<V, L>& runs"});
    lines_.line("if (rest & L) load<V, L>(run, thread, begin", all_of("L"), ", runs.rows);");
    lines_.open("if constexpr (L > 1)");
    lines_.line("load_rest<V, L / 2>(run, thread, begin + (rest & L), rest, runs.less);");
    lines_.dedent();
    lines_.close();

    const bool in_pieces = scope_.in_pieces();
    std::vector<std::string> parameters = {"const long long rest", "const Rest<V, L>& runs"};
    if (scope_.rebuild) parameters.push_back("States<V>& states");
    if (in_pieces) parameters.push_back(join(kept_type(), "& kept"));
    for (const std::string& one : carried_along()) parameters.push_back(one);
    function("run_rest", parameters);
    if (scope_.rebuild) {
      if (!in_pieces) lines_.line("Kept<V, L> kept;");
      lines_.line("if (rest & L) rebuild<V, L>(run, thread, begin", all_of("L"),
                  ", runs.rows, states, kept);");
    }
    const auto own = [&] { steps_call("if (rest & L) ", "L", all_of("L"), "runs.rows"); };
    if (!plan_.reverse) own();
    lines_.open("if constexpr (L > 1)");
    rest_call("L / 2", "begin + (rest & L)", "runs.less");
    lines_.dedent();
    if (plan_.reverse) own();
    lines_.close();
    lines_.gap();
  }

  /// `before` run_steps<V, length>(...) for those of them that `which` says, which reads `rows`.
  void steps_call(std::string_view before, std::string_view length, std::string_view which,
                  std::string_view rows) {
    lines_.line(before, "run_steps<V, ", length, ">(run, thread, begin", which, ", ", rows,
                scope_.rebuild ? ", kept" : "", carried(), ");");
  }
  void rest_call(std::string_view length, std::string_view begin, std::string_view runs) {
    lines_.line("run_rest<V, ", length, ">(run, thread, ", begin, ", rest, ", runs,
                scope_.rebuild ? ", states" : "", scope_.in_pieces() ? ", kept" : "", carried(), ");");
  }
  std::string carried() const {
    return join(scope_.has_carries() ? ", carried" : "", scope_.has_sums() ? ", sums" : "");
  }

  // ---- the walk through time -------------------------------------------------------------------------

  /// Up to what is carried before the first step.
  void open_walk(std::string_view name, std::string_view knows, const std::vector<std::string>& more) {
    lines_.line("template <int V", knows, ">");
    std::vector<std::string> parameters = {"const Run& run", "const long long first"};
    parameters.insert(parameters.end(), more.begin(), more.end());
    if (scope_.has_sums()) parameters.push_back("Sums<V>& sums");
    lines_.open_list(join("__device__ __forceinline__ void ", name, "("), parameters, ") {");
    lines_.line("const Thread<V> thread = find_thread<V>(run, first);");
    if (scope_.has_carries()) lines_.line("Carried<V> carried;");
    first_values();
  }

  void walk_in_pieces() {
    lines_.line(
        "// All of time in pieces. Those of a segment are rebuilt from the first to the last, then taken");
    lines_.line("// back from the last to the first. The last segment may have fewer",
                scope_.piece > 1 ? ", and steps beside them." : ".");
    open_walk("walk_in_pieces", ", int threads", {join(kept_type(), "& kept")});
    lines_.line("constexpr int P = ", scope_.piece,
                ";  // steps of a piece, whose loads are issued together");
    lines_.line("long long segment = (run.steps + K - 1) / K - 1;");
    lines_.line("int steps = int(run.steps - segment * K);");
    lines_.line("Rows<V, P> rows;");
    lines_.open("for (; segment >= 0; --segment, steps = K) {");
    lines_.line("const long long first_step = segment * K;");
    lines_.line("const int whole = steps / P * P;");
    lines_.line("States<V> states;");
    lines_.line("#pragma unroll 1");
    lines_.open("for (int piece = 0; piece < whole; piece += P) {");
    lines_.line("load_to_rebuild<V, P>(run, thread, first_step + piece", all_of("P"), ", rows);");
    lines_.line("rebuild<V, P>(run, thread, first_step + piece", all_of("P"), ", rows, states, kept);");
    lines_.close();
    if (has_rest()) {
      lines_.line("const int rest = steps % P;");
      lines_.open("if (rest > 0) {");
      lines_.line("Rest<V, P / 2> runs = {};  // or what is not loaded would be alive in the whole loop");
      lines_.line("load_rest<V, P / 2>(run, thread, first_step + whole, rest, runs);");
      rest_call("P / 2", "first_step + whole", "runs");
      lines_.close();
    }
    lines_.line("#pragma unroll 1");
    lines_.open("for (int piece = whole - P; piece >= 0; piece -= P) {");
    lines_.line("load_to_run<V, P>(run, thread, first_step + piece", all_of("P"), ", rows);");
    lines_.line("run_steps<V, P>(run, thread, first_step + piece", all_of("P"), ", rows, kept", carried(),
                ");");
    lines_.close();
    lines_.close();
    last_values();
    lines_.close();
    lines_.gap();
  }

  void walk() {
    if (may_be_fewer()) return walk_in_segments();
    lines_.line("// All of time.");
    open_walk("walk", ", bool ahead", {});
    lines_.line("const long long segments = run.steps / K;  // whole ones");
    if (scope_.segment > 1) {
      lines_.line("const long long rest = run.steps - segments * K;");
      lines_.line("Rest<V, K / 2> runs;");
      if (scope_.rebuild) lines_.line("States<V> states;");
    }
    lines_.line("Rows<V, K> rows;");
    lines_.open("if constexpr (ahead) {");
    walk_ahead();
    lines_.dedent();
    lines_.open("} else {");
    walk_in_turn();
    lines_.close();
    last_values();
    lines_.close();
    lines_.gap();
  }

  /// What the narrow entry does where the other one runs pieces of segments.
  void walk_in_segments() {
    lines_.line(
        "// All of time in segments. The steps of the last one stand at the end of K places, so that those");
    lines_.line("// that are left out together come first and at most G - 1 are missing after them.");
    open_walk("walk", "", {});
    lines_.line("long long segment = (run.steps + K - 1) / K - 1;");
    lines_.line("int from = int((segment + 1) * K - run.steps) / G * G;");
    lines_.line("long long begin = segment * K - from;");
    lines_.line("int count = int(run.steps - begin);");
    lines_.line("Rows<V, K> rows, next;");
    lines_.line("if (segment >= 0) load<V, K>(run, thread, begin, from, count, rows);");
    lines_.open("for (; segment >= 0; --segment) {");
    lines_.line("if (segment > 0) load<V, K>(run, thread, (segment - 1) * K, 0, K, next);");
    lines_.line("run_segment(run, thread, begin, from, count, rows", carried(), ");");
    lines_.line("begin = (segment - 1) * K;");
    lines_.line("from = 0;");
    lines_.line("count = K;");
    lines_.line("rows = next;");
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

  void load_rest() {
    if (scope_.segment > 1) lines_.line("load_rest<V, K / 2>(run, thread, segments * K, rest, runs);");
  }
  void run_rest() {
    if (scope_.segment > 1) rest_call("K / 2", "segments * K", "runs");
  }

  /// The loop over whole segments.
  void open_segments() {
    lines_.open(plan_.reverse ? "for (long long segment = segments - 1; segment >= 0; --segment) {"
                              : "for (long long segment = 0; segment < segments; ++segment) {");
  }
  void segment_call(std::string_view rows) {
    lines_.line("run_segment(run, thread, segment, ", rows, carried(), ");");
  }
  /// The load of the segment that comes `later` than the one that runs.
  void load_later(int later, std::string_view rows) {
    lines_.line(
        plan_.reverse
            ? join("if (segment > ", later - 1, ") load<V, K>(run, thread, (segment - ", later)
            : join("if (segment + ", later, " < segments) load<V, K>(run, thread, (segment + ", later),
        ") * K, ", rows, ");");
  }

  /// The entry for few elements: the rows of later segments are on their way while one is computed.
  void walk_ahead() {
    const bool turns = rows_take_turns(scope_.ops(), scope_.segment);
    lines_.line("Rows<V, K> next;");
    if (plan_.reverse) load_rest();
    for (const auto& [number, rows] : {std::pair(0, "rows"), std::pair(1, "next")})
      if (number == 0 || turns)
        lines_.line("if (segments > ", number, ") load<V, K>(run, thread, ",
                    plan_.reverse ? join("(segments - ", number + 1, ") * K")
                    : number == 0 ? "0"
                                  : "K",
                    ", ", rows, ");");
    if (plan_.reverse) run_rest();
    open_segments();
    if (turns) {
      segment_call("rows");
      load_later(2, "rows");
      lines_.line(plan_.reverse ? "if (--segment < 0) break;" : "if (++segment == segments) break;");
      segment_call("next");
      load_later(2, "next");
    } else {
      load_later(1, "next");
      segment_call("rows");
      lines_.line("rows = next;");
    }
    lines_.close();
    if (!plan_.reverse) beside();
  }

  /// The entry for many: other threads compute while one waits.
  void walk_in_turn() {
    if (plan_.reverse) beside();
    open_segments();
    lines_.line("load<V, K>(run, thread, segment * K, rows);");
    segment_call("rows");
    lines_.close();
    if (!plan_.reverse) beside();
  }

  void beside() {
    load_rest();
    run_rest();
  }

  /// A carry as a row in memory.
  void store_carry(std::size_t carry, int index, const std::string& to) {
    const Buffer& b = scope_.buffer(index);
    lines_.open("{");
    lines_.line(scope_.row_type(b.mem), " row;");
    lines_.line("#pragma unroll");
    lines_.line("for (int i = 0; i < V; ++i) row.of[i] = ",
                cuda_stored(b.mem, join("carried.", scope_.carries[carry], "[i]")), ";");
    lines_.line(stored(to, "row"), ";");
    lines_.close();
  }

  void checkpoints() {
    const auto kept = [&](const Carry& carry) { return scope_.has(carry.checkpoint); };
    if (std::none_of(plan_.carries.begin(), plan_.carries.end(), kept)) return;
    const bool each = scope_.segment == plan_.segment;
    lines_.line("// The states from which backward starts again",
                each ? "" : join(" every ", plan_.segment, " steps"), ", where more ",
                each ? "segments" : "steps", " follow.");
    lines_.open("if (begin + K < run.steps", each ? "" : join(" && (begin + K) % ", plan_.segment, " == 0"),
                ") {");
    const std::string row = each ? "segment" : join("(begin + K) / ", plan_.segment, " - 1");
    for (std::size_t c = 0; c < plan_.carries.size(); ++c) {
      const int index = plan_.carries[c].checkpoint;
      if (scope_.has(index)) store_carry(c, index, address(index, row));
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
      lines_.line(stored(join("run.", scope_.sums[s], " + thread.first"), "row"), ";");
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
