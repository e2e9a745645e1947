#include "triton_kernel.h"

#include <algorithm>

#include "error.h"

namespace flexsn {

using namespace ir;
using What = TritonArgument::What;

namespace {

bool may_be_none(const Buffer& buffer) {
  switch (buffer.holds) {
    case Holds::first_state:
    case Holds::last_state:
      return true;
    case Holds::state_sequence:
      return buffer.write;
    default:
      return buffer.holds >= Holds::grad_output;
  }
}

/// Is it memory of the caller's, whose rows may lie apart?
bool has_stride(const Buffer& buffer) {
  return !buffer.write && buffer.lead == Lead::per_step && buffer.holds != Holds::saved;
}

class KernelEmitter {
 public:
  KernelEmitter(const Plan& plan, std::string name, const std::map<std::string, double>& initial_states)
      : plan_(plan), name_(std::move(name)), initial_states_(initial_states) {}

  TritonKernel emit() {
    name_buffers();
    step_.body = &plan_.step;
    step_.carries = &plan_.carries;
    if (plan_.rebuild) {
      rebuild_.body = &*plan_.rebuild;
      rebuild_.carries = &plan_.rebuilt;
      name_values(rebuild_);
      name_kept();
    }
    name_values(step_);
    if (plan_.rebuild) hoist(rebuild_);
    hoist(step_);
    start();
    if (plan_.rebuild)
      rebuilt_segments();
    else if (!plan_.reverse && plan_.segment > 0)
      segments_with_checkpoints();
    else
      plain_steps();
    finish();
    return {signature() + constants_ + before_ + loop_ + after_, arguments_};
  }

 private:
  /// A body with the names of its values; "" for a constant.
  struct Scope {
    const Body* body = nullptr;
    const std::vector<Carry>* carries = nullptr;
    std::vector<std::string> names = {};
    std::vector<bool> is_still = {};  ///< does not change with time
    /// Gradients that arrive at outputs, by their buffers: without them all a value is not there, unless it
    /// depends on a carried gradient as well, which is always there.
    std::vector<std::set<int>> arriving = {};
    std::vector<bool> is_carried = {};
    std::vector<std::string> carried = {};  ///< names of the carries
  };
  /// Where in the text a body runs.
  struct Place {
    std::string indent;
    std::string row;          ///< the number of the step's row
    std::string mask;         ///< which elements are real
    bool is_guarded = false;  ///< the step may be none of the run's: then nothing may change
  };

  // ---- names --------------------------------------------------------------------------------------------

  void name_buffers() {
    for (const Buffer& buffer : plan_.buffers) {
      const std::string base = python_name(buffer);
      buffers_.push_back(base);
      for (const char* suffix : {"_ptr", "_stride", "_inner", "_count", "_is_scalar", "_entry"})
        names_.take(base + suffix);
    }
  }

  std::string pointer(int buffer) const { return buffers_[buffer] + "_ptr"; }

  void name_values(Scope& scope) {
    const Graph& graph = scope.body->graph;
    const std::size_t count = graph.nodes.size();
    scope.names.resize(count);
    scope.is_still.resize(count);
    scope.arriving.resize(count);
    scope.is_carried.resize(count);
    scope.carried.resize(scope.carries->size());
    for (std::size_t a = 0; a < graph.arguments.size(); ++a) {
      const Slot& slot = scope.body->arguments[a];
      const Id id = graph.arguments[a].value;
      // A parameter that does not change with time is the same value in both bodies.
      if (slot.kind == Slot::Kind::param) {
        std::string& known = params_[slot.index];
        if (known.empty()) known = names_.take(plan_.buffers[slot.index].name);
        scope.names[id] = known;
      } else {
        scope.names[id] = names_.take(graph.arguments[a].name);
      }
      if (slot.kind == Slot::Kind::carry) {
        scope.carried[slot.index] = scope.names[id];
        scope.is_carried[id] = true;
      }
      if (slot.kind == Slot::Kind::load && plan_.buffers[slot.index].holds == Holds::grad_output)
        scope.arriving[id] = {slot.index};
      scope.is_still[id] = slot.kind == Slot::Kind::param;
    }
    for (std::string& name : scope.carried)
      if (name.empty()) name = names_.take("carried");
    for (std::size_t id = 0; id < count; ++id) {
      const Node& node = graph.nodes[id];
      if (node.op == Op::argument) continue;
      scope.is_still[id] = node.op != Op::step_index;
      for (Id operand : node.operands) {
        if (operand == no_id) continue;
        scope.is_still[id] = scope.is_still[id] && scope.is_still[operand];
        scope.is_carried[id] = scope.is_carried[id] || scope.is_carried[operand];
        scope.arriving[id].insert(scope.arriving[operand].begin(), scope.arriving[operand].end());
      }
    }
  }

  void name_kept() {
    kept_.resize(plan_.kept.size());
    for (std::size_t r = 0; r < plan_.rebuild->results.size(); ++r) {
      const Slot& slot = plan_.rebuild->results[r];
      if (slot.kind == Slot::Kind::keep)
        kept_[slot.index] = names_.take("all_" + plan_.rebuild->graph.results[r].name);
    }
  }

  /// A variable with this constant, defined before everything else.
  std::string constant(Type type, std::uint64_t bits) {
    std::string& name = typed_[{type, bits}];
    if (!name.empty()) return name;
    name = names_.take(join("c", typed_.size()));
    constants_ += join("    ", name, " = ", filled(type, bits), "\n");
    return name;
  }

  /// A block of one number.
  static std::string filled(Type type, std::uint64_t bits) { return triton_block("(BLOCK,)", type, bits); }

  TritonOperand operand(const Scope& scope, Id id) const {
    const Node& node = scope.body->graph.at(id);
    return {node.op == Op::constant ? "" : scope.names[id], node.type, node.immediate};
  }

  std::string expression(const Scope& scope, const Node& node) {
    if (node.op == Op::element_index) return "place.to(tl.int32)";
    if (node.op == Op::step_index) {
      uses_step_index_ = true;
      return "tl.broadcast_to(first_step + step, (BLOCK,))";
    }
    std::vector<TritonOperand> operands;
    for (Id id : node.operands)
      if (id != no_id) operands.push_back(operand(scope, id));
    return triton_expression(node.op, operands,
                             [this](Type type, std::uint64_t bits) { return constant(type, bits); });
  }

  /// The value of a node where any expression may stand.
  std::string value(const Scope& scope, Id id) {
    const Node& node = scope.body->graph.at(id);
    return node.op == Op::constant ? constant(node.type, node.immediate) : scope.names[id];
  }

  // ---- memory -------------------------------------------------------------------------------------------

  std::string address(int buffer, const std::string& row) const {
    const Buffer& b = plan_.buffers[buffer];
    if (b.lead == Lead::once) return join(pointer(buffer), " + place");
    return join(pointer(buffer), " + ", row, " * ", has_stride(b) ? buffers_[buffer] + "_stride" : "N",
                " + place");
  }

  std::string load(int buffer, const std::string& row, const std::string& mask) const {
    const Buffer& b = plan_.buffers[buffer];
    if (b.holds != Holds::param)
      return triton_loaded(b.mem, join("tl.load(", address(buffer, row), ", mask=", mask, ")"));
    const std::string& base = buffers_[buffer];
    const std::string from =
        b.lead == Lead::once ? pointer(buffer) : join(pointer(buffer), " + ", row, " * ", base, "_stride");
    const std::string one = triton_loaded(b.mem, join("tl.load(", from, ")"));
    return join("tl.broadcast_to(", one, ", (BLOCK,)) if ", base, "_is_scalar else ",
                triton_loaded(b.mem, join("tl.load(", from, " + ", base, "_entry, mask=", mask, ")")));
  }

  std::string store(int buffer, const std::string& row, const std::string& what,
                    const std::string& mask) const {
    return join("tl.store(", address(buffer, row), ", ", triton_stored(plan_.buffers[buffer].mem, what),
                ", mask=", mask, ")\n");
  }

  /// A line that runs only where the buffer is there.
  std::string where_given(int buffer, const std::string& indent, const std::string& line) const {
    if (!may_be_none(plan_.buffers[buffer])) return indent + line;
    return join(indent, "if ", pointer(buffer), " is not None:\n", indent, "    ", line);
  }

  // ---- gradients that do not arrive ---------------------------------------------------------------------
  // As without_arriving has it, by branches that are decided where a kernel is compiled.

  static bool may_be_absent(const Scope& scope, Id id) {
    return !scope.is_carried[id] && !scope.arriving[id].empty();
  }

  /// "grad_out_s_ptr is not None", of one of them.
  std::string is_there(const std::set<int>& gradients) const {
    std::string text;
    for (int buffer : gradients) text += join(text.empty() ? "" : " or ", pointer(buffer), " is not None");
    return text;
  }

  static std::string branches(const std::string& condition, const std::string& indent,
                              const std::string& then, const std::string& otherwise) {
    if (then == otherwise) return unindented(then);
    return join(indent, "if ", condition, ":\n", then,
                otherwise.empty() ? "" : join(indent, "else:\n", otherwise));
  }
  static std::string unindented(const std::string& lines) {
    std::string text;
    for (std::size_t at = 0, end; at < lines.size(); at = end) {
      end = lines.find('\n', at) + 1;
      text += lines.substr(at + 4, end - at - 4);
    }
    return text;
  }

  /// The lines that give a node its name, for all gradients that may be absent; none where it is absent too.
  /// `decided`: sets of gradients, and whether one of each is there.
  std::string computed(const Scope& scope, Id id, const std::string& name, const std::string& indent,
                       std::map<std::set<int>, bool> decided = {}) {
    const Node& node = scope.body->graph.at(id);
    int present = 0;
    std::vector<Id> missing;
    for (Id operand : node.operands) {
      if (operand == no_id) continue;
      if (!may_be_absent(scope, operand)) {
        present += scope.is_carried[operand];
        continue;
      }
      const std::set<int>& gradients = scope.arriving[operand];
      if (!decided.contains(gradients)) {
        std::map<std::set<int>, bool> with = decided, without = decided;
        with[gradients] = true;
        without[gradients] = false;
        return branches(is_there(gradients), indent, computed(scope, id, name, indent + "    ", with),
                        computed(scope, id, name, indent + "    ", without));
      }
      if (decided.at(gradients))
        ++present;
      else
        missing.push_back(operand);
    }
    if (missing.empty()) return join(indent, name, " = ", expression(scope, node), "\n");
    if (present == 0) return "";
    return join(indent, name, " = ", without(scope, node, missing), "\n");
  }

  /// A node without some of its operands: a sum is its other part, elsewhere the neutral element stands for
  /// them.
  std::string without(const Scope& scope, const Node& node, const std::vector<Id>& missing) {
    const auto use = [this](Type type, std::uint64_t bits) { return constant(type, bits); };
    const auto is_missing = [&](Id id) {
      return std::find(missing.begin(), missing.end(), id) != missing.end();
    };
    if (node.op == Op::add || node.op == Op::sub) {
      const bool first = is_missing(node.operands[0]);
      const Id other = node.operands[first ? 1 : 0];
      return node.op == Op::sub && first ? triton_expression(Op::neg, {operand(scope, other)}, use)
                                         : value(scope, other);
    }
    std::vector<TritonOperand> operands;
    for (Id id : node.operands) {
      if (id == no_id) continue;
      const Type type = scope.body->graph.at(id).type;
      operands.push_back(is_missing(id) ? TritonOperand{"", type, bits_of(type, -0.0)} : operand(scope, id));
    }
    return triton_expression(node.op, operands, use);
  }

  /// What a body gives for a result: nothing that arrives is zero, that no sum can see where it is carried
  /// on.
  std::string result(Scope& scope, std::size_t place, const std::string& indent) {
    const Id id = scope.body->graph.results[place].value;
    const std::string what = value(scope, id);
    if (!may_be_absent(scope, id)) return what;
    const bool is_next = scope.body->results[place].kind == Slot::Kind::carry;
    const Type type = scope.body->graph.at(id).type;
    const std::string name = names_.take(join("given_", what)),
                      zero = constant(type, bits_of(type, is_next ? -0.0 : 0.0));
    loop_ += branches(is_there(scope.arriving[id]), indent, join(indent, "    ", name, " = ", what, "\n"),
                      join(indent, "    ", name, " = ", zero, "\n"));
    return name;
  }

  // ---- before time --------------------------------------------------------------------------------------

  /// What does not change with time; equal expressions of two bodies are one.
  void hoist(Scope& scope) {
    const Graph& graph = scope.body->graph;
    for (std::size_t a = 0; a < graph.arguments.size(); ++a) {
      const Slot& slot = scope.body->arguments[a];
      const bool is_load = slot.kind == Slot::Kind::load || slot.kind == Slot::Kind::param;
      if (!is_load || plan_.buffers[slot.index].holds != Holds::param) continue;
      find_entry(slot.index);
      if (slot.kind == Slot::Kind::param && loaded_.insert(slot.index).second)
        before_ += join("    ", params_[slot.index], " = ", load(slot.index, "", "mask"), "\n");
    }
    for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id) {
      const Node& node = graph.at(id);
      if (!scope.is_still[id] || node.op == Op::constant || node.op == Op::argument) continue;
      const std::string text = expression(scope, node);
      std::string& known = hoisted_[text];
      if (known.empty()) {
        known = names_.take(wish(graph, id));
        before_ += join("    ", known, " = ", text, "\n");
      }
      scope.names[id] = known;
    }
  }

  void find_entry(int buffer) {
    if (!entries_.insert(buffer).second) return;
    const std::string& base = buffers_[buffer];
    before_ += join("    if not ", base, "_is_scalar:\n        ", base, "_entry = (place // ", base,
                    "_inner) % ", base, "_count\n");
  }

  static std::string wish(const Graph& graph, Id id) {
    const std::string& name = graph.debug_at(id).name;
    return name.empty() ? join("t", id) : name;
  }

  void start() {
    for (std::size_t i = 0; i < plan_.carries.size(); ++i) first_value(plan_.carries[i], step_.carried[i]);
    for (std::size_t i = 0; i < plan_.rebuilt.size(); ++i) {
      firsts_.push_back(names_.take(rebuild_.carried[i] + "_first"));
      first_value(plan_.rebuilt[i], firsts_.back());
    }
    for (const Sum& sum : plan_.sums) {
      sums_.push_back(names_.take(buffers_[sum.buffer]));
      before_ += join("    ", sums_.back(), " = ", filled(sum.type, bits_of(sum.type, -0.0)), "\n");
    }
  }

  void first_value(const Carry& carry, const std::string& name) {
    const bool is_state = carry.first != no_buffer && plan_.buffers[carry.first].holds == Holds::first_state;
    const double otherwise = is_state ? initial_states_.at(plan_.buffers[carry.first].name) : -0.0;
    const std::string absent = filled(carry.type, bits_of(carry.type, otherwise));
    if (carry.first == no_buffer) {
      before_ += join("    ", name, " = ", absent, "\n");
      return;
    }
    before_ += join(where_given(carry.first, "    ", join(name, " = ", load(carry.first, "", "mask"), "\n")),
                    "    else:\n        ", name, " = ", absent, "\n");
  }

  // ---- through time -------------------------------------------------------------------------------------

  void plain_steps() {
    loop_ +=
        plan_.reverse ? "    for t in range(T):\n        step = T - 1 - t\n" : "    for step in range(T):\n";
    loop_ += "        row = tl.cast(step, tl.int64)\n";
    run_step({"        ", "row", "mask"});
  }

  void segments_with_checkpoints() {
    loop_ +=
        "    for start in range(0, T, SEGMENT):\n"
        "        for step in range(start, tl.minimum(start + SEGMENT, T)):\n"
        "            row = tl.cast(step, tl.int64)\n";
    run_step({"            ", "row", "mask"});
    loop_ += "        if start + SEGMENT < T:\n            row = tl.cast(start // SEGMENT, tl.int64)\n";
    for (std::size_t i = 0; i < plan_.carries.size(); ++i)
      if (plan_.carries[i].checkpoint != no_buffer)
        loop_ += "            " + store(plan_.carries[i].checkpoint, "row", step_.carried[i], "mask");
  }

  void rebuilt_segments() {
    loop_ +=
        "    segments = (T + SEGMENT - 1) // SEGMENT\n"
        "    for t in range(segments):\n"
        "        segment = segments - 1 - t\n"
        "        start = segment * SEGMENT\n"
        "        # The values of these steps, from the state before them.\n"
        "        later = place < tl.where(segment > 0, N, 0)\n"
        "        row = tl.cast(segment - 1, tl.int64)\n";
    for (std::size_t i = 0; i < plan_.rebuilt.size(); ++i)
      loop_ += join("        ", rebuild_.carried[i], " = tl.where(later, ",
                    load(plan_.rebuilt[i].checkpoint, "row", "later"), ", ", firsts_[i], ")\n");
    for (const std::string& kept : kept_) loop_ += join("        ", kept, " = ()\n");
    // A load does not move up over a store that may be to the same place, so all come before the first.
    for (const Slot& slot : step_.body->arguments)
      if (slot.kind == Slot::Kind::load && plan_.buffers[slot.index].lead == Lead::per_step &&
          !early_.contains(slot.index))
        early_[slot.index] = names_.take("all_" + buffers_[slot.index]);
    for (const auto& [buffer, all] : early_) loop_ += join("        ", all, " = ()\n");
    loop_ +=
        "        for k in tl.static_range(SEGMENT):\n"
        "            step = start + k\n"
        "            row = tl.cast(tl.minimum(step, T - 1), tl.int64)\n";
    run_body(rebuild_, {"            ", "row", "mask"});
    for (const auto& [buffer, all] : early_)
      loop_ += where_given(buffer, "            ",
                           join(all, " = ", all, " + (", load(buffer, "row", "mask"), ",)\n"));
    loop_ +=
        "        # Their gradients, from the last to the first. Steps from T on repeat the last row:\n"
        "        # what they store is overwritten by its own, and they change nothing else.\n"
        "        for k in tl.static_range(SEGMENT):\n"
        "            step = start + (SEGMENT - 1 - k)\n"
        "            live = step < T\n"
        "            row = tl.cast(tl.minimum(step, T - 1), tl.int64)\n";
    run_step({"            ", "row", "mask", true});
  }

  void run_step(const Place& place) {
    for (std::size_t i = 0; i < plan_.carries.size(); ++i) {
      const Carry& carry = plan_.carries[i];
      if (carry.add_sequence == no_buffer) continue;
      const std::string& name = step_.carried[i];
      const std::string sum = join(name, " + ", load(carry.add_sequence, place.row, place.mask));
      loop_ += where_given(carry.add_sequence, place.indent,
                           join(name, " = ", place.is_guarded ? guarded(sum, name) : sum, "\n"));
    }
    run_body(step_, place);
    for (std::size_t i = 0; i < plan_.carries.size(); ++i)
      if (plan_.carries[i].sequence != no_buffer)
        loop_ += where_given(plan_.carries[i].sequence, place.indent,
                             store(plan_.carries[i].sequence, place.row, step_.carried[i], place.mask));
  }

  static std::string guarded(const std::string& changed, const std::string& unchanged) {
    return join("tl.where(live, ", changed, ", ", unchanged, ")");
  }

  void run_body(Scope& scope, const Place& place) {
    const Graph& graph = scope.body->graph;
    for (std::size_t a = 0; a < graph.arguments.size(); ++a) {
      const Slot& slot = scope.body->arguments[a];
      const std::string& name = scope.names[graph.arguments[a].value];
      if (slot.kind == Slot::Kind::keep)
        loop_ += join(place.indent, name, " = ", kept_[slot.index], "[SEGMENT - 1 - k]\n");
      if (slot.kind != Slot::Kind::load) continue;
      const auto early = early_.find(slot.index);
      const bool is_there = place.is_guarded && early != early_.end();
      loop_ += where_given(
          slot.index, place.indent,
          join(name, " = ",
               is_there ? early->second + "[SEGMENT - 1 - k]" : load(slot.index, place.row, place.mask),
               "\n"));
    }
    std::string open;  // the first line of a branch that more lines may be added to
    for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id) {
      const Node& node = graph.at(id);
      if (scope.is_still[id] || node.op == Op::argument) continue;
      scope.names[id] = names_.take(wish(graph, id));
      const std::string lines = computed(scope, id, scope.names[id], place.indent);
      const std::string first = lines.substr(0, lines.find('\n') + 1);
      loop_ += first == open ? lines.substr(first.size()) : lines;
      const bool is_branch =
          may_be_absent(scope, id) && lines.find(place.indent + "else:") == std::string::npos;
      open = is_branch ? first : "";
    }
    write_results(scope, place);
  }

  void write_results(Scope& scope, const Place& place) {
    const Graph& graph = scope.body->graph;
    std::vector<std::string> changed, to;
    for (std::size_t r = 0; r < graph.results.size(); ++r) {
      const Slot& slot = scope.body->results[r];
      const std::string what = result(scope, r, place.indent);
      if (slot.kind == Slot::Kind::store)
        loop_ += where_given(slot.index, place.indent, store(slot.index, place.row, what, place.mask));
      if (slot.kind == Slot::Kind::keep)
        loop_ += join(place.indent, kept_[slot.index], " = ", kept_[slot.index], " + (", what, ",)\n");
      if (slot.kind == Slot::Kind::sum) {
        const std::string& name = sums_[slot.index];
        const std::string sum = join(name, " + ", what);
        loop_ += where_given(plan_.sums[slot.index].buffer, place.indent,
                             join(name, " = ", place.is_guarded ? guarded(sum, name) : sum, "\n"));
      }
      if (slot.kind != Slot::Kind::carry || what == scope.carried[slot.index]) continue;
      to.push_back(scope.carried[slot.index]);
      changed.push_back(place.is_guarded ? guarded(what, to.back()) : what);
    }
    if (to.empty()) return;
    loop_ += place.indent + list_of(to) + " = " + list_of(changed) + "\n";
  }

  static std::string list_of(const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
    return text;
  }

  // ---- after time ---------------------------------------------------------------------------------------

  void finish() {
    for (std::size_t i = 0; i < plan_.carries.size(); ++i)
      if (plan_.carries[i].last != no_buffer)
        after_ += where_given(plan_.carries[i].last, "    ",
                              store(plan_.carries[i].last, "", step_.carried[i], "mask"));
    for (std::size_t i = 0; i < plan_.sums.size(); ++i) {
      const int buffer = plan_.sums[i].buffer;
      const std::string zero = constant(plan_.sums[i].type, bits_of(plan_.sums[i].type, -0.0));
      after_ += join("    if ", pointer(buffer), " is not None:\n        if ", scalar_flag(buffer),
                     ":\n            ", sums_[i], " = flexsn_tree(tl.where(mask, ", sums_[i], ", ", zero,
                     "), 1, BLOCK, LEVELS)\n            tl.store(", pointer(buffer),
                     " + program + tl.arange(0, 1), ", sums_[i], ")\n        else:\n            ",
                     store(buffer, "", sums_[i], "mask"));
    }
  }

  /// Of the parameter that this is the gradient of.
  std::string scalar_flag(int gradient) const { return plan_.buffers[gradient].name + "_is_scalar"; }

  // ---- the head -----------------------------------------------------------------------------------------

  std::string signature() {
    std::vector<std::string> lines;
    std::string line;
    const auto add = [&](What what, const std::string& text, int buffer = no_buffer) {
      arguments_.push_back({what, buffer});
      line += (line.empty() ? "" : ", ") + text;
    };
    const auto end = [&] {
      if (!line.empty()) lines.push_back(line);
      line.clear();
    };
    std::set<std::string> flags;
    for (int b = 0; b < static_cast<int>(plan_.buffers.size()); ++b) {
      const Buffer& buffer = plan_.buffers[b];
      add(What::pointer, pointer(b), b);
      if (has_stride(buffer)) add(What::row_stride, buffers_[b] + "_stride", b);
      if (buffer.holds == Holds::param) {
        add(What::inner, buffers_[b] + "_inner", b);
        add(What::count, buffers_[b] + "_count", b);
        add(What::is_scalar, buffers_[b] + "_is_scalar: tl.constexpr", b);
        flags.insert(buffers_[b]);
      }
      end();
    }
    for (const Sum& sum : plan_.sums)
      if (flags.insert(plan_.buffers[sum.buffer].name).second) {
        add(What::is_scalar, scalar_flag(sum.buffer) + ": tl.constexpr", sum.buffer);
        end();
      }
    add(What::steps, "T");
    add(What::elements, "N");
    if (uses_step_index_) add(What::first_step, "first_step");
    end();
    add(What::block, "BLOCK: tl.constexpr");
    if (!plan_.sums.empty()) add(What::levels, "LEVELS: tl.constexpr");
    if (plan_.segment > 0) add(What::segment, "SEGMENT: tl.constexpr");
    end();
    std::string text = join("@triton.jit(do_not_specialize=[\"T\"",
                            uses_step_index_ ? ", \"first_step\"" : "", "])\ndef ", name_, "(\n");
    for (const std::string& each : lines) text += join("    ", each, ",\n");
    return text +
           "):\n"
           "    program = tl.program_id(0)\n"
           "    place = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)\n"
           "    mask = place < N\n";
  }

  const Plan& plan_;
  const std::string name_;
  const std::map<std::string, double>& initial_states_;
  TritonNames names_;
  std::vector<std::string> buffers_, kept_, firsts_, sums_;
  std::map<int, std::string> params_;
  std::map<std::pair<Type, std::uint64_t>, std::string> typed_;
  std::map<std::string, std::string> hoisted_;
  std::set<int> entries_, loaded_;
  std::map<int, std::string> early_;  ///< rows of a segment that are loaded before its gradients are stored
  Scope step_, rebuild_;
  bool uses_step_index_ = false;
  std::string constants_, before_, loop_, after_;
  std::vector<TritonArgument> arguments_;
};

}  // namespace

std::string python_name(const Buffer& buffer) {
  switch (buffer.holds) {
    case Holds::input:
    case Holds::param:
      return buffer.name;
    case Holds::output:
      return "out_" + buffer.name;
    case Holds::first_state:
      return buffer.name + "_first";
    case Holds::last_state:
      return buffer.name + "_last";
    case Holds::state_sequence:
      return buffer.name + "_sequence";
    case Holds::saved:
      return join("saved_", buffer.index, "_", buffer.name);
    case Holds::checkpoint:
      return buffer.name + "_checkpoints";
    case Holds::grad_output:
      return "grad_out_" + buffer.name;
    case Holds::grad_last_state:
      return join("grad_", buffer.name, "_last");
    case Holds::grad_state_sequence:
      return join("grad_", buffer.name, "_sequence");
    case Holds::grad_first_state:
      return join("grad_", buffer.name, "_first");
    case Holds::grad_input:
    case Holds::grad_param:
      return "grad_" + buffer.name;
  }
  internal_error("unknown buffer", std::source_location::current());
}

TritonKernel emit_triton_kernel(const Plan& plan, const std::string& name,
                                const std::map<std::string, double>& initial_states) {
  return KernelEmitter(plan, name, initial_states).emit();
}

}  // namespace flexsn
