#include "plan.h"

#include "error.h"
#include "text.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::string_view kind_words[] = {"inference", "inference_final_state", "forward", "backward"};
constexpr std::string_view holds_words[] = {"input",
                                            "first state",
                                            "param",
                                            "output",
                                            "state sequence",
                                            "last state",
                                            "saved",
                                            "checkpoint",
                                            "gradient of output",
                                            "gradient of last state",
                                            "gradient of state sequence",
                                            "gradient of input",
                                            "gradient of first state",
                                            "gradient of param"};
constexpr std::string_view lead_words[] = {"once", "per step", "per segment"};
constexpr std::string_view map_words[] = {"", ", one for all elements", ", indexed"};
constexpr std::string_view slot_words[] = {"load", "param", "carry", "keep", "store", "sum"};

std::string place(std::string_view what, int buffer) {
  return buffer == no_buffer ? "" : join(", ", what, " in ", buffer);
}

class PlanPrinter {
 public:
  PlanPrinter(const Plan& plan, bool names) : plan_(plan), names_(names) {}

  std::string text() {
    out_.exceptions(std::ios::badbit);  // or a key would be cut off where memory ends
    out_.imbue(std::locale::classic());
    out_ << "plan " << kind_words[static_cast<int>(plan_.kind)];
    if (names_) out_ << " of " << plan_.neuron;
    if (plan_.reverse) out_ << ", last step first";
    if (plan_.segment > 0) out_ << ", segments of " << plan_.segment << " steps";
    out_ << '\n';
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) print_buffer(i);
    print_carries("carry", plan_.carries);
    print_carries("rebuilt", plan_.rebuilt);
    for (std::size_t i = 0; i < plan_.kept.size(); ++i)
      out_ << "  kept " << i << " : " << name_of(plan_.kept[i]) << '\n';
    for (std::size_t i = 0; i < plan_.sums.size(); ++i)
      out_ << "  sum " << i << " : " << name_of(plan_.sums[i].type) << ", stored in " << plan_.sums[i].buffer
           << '\n';
    if (plan_.rebuild) print_body("rebuild", *plan_.rebuild);
    print_body("step", plan_.step);
    return out_.str();
  }

 private:
  void print_buffer(std::size_t index) {
    const Buffer& buffer = plan_.buffers[index];
    out_ << "  buffer " << index << " : " << name_of(buffer.mem) << ' '
         << lead_words[static_cast<int>(buffer.lead)] << map_words[static_cast<int>(buffer.map)] << ", "
         << (buffer.write ? "written" : "read") << (buffer.optional ? " where given" : "") << ": "
         << holds_words[static_cast<int>(buffer.holds)] << ' ';
    if (names_)
      out_ << buffer.name << '\n';
    else
      out_ << buffer.index << '\n';
  }

  void print_carries(std::string_view word, const std::vector<Carry>& carries) {
    for (std::size_t i = 0; i < carries.size(); ++i)
      out_ << "  " << word << ' ' << i << " : " << name_of(carries[i].type)
           << place("first", carries[i].first) << place("last", carries[i].last)
           << place("sequence", carries[i].sequence) << place("adds what is", carries[i].add_sequence)
           << place("checkpoint", carries[i].checkpoint) << '\n';
  }

  static std::string slots(const std::vector<Slot>& list, const std::vector<int>& order) {
    std::string text;
    for (int index : order)
      text += join(text.empty() ? "" : ", ", slot_words[static_cast<int>(list[index].kind)], " ",
                   list[index].index);
    return "(" + text + ")";
  }

  void print_body(std::string_view word, const Body& body) {
    out_ << "  " << word << ' ' << slots(body.arguments, argument_order(body.graph)) << " -> "
         << slots(body.results, result_order(body.graph)) << '\n'
         << print(body.graph, {.names = names_});
  }

  const Plan& plan_;
  const bool names_;
  std::ostringstream out_;
};

class PlanVerifier {
 public:
  explicit PlanVerifier(const Plan& plan) : plan_(plan) {}

  void run() const {
    for (const std::vector<Carry>* carries : {&plan_.carries, &plan_.rebuilt})
      for (const Carry& carry : *carries) check_carry(carry, carries == &plan_.rebuilt);
    for (const Sum& sum : plan_.sums) {
      const Buffer& to = buffer(sum.buffer);
      internal_check(to.write && to.lead == Lead::once && value_type(to.mem) == sum.type,
                     "a sum has no room");
    }
    internal_check(plan_.rebuild.has_value() == (plan_.reverse && plan_.segment > 0),
                   "backward in segments rebuilds, and nothing else does");
    if (plan_.rebuild) check_body(*plan_.rebuild, plan_.rebuilt);
    check_body(plan_.step, plan_.carries);
  }

 private:
  const Buffer& buffer(int index) const {
    internal_check(index >= 0 && index < static_cast<int>(plan_.buffers.size()), "a plan has no such buffer");
    return plan_.buffers[index];
  }

  void check_carry(const Carry& carry, bool rebuilt) const {
    const auto check = [&](int index, Lead lead, bool write) {
      if (index == no_buffer) return;
      const Buffer& found = buffer(index);
      internal_check(found.lead == lead && found.write == write && value_type(found.mem) == carry.type,
                     "a carry's buffer does not fit it");
    };
    check(carry.first, Lead::once, false);
    check(carry.last, Lead::once, true);
    check(carry.sequence, Lead::per_step, true);
    check(carry.add_sequence, Lead::per_step, false);
    check(carry.checkpoint, Lead::per_segment, !rebuilt);
    internal_check(carry.checkpoint == no_buffer || plan_.segment > 0, "a checkpoint needs segments");
  }

  void check_body(const Body& body, const std::vector<Carry>& carries) const {
    internal_check(body.graph.expanded, "a plan runs exact ops only");
    internal_check(body.arguments.size() == body.graph.arguments.size() &&
                       body.results.size() == body.graph.results.size(),
                   "a body needs a slot for each argument and result");
    for (std::size_t i = 0; i < body.arguments.size(); ++i) {
      const Argument& argument = body.graph.arguments[i];
      const Slot slot = body.arguments[i];
      const Type type = value_type(argument.mem);
      if (slot.kind == Slot::Kind::carry) {
        internal_check(argument.role == Role::state && carries.at(slot.index).type == type,
                       "a carry is no state");
      } else if (slot.kind == Slot::Kind::keep) {
        internal_check(argument.role == Role::input && plan_.kept.at(slot.index) == type,
                       "a kept value is none");
      } else {
        const Buffer& from = buffer(slot.index);
        const bool once = slot.kind == Slot::Kind::param;
        internal_check(!from.write && from.mem == argument.mem && (from.lead == Lead::once) == once &&
                           (argument.role == Role::param) == (from.holds == Holds::param),
                       "an argument's buffer does not fit it");
      }
    }
    for (std::size_t i = 0; i < body.results.size(); ++i) {
      const Result& result = body.graph.results[i];
      const Slot slot = body.results[i];
      const Type type = value_type(result.mem);
      internal_check((slot.kind == Slot::Kind::carry) == (result.gives == Gives::next),
                     "only states are carried");
      if (slot.kind == Slot::Kind::carry)
        internal_check(body.arguments[result.of] == slot, "a state goes to another one's place");
      else if (slot.kind == Slot::Kind::keep)
        internal_check(plan_.kept.at(slot.index) == type, "a kept value has another type");
      else if (slot.kind == Slot::Kind::sum)
        internal_check(plan_.sums.at(slot.index).type == type, "a sum has another type");
      else
        internal_check(buffer(slot.index).write && buffer(slot.index).mem == result.mem &&
                           buffer(slot.index).lead == Lead::per_step,
                       "a result's buffer does not fit it");
    }
  }

  const Plan& plan_;
};

}  // namespace

std::string print(const Plan& plan, bool names) { return PlanPrinter(plan, names).text(); }

void verify(const Plan& plan) { PlanVerifier(plan).run(); }

}  // namespace flexsn
