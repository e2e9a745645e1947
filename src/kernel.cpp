// Kernels on the caller's arrays: compile, bind, run forward and backward.
#include <algorithm>
#include <mutex>

#include "absent.h"
#include "compile.h"
#include "error.h"
#include "executable.h"
#include "param_sums.h"
#include "reduce.h"
#include "train.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::int64_t alignment = 64;

std::int64_t bytes_of(Mem mem) { return static_cast<std::int64_t>(size_of(mem)); }

class Interpreted : public Executable {
 public:
  explicit Interpreted(Plan plan) : plan_(std::move(plan)) {}
  const Plan& plan() const override { return plan_; }
  void run(const PlanRun& run, const Threads&) const override { execute(plan_, run); }

 private:
  Plan plan_;
};

/// Kernels of equal plans are one, as long as anyone holds it.
std::shared_ptr<const Executable> shared_executable(Plan plan, const std::string& target) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const Executable>> known;
  const std::string key = join(target, "\n", print(plan, false));
  const std::lock_guard lock(mutex);
  if (std::shared_ptr<const Executable> found = known[key].lock()) return found;
  std::erase_if(known, [](const auto& item) { return item.second.expired(); });
  std::shared_ptr<const Executable> made =
      target == "cpu" ? cpu_executable(std::move(plan)) : std::make_shared<Interpreted>(std::move(plan));
  known[key] = made;
  return made;
}

/// The default pool of this number of threads, which lives as long as a kernel uses it.
std::shared_ptr<Pool> shared_pool(int threads) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Pool>> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Pool> pool = known[threads].lock();
  if (!pool) known[threads] = pool = std::make_shared<Pool>(threads);
  return pool;
}

std::string shape_text(const Extent& extent) {
  return join("T = ", extent.steps, ", step shape ", text_of(extent.shape));
}

}  // namespace

namespace detail {

/// A neuron on its way to kernels: what does not depend on a run.
struct KernelState {
  Graph step;  ///< simplified
  CompileOptions options;
  std::shared_ptr<Pool> pool;
  KernelInfo infos[4];
  bool trainable = false;
  std::string untrainable;
  Graph joint;
  Partition parts;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Executable>> executables;

  Threads threads() const {
    if (!options.parallel_for) return pool->as_threads();
    return {options.threads > 0 ? options.threads : default_thread_count(), options.parallel_for};
  }

  void require_training() const {
    if (!trainable) throw UserError(untrainable);
  }

  std::shared_ptr<const Executable> executable(Kind kind, const Layout& layout,
                                               const std::vector<int>& absent) {
    std::string key = std::to_string(static_cast<int>(kind));
    for (const auto& [name, map] : layout) key += join(" ", name, "=", static_cast<int>(map));
    for (int argument : absent) key += join(" -", argument);
    const std::lock_guard lock(mutex);
    std::shared_ptr<const Executable>& found = executables[key];
    if (!found) found = shared_executable(plan(kind, layout, absent), options.target);
    return found;
  }

  Plan plan(Kind kind, const Layout& layout, const std::vector<int>& absent) const {
    if (kind == Kind::inference || kind == Kind::inference_final_state)
      return schedule_inference(has_gradients(step) ? forward_of(step) : step, kind, layout);
    if (absent.empty()) {
      TrainingPlans plans = schedule_training(joint, parts, options.training, layout);
      return kind == Kind::forward ? std::move(plans.forward) : std::move(plans.backward);
    }
    Partition fewer = parts;
    fewer.backward = without_arriving(parts.backward, absent);
    return schedule_training(joint, fewer, options.training, layout).backward;
  }
};

/// Arrays by name, checked when they are bound.
struct RunState {
  std::shared_ptr<KernelState> kernel;
  Extent extent;
  std::int64_t elements = 1, first_step = 0;
  struct BoundParam {
    View view;
    Shape shape;
    Map map = Map::scalar;
    std::int64_t inner = 1, count = 1;
    bool spread = false;  ///< no map fits: spread out to the step's shape for each call
  };
  std::map<int, View> inputs, first, last, sequences, outputs;  ///< by argument; outputs by result
  std::map<int, BoundParam> params;
  std::map<int, Array> defaults, spread;
  /// Where each of the buffers that only forward and backward share lies, and how large all of them are.
  struct Room {
    std::map<std::pair<Holds, int>, std::int64_t> places;
    std::int64_t bytes = alignment;
  };
  const void* forwarded = nullptr;  ///< the workspace that forward filled
  Room forwarded_room;

  const Graph& step() const { return kernel->step; }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    user_error("neuron '", step().name, "': ", parts...);
  }

  // ---- names and sizes -----------------------------------------------------------------------------

  int argument(Role role, const char* word, const std::string& name) const {
    std::vector<std::string> names;
    for (std::size_t a = 0; a < step().arguments.size(); ++a) {
      if (step().arguments[a].role != role) continue;
      if (step().arguments[a].name == name) return static_cast<int>(a);
      names.push_back(step().arguments[a].name);
    }
    fail("there is no ", word, " '", name, "'", did_you_mean(name, names));
  }

  int output(const std::string& name) const {
    std::vector<std::string> names;
    for (std::size_t r = 0; r < step().results.size(); ++r) {
      if (step().results[r].gives != Gives::output) continue;
      if (step().results[r].name == name) return static_cast<int>(r);
      names.push_back(step().results[r].name);
    }
    fail("there is no output '", name, "'", did_you_mean(name, names));
  }

  /// `view` holds `rows` rows of `row` elements of `mem`.
  void check(const std::string& what, const View& view, Mem mem, std::int64_t rows, std::int64_t row,
             bool written) const {
    if (view.type() != mem)
      fail(what, " must be ", name_of(mem), ", found ", name_of(view.type()),
           "; convert it, or trace the neuron for another type");
    const std::int64_t stride = view.row_stride().value_or(row);
    if (stride < 0) fail(what, " has rows every ", stride, " elements; the distance must not be negative");
    if (written && rows > 1 && stride < row)
      fail(what, " has rows every ", stride, " elements, but each has ", row,
           "; rows that are written must not overlap");
    std::int64_t needed = 0;
    if (rows > 0 &&
        (__builtin_mul_overflow(rows - 1, stride, &needed) || __builtin_add_overflow(needed, row, &needed)))
      fail(what, " has rows every ", stride, " elements, which is more than memory can have");
    if (view.count() < needed || (!view.row_stride() && view.count() != needed))
      fail(what, " must have ", needed, " elements (", shape_text(extent), "), found ", view.count());
    if (view.data() == nullptr && needed > 0) fail(what, " has no memory: its pointer is null");
    if (written && !view.writable()) fail(what, " is written, but its memory is constant");
  }

  // ---- plans and their buffers -----------------------------------------------------------------------

  Layout layout() const {
    Layout layout;
    for (std::size_t a = 0; a < step().arguments.size(); ++a) {
      const Argument& argument = step().arguments[a];
      const int index = static_cast<int>(a);
      if (argument.role == Role::state && !first.contains(index)) layout[argument.name] = Map::scalar;
      const auto found = params.find(index);
      if (found != params.end())
        layout[argument.name] = found->second.spread ? Map::element : found->second.map;
    }
    return layout;
  }

  Bound rows_of_view(const View& view) const {
    return {.data = view.data(), .row_stride = view.row_stride().value_or(elements)};
  }

  static Bound found_in(const std::map<int, View>& views, int index, const RunState& run) {
    const auto found = views.find(index);
    return found == views.end() ? Bound{} : run.rows_of_view(found->second);
  }

  /// An argument that was not bound: its default, one for all.
  Bound standing(int index) {
    const Argument& argument = step().arguments[index];
    if (argument.role == Role::param && !argument.has_default)
      fail("param '", argument.name, "' is not bound and has no default");
    return {
        .data =
            defaults.try_emplace(index, argument.mem, Shape{1}, argument.initial).first->second.bytes.data()};
  }

  Bound bound_param(int index) {
    const auto found = params.find(index);
    if (found == params.end()) return standing(index);
    BoundParam& param = found->second;
    const bool rows = step().arguments[index].per_step;
    std::int64_t row = 1;
    for (std::int64_t dim : param.shape) row *= dim;
    if (param.spread) return {.data = spread_out(index, param, row), .row_stride = rows ? elements : 0};
    return {
        .data = param.view.data(), .row_stride = rows ? row : 0, .inner = param.inner, .count = param.count};
  }

  void* spread_out(int index, const BoundParam& param, std::int64_t row) {
    const std::int64_t rows = step().arguments[index].per_step ? extent.steps : 1;
    const auto size = static_cast<std::size_t>(bytes_of(param.view.type()));
    Array& out = spread[index];
    out = Array(param.view.type(), {rows * elements});
    const auto* from = static_cast<const std::byte*>(param.view.data());
    for (std::int64_t n = 0; n < elements; ++n) {
      std::int64_t rest = n, entry = 0, stride = 1;
      for (std::size_t i = 1; i <= param.shape.size(); ++i) {
        const std::int64_t dim = param.shape[param.shape.size() - i],
                           step_dim = extent.shape[extent.shape.size() - i];
        entry += dim == 1 ? 0 : rest % step_dim * stride;
        rest /= step_dim;
        stride *= dim;
      }
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(out.bytes.data() + static_cast<std::size_t>(r * elements + n) * size,
                    from + static_cast<std::size_t>(r * row + entry) * size, size);
    }
    return out.bytes.data();
  }

  /// What this neuron calls a buffer: a kernel may be shared with one that has other names.
  const std::string& name_for(const Buffer& buffer) const {
    if (buffer.holds == Holds::output) return step().results[buffer.index].name;
    const Graph& joint = kernel->joint;
    if (buffer.holds == Holds::grad_output) return joint.results[joint.arguments[buffer.index].of].name;
    return step().arguments[buffer.index].name;
  }

  /// What a plan of any kind gets for a buffer that the caller bound.
  Bound bound(const Buffer& buffer) {
    switch (buffer.holds) {
      case Holds::input: {
        const Bound found = found_in(inputs, buffer.index, *this);
        if (found.data == nullptr && elements > 0 && extent.steps > 0)
          fail("input '", name_for(buffer), "' is not bound; give it with in(\"", name_for(buffer),
               "\", ...)");
        return found;
      }
      case Holds::first_state:
        return first.contains(buffer.index) ? found_in(first, buffer.index, *this) : standing(buffer.index);
      case Holds::param:
        return bound_param(buffer.index);
      case Holds::output:
        return found_in(outputs, buffer.index, *this);
      case Holds::state_sequence:
        return found_in(sequences, buffer.index, *this);
      case Holds::last_state:
        return found_in(last, buffer.index, *this);
      default:
        return {};
    }
  }

  PlanRun plan_run() const {
    return {.steps = extent.steps, .elements = elements, .first_step = first_step, .buffers = {}};
  }

  /// The last of a sequence of states where the last was asked for as well.
  void copy_last_rows() {
    for (const auto& [state, view] : last) {
      const auto sequence = sequences.find(state);
      if (sequence == sequences.end() || elements == 0 || extent.steps == 0) continue;
      const std::int64_t size = bytes_of(view.type()),
                         stride = sequence->second.row_stride().value_or(elements);
      const auto* from =
          static_cast<const std::byte*>(sequence->second.data()) + (extent.steps - 1) * stride * size;
      std::memcpy(view.data(), from, static_cast<std::size_t>(elements * size));
    }
  }

  /// Runs a kind that gives sequences where `with_sequences`, else last states.
  void run_forward_kind(Kind kind, bool with_sequences, const std::function<Bound(const Buffer&)>& own) {
    // A sequence has no last row where there are no steps, and states that are only wanted last have none at
    // all.
    for (const auto& [state, view] : last)
      if (with_sequences && !sequences.contains(state) && extent.steps > 0)
        fail("state '", step().arguments[state].name,
             "': this kernel gives sequences of states; bind state_sequence as well, its last row is the "
             "last state");
    const std::shared_ptr<const Executable> executable = kernel->executable(kind, layout(), {});
    PlanRun run = plan_run();
    for (const Buffer& buffer : executable->plan().buffers) {
      const Bound given = own(buffer);
      run.buffers.push_back(given.data != nullptr ? given : bound(buffer));
    }
    executable->run(run, kernel->threads());
    if (!with_sequences) return;
    copy_last_rows();
    if (extent.steps == 0)
      for (const auto& [state, view] : last) copy_first(state, view);
  }

  void copy_first(int state, const View& view) {
    const auto found = first.find(state);
    const Argument& argument = step().arguments[state];
    if (found != first.end())
      std::memmove(view.data(), found->second.data(),
                   static_cast<std::size_t>(elements * bytes_of(argument.mem)));
    else
      for (std::int64_t n = 0; n < elements; ++n)
        std::memcpy(static_cast<std::byte*>(view.data()) + n * bytes_of(argument.mem), standing(state).data,
                    size_of(argument.mem));
  }

  // ---- the workspace ---------------------------------------------------------------------------------

  Room room() {
    kernel->require_training();
    Room room;
    for (Kind kind : {Kind::forward, Kind::backward}) {
      const std::shared_ptr<const Executable> executable = kernel->executable(kind, layout(), {});
      for (const Buffer& buffer : executable->plan().buffers) {
        // What backward reads again and the caller has no use for needs a place, too; and first states, which
        // may be written where they are read.
        const bool again = kind == Kind::backward && !buffer.write;
        const bool unbound = (buffer.holds == Holds::output && !outputs.contains(buffer.index)) ||
                             (buffer.holds == Holds::state_sequence && !sequences.contains(buffer.index));
        const bool own = buffer.holds == Holds::saved || buffer.holds == Holds::checkpoint ||
                         buffer.holds == Holds::grad_param ||
                         (again && (unbound || buffer.holds == Holds::first_state));
        if (!own || room.places.contains({buffer.holds, buffer.index})) continue;
        room.places[{buffer.holds, buffer.index}] = room.bytes;
        const std::int64_t bytes =
            rows_of(executable->plan(), buffer, extent.steps) * elements * bytes_of(buffer.mem);
        room.bytes += (bytes + alignment - 1) / alignment * alignment;
      }
    }
    return room;
  }

  std::byte* base(const View& workspace, const Room& room) const {
    if (workspace.count() * bytes_of(workspace.type()) < room.bytes)
      fail("the workspace must have ", room.bytes, " bytes (", shape_text(extent), "), found ",
           workspace.count() * bytes_of(workspace.type()), "; ask workspace_bytes() for the number");
    if (!workspace.writable()) fail("the workspace is written, but its memory is constant");
    if (workspace.data() == nullptr) fail("the workspace has no memory: its pointer is null");
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
    return static_cast<std::byte*>(workspace.data()) + (alignment - address % alignment) % alignment;
  }

  Bound from_workspace(std::byte* start, const Room& room, const Buffer& buffer) const {
    const auto found = room.places.find({buffer.holds, buffer.index});
    if (found == room.places.end()) return {};
    return {.data = start + found->second - alignment, .row_stride = elements};
  }

  // ---- backward ----------------------------------------------------------------------------------------

  void check_gradients(const Views& arriving, const Views& wanted) const {
    if (arriving.empty()) fail("no gradient arrives; give one of an output or of a state");
    const Graph& joint = kernel->joint;
    for (const auto& [name, view] : arriving) {
      std::vector<std::string> names;
      bool known = false;
      for (const Result& result : joint.results)
        if (result.gives == Gives::output) names.push_back(result.name);
      for (const Argument& argument : joint.arguments) {
        if (argument.role == Role::state) names.push_back(argument.name);
        const bool at_output = argument.role == Role::grad_output && joint.results[argument.of].name == name;
        const bool at_state = argument.role == Role::grad_next && joint.arguments[argument.of].name == name;
        if (!at_output && !at_state) continue;
        known = true;
        const bool rows = at_output || kernel->options.training.state_sequences;
        const Mem mem = at_state && rows ? joint.arguments[argument.of].mem : argument.mem;
        check(join("the gradient of ", at_output ? "output" : "state", " '", name, "'"), view, mem,
              rows ? extent.steps : 1, elements, false);
      }
      if (std::count(names.begin(), names.end(), name) > 1)
        fail("'", name,
             "' is an output and a state, so it does not say where the gradient arrives; rename one of them");
      if (!known && std::find(names.begin(), names.end(), name) == names.end())
        fail("there is no output or state '", name, "' for a gradient to arrive at",
             did_you_mean(name, names));
      if (!known)
        fail("no gradient can arrive at '", name,
             "': it carries none, or the kernel was compiled for others (training.arriving)");
    }
    for (const auto& [name, view] : wanted) {
      std::vector<std::string> names;
      const Argument* found = nullptr;
      for (const Argument& argument : step().arguments) {
        names.push_back(argument.name);
        if (argument.name == name) found = &argument;
      }
      if (found == nullptr)
        fail("there is no argument '", name, "' to take a gradient of", did_you_mean(name, names));
      const std::vector<std::string>& compiled = kernel->options.training.wanted;
      if (!is_float(value_type(found->mem)) ||
          (!compiled.empty() && std::find(compiled.begin(), compiled.end(), name) == compiled.end()))
        fail("the gradient of '", name, "' is not there: ",
             is_float(value_type(found->mem)) ? "the kernel was compiled for others (training.wanted)"
                                              : join("it is ", name_of(found->mem), " and carries none"));
      const std::string what = join("the gradient of '", name, "'");
      if (found->role == Role::param) {
        const int index = static_cast<int>(found - step().arguments.data());
        std::int64_t row = 1;
        if (const auto bound_to = params.find(index); bound_to != params.end())
          for (std::int64_t dim : bound_to->second.shape) row *= dim;
        check(what, view, found->mem, found->per_step ? extent.steps : 1, row, true);
      } else {
        const bool input = found->role == Role::input;
        check(what, view, gradient_memory(*found), input ? extent.steps : 1, elements, true);
      }
    }
  }

  std::vector<int> absent_in(const Views& arriving) const {
    std::vector<int> absent;
    const Graph& joint = kernel->joint;
    for (std::size_t a = 0; a < joint.arguments.size(); ++a)
      if (joint.arguments[a].role == Role::grad_output &&
          !arriving.contains(joint.results[joint.arguments[a].of].name))
        absent.push_back(static_cast<int>(a));
    return absent;
  }

  void run_backward(const View& workspace, const Views& arriving, const Views& wanted) {
    kernel->require_training();
    check_gradients(arriving, wanted);
    if (forwarded == nullptr || forwarded != workspace.data())
      fail("backward needs what forward left in this workspace; run forward on it first");
    const Room& space = forwarded_room;
    std::byte* start = base(workspace, space);
    const std::shared_ptr<const Executable> executable =
        kernel->executable(Kind::backward, layout(), absent_in(arriving));
    PlanRun run = plan_run();
    std::vector<const Buffer*> sums;
    for (const Buffer& buffer : executable->plan().buffers) {
      const auto view_in = [&](const Views& views) {
        const auto found = views.find(name_for(buffer));
        return found == views.end() ? Bound{} : rows_of_view(found->second);
      };
      Bound given;
      if (buffer.holds == Holds::grad_param) {
        if (wanted.contains(name_for(buffer))) {
          given = from_workspace(start, space, buffer);
          sums.push_back(&buffer);
        }
      } else if (buffer.holds >= Holds::grad_input) {
        given = view_in(wanted);
      } else if (buffer.holds >= Holds::grad_output) {
        given = view_in(arriving);
      } else if (buffer.holds == Holds::first_state && !first.contains(buffer.index)) {
        given = standing(buffer.index);
      } else {
        given = from_workspace(start, space, buffer);
        if (given.data == nullptr) given = bound(buffer);
      }
      run.buffers.push_back(given);
    }
    executable->run(run, kernel->threads());
    for (const Buffer* buffer : sums) {
      const Bound rows = from_workspace(start, space, *buffer);
      const View& to = wanted.at(name_for(*buffer));
      if (value_type(buffer->mem) == Type::f64)
        sum_param<double>(*buffer, rows, to);
      else
        sum_param<float>(*buffer, rows, to);
    }
  }

  /// The gradient of a parameter in its own shape and type from those of all elements.
  template <class F>
  void sum_param(const Buffer& buffer, const Bound& rows, const View& to) const {
    const Argument& argument = step().arguments[buffer.index];
    const auto found = params.find(buffer.index);
    const Shape shape = found == params.end() ? Shape{} : found->second.shape;
    std::int64_t size = 1;
    for (std::int64_t dim : shape) size *= dim;
    const std::int64_t count = argument.per_step ? extent.steps : 1;
    std::vector<F> sums(static_cast<std::size_t>(count * size), F(0));
    if (extent.steps > 0 && elements > 0)
      param_sums(static_cast<const F*>(rows.data), rows.row_stride, count, extent.shape, shape, sums.data(),
                 kernel->threads());
    for (std::int64_t r = 0; r < count; ++r)
      store(argument.mem, sums.data() + r * size,
            static_cast<std::byte*>(to.data()) + r * to.row_stride().value_or(size) * bytes_of(argument.mem),
            size);
  }
};

}  // namespace detail

Run& Run::in(const std::string& name, const View& view) {
  detail::RunState& run = *state_;
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::input, "input", name);
  run.check(join("input '", name, "'"), view, run.step().arguments[index].mem, run.extent.steps, run.elements,
            false);
  run.inputs.insert_or_assign(index, view);
  return *this;
}

Run& Run::param(const std::string& name, const View& view, std::vector<std::int64_t> shape) {
  detail::RunState& run = *state_;
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::param, "param", name);
  const Argument& argument = run.step().arguments[index];
  const Shape given = shape;
  if (argument.per_step) {
    if (shape.empty() || shape[0] != run.extent.steps)
      run.fail("param '", name, "' changes with time, so its shape must start with T = ", run.extent.steps,
               ", found ", text_of(shape));
    shape.erase(shape.begin());
  }
  const Shape& step = run.extent.shape;
  bool fits = shape.size() <= step.size();
  for (std::size_t i = 1; fits && i <= shape.size(); ++i)
    fits = shape[shape.size() - i] == 1 || shape[shape.size() - i] == step[step.size() - i];
  if (!fits)
    run.fail(
        "param '", name, "' has shape ", text_of(shape), ", which does not broadcast to the step's shape ",
        text_of(step),
        "; each dimension, counted from the right, must be 1 or equal, and there may be no more of them");
  std::int64_t row = 1;
  for (std::int64_t dim : shape) row *= dim;
  run.check(join("param '", name, "' of shape ", text_of(given)), view, argument.mem,
            argument.per_step ? run.extent.steps : 1, row, false);
  detail::RunState::BoundParam bound{view, shape};
  const std::vector<Dimension> dimensions = merged_dimensions(step, shape);
  const auto kept =
      std::count_if(dimensions.begin(), dimensions.end(), [](const Dimension& d) { return d.kept; });
  if (kept == 0) {
    bound.map = Map::scalar;
  } else if (kept == 1 && dimensions.size() == 1) {
    bound.map = Map::element;
  } else if (kept == 1) {
    const auto place =
        std::find_if(dimensions.begin(), dimensions.end(), [](const Dimension& d) { return d.kept; });
    bound.map = Map::indexed;
    bound.count = place->size;
    bound.inner = place + 1 == dimensions.end() ? 1 : (place + 1)->size;
  } else {
    bound.spread = true;
  }
  if (view.row_stride().value_or(row) != row && argument.per_step)
    run.fail("param '", name, "' must have its rows side by side");
  const std::string wrong =
      out_of_range(argument, view.data(), argument.per_step ? run.extent.steps * row : row);
  if (!wrong.empty()) run.fail(wrong);
  run.params.insert_or_assign(index, std::move(bound));
  return *this;
}

Run& Run::state(const std::string& name, const View& view) {
  return first_state(name, view).last_state(name, view);
}

Run& Run::first_state(const std::string& name, const View& view) {
  detail::RunState& run = *state_;
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::state, "state", name);
  run.check(join("state '", name, "'"), view, run.step().arguments[index].mem, 1, run.elements, false);
  run.first.insert_or_assign(index, view);
  return *this;
}

Run& Run::last_state(const std::string& name, const View& view) {
  detail::RunState& run = *state_;
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::state, "state", name);
  run.check(join("the last state '", name, "'"), view, run.step().arguments[index].mem, 1, run.elements,
            true);
  run.last.insert_or_assign(index, view);
  return *this;
}

Run& Run::state_sequence(const std::string& name, const View& view) {
  detail::RunState& run = *state_;
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::state, "state", name);
  run.check(join("the sequence of state '", name, "'"), view, run.step().arguments[index].mem,
            run.extent.steps, run.elements, true);
  run.sequences.insert_or_assign(index, view);
  return *this;
}

Run& Run::out(const std::string& name, const View& view) {
  detail::RunState& run = *state_;
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.output(name);
  run.check(join("output '", name, "'"), view, run.step().results[index].mem, run.extent.steps, run.elements,
            true);
  run.outputs.insert_or_assign(index, view);
  return *this;
}

Run& Run::first_step(std::int64_t step) {
  state_->first_step = step;
  state_->forwarded = nullptr;
  return *this;
}

void Run::inference() {
  const bool sequences = !state_->sequences.empty();
  state_->run_forward_kind(sequences ? Kind::inference : Kind::inference_final_state, sequences,
                           [](const Buffer&) { return Bound{}; });
}

std::size_t Run::workspace_bytes() { return static_cast<std::size_t>(state_->room().bytes + alignment); }

void Run::forward(const View& workspace) {
  detail::RunState& run = *state_;
  const detail::RunState::Room room = run.room();
  std::byte* start = run.base(workspace, room);
  const bool sequences = run.kernel->options.training.state_sequences;
  if (!sequences && !run.sequences.empty())
    run.fail(
        "sequences of states are bound, but the kernel gives last states; compile it with "
        "training.state_sequences");
  run.forwarded = nullptr;
  const Plan& backward = run.kernel->executable(Kind::backward, run.layout(), {})->plan();
  for (const Buffer& buffer : backward.buffers) {
    const auto found = run.first.find(buffer.index);
    if (buffer.holds == Holds::first_state && found != run.first.end() && run.elements > 0)
      std::memcpy(run.from_workspace(start, room, buffer).data, found->second.data(),
                  static_cast<std::size_t>(run.elements * bytes_of(buffer.mem)));
  }
  run.run_forward_kind(Kind::forward, sequences, [&](const Buffer& buffer) {
    return buffer.write ? run.from_workspace(start, room, buffer) : Bound{};
  });
  run.forwarded = workspace.data();
  run.forwarded_room = room;
}

void Run::backward(const View& workspace, const Views& arriving, const Views& wanted) {
  state_->run_backward(workspace, arriving, wanted);
}

Run Kernel::bind(Extent extent) const {
  auto run = std::make_shared<detail::RunState>();
  run->kernel = state_;
  run->extent = std::move(extent);
  if (run->extent.steps < 0) run->fail("the number of steps must not be negative, found ", run->extent.steps);
  for (std::int64_t dim : run->extent.shape) {
    if (dim < 0) run->fail("the step's shape ", text_of(run->extent.shape), " must not be negative");
    if (__builtin_mul_overflow(run->elements, dim, &run->elements))
      run->fail("the step's shape ", text_of(run->extent.shape), " has too many elements");
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(run->elements, run->extent.steps, &bytes) ||
      __builtin_mul_overflow(bytes, 8, &bytes))
    run->fail(shape_text(run->extent), " are too many elements");
  return Run(std::move(run));
}

const KernelInfo& Kernel::info(Kind kind) const {
  if (kind == Kind::forward || kind == Kind::backward) state_->require_training();
  return state_->infos[static_cast<int>(kind)];
}

Kernel compile(const Neuron& neuron, const CompileOptions& options) {
  const std::vector<std::string> targets = {"cpu", "interpreter"};
  if (std::find(targets.begin(), targets.end(), options.target) == targets.end())
    user_error("there is no target '", options.target, "'", did_you_mean(options.target, targets),
               "; choose cpu or interpreter");
  constexpr int most_threads = 1024;
  if (options.threads < 0 || options.threads > most_threads)
    user_error("the number of threads must be from 0 to ", most_threads, ", found ", options.threads);
  if (const std::string why = cpu_absent(); options.target == "cpu" && !why.empty()) throw UserError(why);
  auto state = std::make_shared<detail::KernelState>();
  state->options = options;
  state->step = compile(neuron.graph(options.training.type), Stage::simplified);
  if (!options.parallel_for)
    state->pool = shared_pool(options.threads > 0 ? options.threads : default_thread_count());
  for (Kind kind : {Kind::inference, Kind::inference_final_state})
    state->infos[static_cast<int>(kind)] = kernel_info(neuron, kind, options.training);
  try {
    state->joint = joint_of(state->step, options.training);
    state->trainable = true;
  } catch (const UserError& error) {
    // What is asked for is the caller's; that nothing carries a gradient is a fact about the neuron.
    if (!options.training.wanted.empty() || options.training.arriving) throw;
    state->untrainable = error.what();
  }
  if (state->trainable) {
    state->parts = partition(state->joint, options.training);
    for (Kind kind : {Kind::forward, Kind::backward})
      state->infos[static_cast<int>(kind)] = kernel_info(neuron, kind, options.training);
  }
  return Kernel(std::move(state));
}

}  // namespace flexsn
