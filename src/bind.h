// Arrays by name, bound to the arguments of a graph. Everything that can be wrong with them is said here,
// before anything runs.
#pragma once

#include "broadcast.h"
#include "error.h"

namespace flexsn {

/// What is wrong with a parameter's values, "" where they are in its range.
std::string out_of_range(const ir::Argument& argument, const void* data, std::int64_t count);

/// What is wrong with the numbers of a run's steps; empty: nothing. A neuron reads them as i32.
std::string wrong_first_step(const ir::Graph& graph, std::int64_t first, std::int64_t steps);

class Binding {
 public:
  /// `graph` and `arguments` must outlive the binding.
  Binding(const ir::Graph& graph, const Arguments& arguments);

  std::int64_t steps() const { return steps_; }
  std::int64_t elements() const { return elements_; }
  const Shape& shape() const { return shape_; }

  /// Where an input, state or parameter is read: the array that was given, else its default.
  Source source(const ir::Argument& argument);
  /// Where a sequence with the step's shape, or one step of it, is read; `what` names it in errors.
  Source given(const std::string& what, Mem mem, const Array& array, bool sequence) const;
  /// The shape a parameter was given with, without the time of a per-step one; a default is a scalar.
  Shape param_shape(const ir::Argument& argument) const;

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    user_error("neuron '", graph_.name, "': ", parts...);
  }

 private:
  const std::map<std::string, Array>& arrays(ir::Role role) const;
  void check_names(ir::Role role) const;
  void check_array(const std::string& what, Mem mem, const Array& array) const;
  void find_shape();
  Source param_source(const ir::Argument& argument, const Array& array);
  const std::vector<std::int64_t>& indices(const Shape& shape);

  const ir::Graph& graph_;
  const Arguments& arguments_;
  Shape shape_;
  std::int64_t steps_ = 0, elements_ = 0;
  std::vector<std::unique_ptr<Array>> defaults_;
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> indices_;
};

}  // namespace flexsn
