#include "cuda_body.h"

#include "cuda_choices.h"
#include "cuda_lines.h"
#include "cuda_names.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

class BodyEmitter {
 public:
  explicit BodyEmitter(const CudaBodyTask& task)
      : task_(task),
        graph_(task.body->graph),
        needed_(graph_.nodes.size()),
        still_(graph_.nodes.size()),
        member_(graph_.nodes.size()),
        argument_(graph_.nodes.size(), -1),
        names_(graph_.nodes.size()),
        hidden_(hidden_choices(task)) {
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i)
      argument_[at(graph_.arguments[i].value)] = static_cast<int>(i);
    find_needed();
    find_still();
    choose_names();
  }

  CudaBody emit() {
    CudaBody out;
    out.step = task_.name;
    if (has_once_) emit_once(out);
    emit_step(out);
    out.text = lines_.text();
    return out;
  }

 private:
  static std::size_t at(Id id) { return static_cast<std::size_t>(id); }

  bool is_argument(Id id) const { return argument_[at(id)] >= 0; }
  /// Constants, and arguments that a run does not have: they stand in the text where they are used.
  bool is_constant(Id id) const {
    return graph_.at(id).op == Op::constant ||
           (is_argument(id) && !task_.given[static_cast<std::size_t>(argument_[at(id)])]);
  }

  void find_needed() {
    for (std::size_t i = 0; i < graph_.results.size(); ++i)
      if (task_.wanted[i]) needed_[at(graph_.results[i].value)] = true;
    for (Id id = static_cast<Id>(graph_.nodes.size()); id-- > 0;)
      if (needed_[at(id)])
        for (Id operand : graph_.at(id).operands)
          if (operand != no_id) needed_[at(operand)] = true;
  }

  /// What stays the same in time, and which of it the rest uses: members of the struct.
  void find_still() {
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) {
      const Node& node = graph_.at(id);
      if (is_argument(id) && !is_constant(id)) {
        const Slot& slot = task_.body->arguments[static_cast<std::size_t>(argument_[at(id)])];
        still_[at(id)] = slot.kind == Slot::Kind::param;
        continue;
      }
      bool still = node.op != Op::step_index;
      for (Id operand : node.operands) still = still && (operand == no_id || still_[at(operand)]);
      still_[at(id)] = still;
      if (still || !needed_[at(id)]) continue;
      for (Id operand : node.operands)
        if (operand != no_id) member_[at(operand)] = true;
    }
    for (std::size_t i = 0; i < graph_.results.size(); ++i)
      if (task_.wanted[i]) member_[at(graph_.results[i].value)] = true;
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) {
      member_[at(id)] = member_[at(id)] && needed_[at(id)] && still_[at(id)] && !is_constant(id);
      has_once_ = has_once_ || member_[at(id)];
    }
  }

  void choose_names() {
    CudaNames scope{"once", "step", "element"};
    for (const Argument& argument : graph_.arguments)
      if (needed_[at(argument.value)]) names_[at(argument.value)] = scope.add(argument.name);
    int number = 0;
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) {
      const Node& node = graph_.at(id);
      if (!needed_[at(id)] || is_argument(id) || node.op == Op::constant) continue;
      std::string& name = names_[at(id)];
      if (node.op == Op::step_index)
        name = "step";
      else if (node.op == Op::element_index)
        name = "element";
      else
        name = scope.add(graph_.debug_at(id).name.empty() ? join("v", number) : graph_.debug_at(id).name);
      ++number;
    }
    for (const Result& result : graph_.results)
      results_.push_back(
          scope.add(join("out_", result.gives == Gives::output
                                     ? result.name
                                     : graph_.arguments[static_cast<std::size_t>(result.of)].name)));
  }

  /// A value as it stands in the function of a step.
  std::string used(Id id, bool in_step) const {
    const Node& node = graph_.at(id);
    if (node.op == Op::constant) return cuda_constant(node.type, node.immediate);
    if (is_constant(id)) return cuda_constant(node.type, bits_of(node.type, -0.0));
    return (in_step && member_[at(id)] ? "once." : "") + names_[at(id)];
  }

  std::string parameter(int index) const {
    const Id value = graph_.arguments[static_cast<std::size_t>(index)].value;
    return join("const ", cuda_type(graph_.at(value).type), " ", names_[at(value)]);
  }

  struct Written {
    int ops = 0, work = 0;
  };

  /// One statement for each op that stays the same in time, or for each other one.
  Written statements(bool in_step) {
    Written written;
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) {
      const Node& node = graph_.at(id);
      if (!needed_[at(id)] || still_[at(id)] == in_step || is_argument(id) || node.op == Op::constant ||
          row_of(node.op).is_leaf())
        continue;
      std::string operands[max_arity];
      for (int i = 0; i < row_of(node.op).arity; ++i) operands[i] = used(node.operands[i], in_step);
      lines_.line(
          "const ", cuda_type(node.type), " ", names_[at(id)], " = ",
          hidden_[at(id)] ? cuda_hidden(graph_, node, operands) : cuda_expression(graph_, node, operands),
          ";");
      ++written.ops;
      written.work += work_of(node);
    }
    return written;
  }

  void emit_once(CudaBody& out) {
    out.once = task_.name + "_once";
    out.once_type = task_.name + "_values";
    lines_.line("// What does not change with time, for one element.");
    lines_.open("struct ", out.once_type, " {");
    std::vector<std::string> values, parameters;
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) {
      if (!member_[at(id)]) continue;
      lines_.line(cuda_type(graph_.at(id).type), " ", names_[at(id)], ";");
      values.push_back(names_[at(id)]);
    }
    lines_.close("};");
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id)
      if (needed_[at(id)] && graph_.at(id).op == Op::element_index) out.once_reads_element = true;
    if (out.once_reads_element) parameters.push_back("const int element");
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Id value = graph_.arguments[i].value;
      if (!needed_[at(value)] || !still_[at(value)] || is_constant(value)) continue;
      out.once_reads.push_back(static_cast<int>(i));
      parameters.push_back(parameter(static_cast<int>(i)));
    }
    lines_.open_list(join("__device__ __forceinline__ ", out.once_type, " ", out.once, "("), parameters,
                     ") {");
    statements(false);
    lines_.list("return {", values, "};");
    lines_.close();
    lines_.gap();
  }

  void emit_step(CudaBody& out) {
    std::vector<std::string> parameters;
    if (has_once_) parameters.push_back(join("const ", out.once_type, "& once"));
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id)
      if (needed_[at(id)] && graph_.at(id).op == Op::step_index) out.reads_step = true;
    if (out.reads_step) parameters.push_back("const int step");
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Id value = graph_.arguments[i].value;
      if (!needed_[at(value)] || still_[at(value)]) continue;
      out.reads.push_back(static_cast<int>(i));
      parameters.push_back(parameter(static_cast<int>(i)));
    }
    for (std::size_t i = 0; i < graph_.results.size(); ++i) {
      if (!task_.wanted[i]) continue;
      out.gives.push_back(static_cast<int>(i));
      parameters.push_back(join(cuda_type(graph_.at(graph_.results[i].value).type), "& ", results_[i]));
    }
    lines_.line("// ", task_.comment);
    lines_.open_list(join("__device__ __forceinline__ void ", out.step, "("), parameters, ") {");
    const Written written = statements(true);
    out.ops = written.ops;
    out.work = written.work;
    for (int i : out.gives)
      lines_.line(results_[static_cast<std::size_t>(i)], " = ",
                  used(graph_.results[static_cast<std::size_t>(i)].value, true), ";");
    lines_.close();
    lines_.gap();
  }

  const CudaBodyTask& task_;
  const Graph& graph_;
  std::vector<bool> needed_, still_, member_;
  std::vector<int> argument_;  ///< of a node, else -1
  std::vector<std::string> names_, results_;
  std::vector<bool> hidden_;
  bool has_once_ = false;
  CudaLines lines_;
};

}  // namespace

CudaBody cuda_body(const CudaBodyTask& task) { return BodyEmitter(task).emit(); }

}  // namespace flexsn
