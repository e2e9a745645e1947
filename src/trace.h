// The C++ front end: the user's function runs on Values, and a Trace writes down what it does.
#pragma once

#include "ir.h"

namespace flexsn {

/// The narrowest memory type that holds both: f16 and bf16 give f32, an integer gives way to a float.
Mem promote(Mem a, Mem b);

/// One run of a user's step function.
class Trace : public std::enable_shared_from_this<Trace> {
 public:
  /// `type` is for arguments that name none; `state_types` for such states by name; with `smooth`, spikes are
  /// the smooth functions of their surrogates.
  Trace(std::string neuron, Mem type, std::map<std::string, Mem> state_types, bool smooth);

  /// Runs `step` and gives its graph.
  ir::Graph run(const std::function<void(Step&)>& step);
  /// States without a type whose update is wider, with the type they need; empty when none is.
  const std::map<std::string, Mem>& widened() const { return widened_; }

  // What Value, Operand and Step call.
  static Value apply(ir::Op op, const Operand* operands, int count);
  static Type type_of(const Value& value);
  static Value named(const Value& value, std::string_view name, const std::source_location& where);
  static const Value& value_of(const Operand& operand);
  static Value like(const Operand& operand, double number);
  static bool is_smooth(const Value& value) { return value.trace_->smooth_; }
  static const std::source_location& where_of(const Operand& operand) { return operand.where_; }
  Value argument(ir::Argument argument, std::optional<Mem> type, const std::source_location& where);
  Value leaf(ir::Op op, const std::source_location& where);
  void next(const Value& state, const Operand& value);
  void output(std::string_view name, const Operand& value);

  /// While alive, everything traced has the line of `operand`: library functions hide their own lines.
  class Lines {
   public:
    explicit Lines(const Operand& operand);
    ~Lines();
    Lines(const Lines&) = delete;
    Lines& operator=(const Lines&) = delete;

   private:
    std::shared_ptr<Trace> trace_;
    std::optional<std::source_location> saved_;
  };

 private:
  struct Update {
    ir::Id state;
    ir::Id value;  ///< no_id: a plain number
    double number;
    ir::Location location;
  };

  [[noreturn]] void fail(const std::string& message, const std::source_location& where) const;
  void require_active(ir::Id id, const std::source_location& where) const;
  void require_name(std::string_view name, const char* what, const std::source_location& where) const;
  void require_fits(const Operand& number, Mem mem, const std::source_location& where) const;
  ir::Id own(const Value& value, const std::source_location& where) const;
  ir::Location location(const std::source_location& where);
  std::string called(ir::Id id) const;
  Value add(ir::V node, Mem mem, const ir::Location& location);
  ir::Id converted(ir::Id id, Mem mem, const ir::Location& location);
  ir::Id rounded(ir::Id id, Mem mem, const ir::Location& location);
  Mem common_type(ir::Op op, const Operand* operands, int first, int count,
                  const std::source_location& where) const;
  Value apply_here(ir::Op op, const Operand* operands, int count, const std::source_location& where);
  ir::Id operand(const Operand& operand, Mem mem, const std::source_location& where);
  void finish_states();
  Mem float_type() const;
  void note_memory();

  std::string neuron_;
  Mem type_;
  std::map<std::string, Mem> state_types_, widened_;
  std::map<ir::Id, bool> state_is_typed_;
  ir::Graph graph_;
  std::vector<Mem> memory_;  ///< for each node: the memory type its value counts as in promotion
  std::vector<Update> updates_;
  std::optional<std::source_location> lines_;
  bool active_ = false;
  const bool smooth_;
};

}  // namespace flexsn
