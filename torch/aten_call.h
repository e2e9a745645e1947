// One call of an ATen function inside a step, as the importer reads it.
#pragma once

#include <map>

#include "build.h"
#include "error.h"

namespace flexsn {

/// A value of a listing.
struct Item {
  ir::V value = {};
  std::vector<std::int64_t> shape = {};
  std::string type = {};
  bool live = true;      ///< depends on an input, a state or a gradient; else on parameters only
  bool reduced = false;  ///< stands for its sum down to `shape`, which is how a parameter's gradient ends
  // of a reduced value:
  std::string summed_at = {};  ///< " (file:line)" of the sum
  std::vector<int> axes =
      {};  ///< which axes of the step, counted from behind, its dimensions other than 1 are
};

/// An argument of a call.
struct Given {
  const Item* item = nullptr;
  char kind = 'n';  ///< % f i b t l n s, see import.h
  double number = 0;
  std::string_view text = {};
};

class AtenCall {
 public:
  /// The type of the result inside the step, and what torch calls it in memory.
  Type type() const { return type_; }
  Mem result_memory() const { return memory_of(result_type_); }

  /// Argument `i` where it is a tensor, or nothing.
  const Item* tensor(std::size_t i) const { return i < arguments_.size() ? arguments_[i].item : nullptr; }
  bool has(std::size_t i) const { return i < arguments_.size() && arguments_[i].kind != 'n'; }
  /// Argument `i` as a value of the result's type, or as a bool, or as it is.
  ir::V at(std::size_t i) { return as(argument(i), type_); }
  ir::V truth(std::size_t i) { return as(argument(i), Type::b1); }
  ir::V raw(std::size_t i) {
    const Given& found = argument(i);
    return found.item != nullptr ? found.item->value : number(found.number);
  }
  /// A number that was given, by place or by name.
  double scalar(std::size_t i, std::string_view name, double otherwise) const;
  /// Argument `i` where it is a number.
  std::optional<double> literal(std::size_t i) const;
  /// A word that was given, by place or by name.
  std::string_view word(std::size_t i, std::string_view name) const;
  /// A value as it comes out of the result's memory.
  ir::V stored(ir::V value) const;
  ir::V number(double value) { return ir::constant(graph_, type_, value); }

  /// Names the function and the user's line.
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    user_error(graph_.name, ": torch.", name(), place(), " ", parts...);
  }

 protected:
  std::string name() const { return std::string(function_.substr(0, function_.rfind('.'))); }
  std::string place() const { return file_.empty() ? "" : join(" (", file_, ":", line_, ")"); }
  Mem memory_of(std::string_view type) const;
  const Given& argument(std::size_t i) const {
    if (i >= arguments_.size()) fail("was called with ", arguments_.size(), " arguments, which is too few");
    return arguments_[i];
  }
  ir::V as(const Given& given, Type type) {
    return given.item != nullptr ? ir::convert(given.item->value, type)
                                 : ir::constant(graph_, type, given.number);
  }

  ir::Graph graph_;
  std::string_view function_, result_type_, file_, line_;
  std::vector<Given> arguments_;
  std::map<std::string, Given, std::less<>> named_;
  Type type_ = Type::f32;
};

/// What the memory of a torch type ("float32") holds; nothing for types that a step has no use for.
std::optional<Mem> memory_named(std::string_view type);

/// Builds a function of ATen that is no row of the op table, or that torch computes in a way of its own.
using Composite = ir::V (*)(AtenCall&);
const std::map<std::string, Composite, std::less<>>& composites();

}  // namespace flexsn
