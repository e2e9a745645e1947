// Every value of a body belongs to a level: what is the same for all elements and steps of a call is computed
// as a scalar before the loops, what is the same for all elements of a step in the loop over time, the rest
// in the loop over blocks of elements, whose body is one basic block of vector instructions. A block is one
// or two vectors, which are written side by side. All loads of a block come before its stores, so a buffer
// may be updated in place.
#include "llvm_function.h"

#include <algorithm>
#include <set>

#include "error.h"
#include "llvm_lines.h"

namespace flexsn {

using namespace ir;

namespace {

Level level_of(const Stream& stream) {
  if (stream.use != Stream::Use::read || stream.map != Map::scalar) return Level::element;
  return stream.lead == Lead::once ? Level::call : Level::step;
}

class FunctionEmitter {
 public:
  FunctionEmitter(const LlvmTask& task, Width width, const LlvmOptions& options)
      : task_(task),
        width_(width),
        options_(options),
        levels_(levels_of(task)),
        needed_(needed_nodes(task)),
        call_(task.graph->nodes.size()),
        before_(before_text_, names_, 1, options.isa),
        before_splats_(before_text_, names_, width.lanes, options.isa) {}

  std::string text() {
    std::string loops = nest({.steps = width_.steps});
    if (width_.steps > 1) loops += nest({.steps = 1, .is_last = true});
    return join("define void @", task_.name,
                "(ptr %streams, i64 %steps, i64 %blocks, i64 %first_step, i64 %first_element) #0 {\nentry:\n",
                table(), before_text_,
                width_.steps > 1 ? "  %starts = icmp sgt i64 %steps, 1\n"
                                   "  br i1 %starts, label %time, label %last.time\n"
                                 : "  br label %time\n",
                loops, "exit:\n", options_.streaming ? "  call void @llvm.x86.sse.sfence()\n" : "",
                "  ret void\n}\n");
  }

 private:
  /// The loop over elements and, unless it is for the one step that may be left at the end, that over time.
  struct Nest {
    int steps = 1;
    bool is_last = false;
  };
  /// What nodes are in the text: one name for each vector, or that of a scalar.
  struct Names {
    explicit Names(std::size_t nodes) : values(nodes), splats(nodes) {}
    std::vector<std::vector<std::string>> values;
    std::vector<std::string> splats;
  };

  std::string nest(const Nest& what) {
    nest_ = what;
    tag_ = what.is_last ? "last." : "";
    step_text_.clear();
    block_text_.clear();
    steps_.assign(static_cast<std::size_t>(what.steps), Names(task_.graph->nodes.size()));
    addressed_.clear();
    sums_.clear();
    for (k_ = 0; k_ < what.steps; ++k_) one_step();
    return loops();
  }

  void one_step() {
    for (const Reading& reading : task_.readings)
      if (needed_[reading.value]) read(reading);
    for (const Writing& writing : task_.writings)
      if (writing.sum && k_ == 0) load_sum(writing);
    for (Id id = 0; id < static_cast<Id>(needed_.size()); ++id)
      if (needed_[id] && task_.reading_of(id) == nullptr) evaluate(id);
    for (const Writing& writing : task_.writings) write(writing);
  }

  LlvmLines step_lines(int lanes = 1) { return {step_text_, names_, lanes, options_.isa}; }
  LlvmLines block_lines() { return {block_text_, names_, width_.lanes, options_.isa}; }
  bool moves(int stream) const { return task_.streams[stream].lead != Lead::once; }
  std::vector<std::string>& values(Id id) {
    return (levels_[id] == Level::call ? call_ : steps_[static_cast<std::size_t>(k_)]).values[id];
  }

  // ---- streams ---------------------------------------------------------------------------------------

  /// A stream in step `k` of this pass.
  std::string pointer(int stream, int k) const {
    if (!moves(stream)) return join("%s", stream);
    return join("%", tag_, "s", stream, ".", k);
  }
  /// Where vector `v` of this block lies in a stream.
  std::string address(int stream, int v) {
    const bool is_carry_in = task_.streams[stream].use == Stream::Use::carry_in;
    const int k = moves(stream) ? k_ : 0;
    const std::string name = join("%", tag_, "a", stream, ".", k, ".", v);
    if (!addressed_.insert(name).second) return name;
    const std::string element = before_.type(task_.streams[stream].mem);
    const std::string base = is_carry_in ? join("%", tag_, "s", stream, ".in") : pointer(stream, k);
    if (v == 0) {
      block_text_ += join("  ", name, " = getelementptr ", element, ", ptr ", base, ", i64 %", tag_, "n\n");
    } else {
      const std::string first = address(stream, 0);
      block_text_ +=
          join("  ", name, " = getelementptr ", element, ", ptr ", first, ", i64 ", v * width_.lanes, "\n");
    }
    return name;
  }

  void read(const Reading& reading) {
    const Type type = task_.graph->at(reading.value).type;
    const Level level = levels_[reading.value];
    std::vector<std::string>& value = values(reading.value);
    if (level == Level::call && !value.empty()) return;
    if (reading.stream < 0) {
      value = {before_.constant(type, bits_of(type, -0.0))};
      return;
    }
    const Stream& stream = task_.streams[reading.stream];
    const std::string scalar = pointer(reading.stream, k_);
    if (level == Level::call) value = {before_.load(stream.mem, scalar)};
    if (level == Level::step) value = {step_lines().load(stream.mem, scalar)};
    if (level != Level::element) return;
    for (int v = 0; v < width_.vectors; ++v) {
      LlvmLines block = block_lines();
      value.push_back(reading.carry >= 0 && k_ > 0 ? carried(reading.carry, v)
                                                   : block.load(stream.mem, address(reading.stream, v)));
      if (reading.add < 0) continue;
      const std::string added = block.load(task_.streams[reading.add].mem, address(reading.add, v));
      value[v] = block.add(type, value[v], added);
    }
  }

  /// What the step before this one gave to a carry.
  std::string carried(int stream, int v) {
    for (const Writing& writing : task_.writings) {
      if (writing.stream != stream) continue;
      --k_;
      const std::string value = vector_of(writing.value, v);
      ++k_;
      return value;
    }
    internal_error("a carry is not written", std::source_location::current());
  }

  void load_sum(const Writing& writing) {
    for (int v = 0; v < width_.vectors; ++v)
      sums_[{writing.stream, v}] =
          block_lines().load(task_.streams[writing.stream].mem, address(writing.stream, v));
  }

  void write(const Writing& writing) {
    const Stream& stream = task_.streams[writing.stream];
    // What the next step finds in a register need not be in memory before the last one.
    const bool passes_on = k_ + 1 < nest_.steps && !moves(writing.stream);
    for (int v = 0; v < width_.vectors; ++v) {
      std::string value = vector_of(writing.value, v);
      if (writing.sum) {
        std::string& sum = sums_.at({writing.stream, v});
        sum = value = block_lines().add(value_type(stream.mem), sum, value);
      }
      if (!passes_on)
        block_lines().store(stream.mem, value, address(writing.stream, v),
                            options_.streaming && stream.use == Stream::Use::write);
    }
  }

  // ---- values ----------------------------------------------------------------------------------------

  /// Vector `v` of a value in step k_, whatever its level.
  std::string vector_of(Id id, int v) {
    const Level level = levels_[id];
    if (level == Level::element) return values(id)[v];
    const Node& node = task_.graph->at(id);
    if (node.op == Op::constant) return block_lines().constant(node.type, node.immediate);
    if (const Reading* reading = task_.reading_of(id); reading != nullptr && reading->stream < 0)
      return block_lines().constant(node.type, bits_of(node.type, -0.0));
    // A vector of bits that lives across basic blocks would be kept as bytes.
    const bool is_local = node.type == Type::b1;
    Names& names = level == Level::call && !is_local ? call_ : steps_[static_cast<std::size_t>(k_)];
    std::string& splat = names.splats[id];
    if (splat.empty()) {
      LlvmLines lines = is_local               ? block_lines()
                        : level == Level::call ? before_splats_
                                               : step_lines(width_.lanes);
      splat = lines.splat(node.type, values(id)[0]);
    }
    return splat;
  }

  void evaluate(Id id) {
    const Node& node = task_.graph->at(id);
    if (levels_[id] == Level::call && !values(id).empty()) return;
    if (node.op == Op::constant) {
      values(id) = {before_.constant(node.type, node.immediate)};
    } else if (node.op == Op::step_index) {
      values(id) = {join("%", tag_, "step.", k_)};
    } else if (node.op == Op::element_index) {
      number_elements(id);
    } else {
      internal_check(node.op != Op::argument, "an argument of a body has no slot");
      apply(id, node);
    }
  }

  void number_elements(Id id) {
    for (int v = 0; v < width_.vectors; ++v) {
      const std::string first = join("%", tag_, "e", v, ".", k_);
      block_text_ += join("  ", first, " = add i32 %", tag_, "element, ", v * width_.lanes, "\n");
      values(id).push_back(block_lines().count_from(first));
    }
  }

  void apply(Id id, const Node& node) {
    const int arity = row_of(node.op).arity;
    const Level level = levels_[id];
    Type types[max_arity] = {};
    for (int i = 0; i < arity; ++i) types[i] = task_.graph->at(node.operands[i]).type;
    for (int v = 0; v < (level == Level::element ? width_.vectors : 1); ++v) {
      std::string operands[max_arity];
      for (int i = 0; i < arity; ++i)
        operands[i] = level == Level::element ? vector_of(node.operands[i], v) : values(node.operands[i])[0];
      LlvmLines lines = level == Level::element ? block_lines()
                        : level == Level::step  ? step_lines()
                                                : before_;
      values(id).push_back(lines.apply(node.op, node.type, types, operands));
    }
  }

  // ---- the text around -------------------------------------------------------------------------------

  /// The streams, read from the table.
  std::string table() const {
    std::string out;
    for (int s = 0; s < static_cast<int>(task_.streams.size()); ++s) {
      out += join("  %s", s, ".entry = getelementptr %stream, ptr %streams, i64 ", s, "\n  %s", s,
                  moves(s) ? ".first" : "", " = load ptr, ptr %s", s, ".entry\n");
      if (moves(s))
        out += join("  %s", s, ".stride.entry = getelementptr %stream, ptr %streams, i64 ", s,
                    ", i32 1\n  %s", s, ".stride = load i64, ptr %s", s, ".stride.entry\n");
    }
    return join(out, "  %count = mul i64 %blocks, ", width_.lanes * width_.vectors,
                "\n  %first_step.word = trunc i64 %first_step to i32"
                "\n  %first_element.word = trunc i64 %first_element to i32\n");
  }

  /// A phi of what comes from before the loops, and what the loop over time leaves.
  std::string phi(const std::string& name, std::string_view type, const std::string& first,
                  const std::string& next) const {
    return join("  ", name, " = phi ", type, " [", first, ", %entry], [", next,
                nest_.is_last ? ", %done]\n" : ", %next]\n");
  }

  std::string loops() const {
    std::string head = phi(join("%", tag_, "k"), "i64", "0", "%k.next"), next;
    const int latest = width_.steps - 1;  // the step of a pass of the loop over time that ran last
    std::string pointers;
    for (int s = 0; s < static_cast<int>(task_.streams.size()); ++s) {
      if (!moves(s)) continue;
      head += phi(join("%", tag_, "s", s, ".0"), "ptr", join("%s", s, ".first"), join("%s", s, ".next"));
      for (int k = 1; k < nest_.steps; ++k)
        pointers += join("  %", tag_, "s", s, ".", k, " = getelementptr i8, ptr %", tag_, "s", s, ".", k - 1,
                         ", i64 %s", s, ".stride\n");
      next += join("  %s", s, ".next = getelementptr i8, ptr %s", s, ".", latest, ", i64 %s", s, ".stride\n");
    }
    for (const Reading& reading : task_.readings)
      if (reading.carry >= 0)
        head +=
            phi(join("%", tag_, "s", reading.stream, ".in"), "ptr", join("%s", reading.stream),
                moves(reading.carry) ? join("%s", reading.carry, ".", latest) : join("%s", reading.carry));
    pointers +=
        join("  %", tag_, "k.word = trunc i64 %", tag_, "k to i32\n  %", tag_,
             "step.0 = ", task_.reverse ? "sub" : "add", " i32 %first_step.word, %", tag_, "k.word\n");
    for (int k = 1; k < nest_.steps; ++k)
      pointers +=
          join("  %", tag_, "step.", k, " = add i32 %", tag_, "step.0, ", task_.reverse ? -k : k, "\n");
    const std::string after = nest_.is_last ? "exit" : "next";
    std::string out =
        join(tag_, "time:\n", head, pointers, step_text_, "  br label %", tag_, "elements\n", tag_,
             "elements:\n  %", tag_, "n = phi i64 [0, %", tag_, "time], [%", tag_, "n.next, %", tag_,
             "elements]\n  %", tag_, "n.word = trunc i64 %", tag_, "n to i32\n  %", tag_,
             "element = add i32 %first_element.word, %", tag_, "n.word\n", block_text_, "  %", tag_,
             "n.next = add nuw nsw i64 %", tag_, "n, ", width_.lanes * width_.vectors, "\n  %", tag_,
             "n.more = icmp slt i64 %", tag_, "n.next, %count\n  br i1 %", tag_, "n.more, label %", tag_,
             "elements, label %", after, "\n");
    if (nest_.is_last) return out;
    out += join("next:\n", next, "  %k.next = add nuw nsw i64 %k, ", nest_.steps, "\n");
    if (nest_.steps == 1)
      return out + "  %k.more = icmp slt i64 %k.next, %steps\n  br i1 %k.more, label %time, label %exit\n";
    return out +
           "  %k.left = sub i64 %steps, %k.next\n  %k.more = icmp sgt i64 %k.left, 1\n"
           "  br i1 %k.more, label %time, label %done\ndone:\n"
           "  %k.odd = icmp eq i64 %k.left, 1\n  br i1 %k.odd, label %last.time, label %exit\n";
  }

  const LlvmTask& task_;
  const Width width_;
  const LlvmOptions options_;
  const std::vector<Level> levels_;
  const std::vector<bool> needed_;
  int names_ = 0;
  std::string before_text_;
  Names call_;
  LlvmLines before_, before_splats_;

  // Of the nest that is being written.
  Nest nest_;
  std::string tag_;
  int k_ = 0;
  std::vector<Names> steps_;
  std::set<std::string> addressed_;
  std::map<std::pair<int, int>, std::string> sums_;
  std::string step_text_, block_text_;
};

}  // namespace

int LlvmTask::stream(const Stream& wanted) {
  const auto found = std::find(streams.begin(), streams.end(), wanted);
  if (found != streams.end()) return static_cast<int>(found - streams.begin());
  streams.push_back(wanted);
  return static_cast<int>(streams.size()) - 1;
}

const Reading* LlvmTask::reading_of(Id id) const {
  const auto found =
      std::find_if(readings.begin(), readings.end(), [&](const Reading& r) { return r.value == id; });
  return found == readings.end() ? nullptr : &*found;
}

bool is_op(const Node& node) {
  return node.op != Op::constant && node.op != Op::argument && !row_of(node.op).is_leaf();
}

std::vector<bool> needed_nodes(const LlvmTask& task) {
  std::vector<bool> needed(task.graph->nodes.size());
  for (const Writing& writing : task.writings) needed[writing.value] = true;
  for (Id id = static_cast<Id>(needed.size()); id-- > 0;) {
    if (!needed[id] || task.reading_of(id) != nullptr) continue;
    for (Id operand : task.graph->at(id).operands)
      if (operand != no_id) needed[operand] = true;
  }
  return needed;
}

std::vector<Level> levels_of(const LlvmTask& task) {
  std::vector<Level> levels(task.graph->nodes.size(), Level::call);
  for (Id id = 0; id < static_cast<Id>(levels.size()); ++id) {
    const Node& node = task.graph->at(id);
    if (const Reading* reading = task.reading_of(id)) {
      if (reading->stream >= 0) levels[id] = level_of(task.streams[reading->stream]);
      continue;
    }
    if (node.op == Op::step_index) levels[id] = Level::step;
    if (node.op == Op::element_index) levels[id] = Level::element;
    for (Id operand : node.operands)
      if (operand != no_id) levels[id] = std::max(levels[id], levels[operand]);
  }
  return levels;
}

std::string emit_function(const LlvmTask& task, const Width& width, const LlvmOptions& options) {
  return FunctionEmitter(task, width, options).text();
}

}  // namespace flexsn
