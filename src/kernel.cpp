// Kernels on the caller's arrays: compile, bind, run forward and backward.
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "bind.h"
#include "kernels.h"
#include "region.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::int64_t host_alignment = 64, gpu_alignment = 256;

std::int64_t bytes_of(Mem mem) { return static_cast<std::int64_t>(size_of(mem)); }

std::string shape_text(const Extent& extent) {
  return join("T = ", extent.steps, ", step shape ", text_of(extent.shape));
}

/// A number for each forward, so that backward knows its own in a workspace.
std::uint64_t next_stamp() {
  static std::atomic<std::uint64_t> count = 0;
  return ++count * 0x9e3779b97f4a7c15;  // unlike what else may lie in memory
}

}  // namespace

namespace detail {

/// What a kernel is, and descriptions of it for those who ask.
struct KernelState {
  KernelState(const Graph& traced, const CompileOptions& options)
      : kernels(traced, options), neuron(traced) {}

  const KernelInfo& info(Kind kind) {
    if (kind == Kind::forward || kind == Kind::backward) kernels.require_training();
    const std::lock_guard lock(mutex);
    std::optional<KernelInfo>& found = infos[static_cast<std::size_t>(kind)];
    if (!found) found = kernel_info(neuron, kind, kernels.options().training);
    return *found;
  }

  const Kernels kernels;

 private:
  const Neuron neuron;  ///< as it was traced
  std::mutex mutex;
  std::array<std::optional<KernelInfo>, 4> infos;
};

/// Arrays by name, checked when they are bound.
struct RunState {
  std::shared_ptr<KernelState> kernel;
  const Kernels* kernels = nullptr;  ///< those of `kernel`
  Extent extent;
  std::int64_t elements = 1, first_step = 0;
  void* stream = nullptr;
  struct BoundParam {
    View view;
    Shape shape;
    Broadcast broadcast;
    bool host = true;  ///< its values lie in the host's memory
  };
  std::map<int, View> inputs, first, last, sequences, outputs;  ///< by argument; outputs by result
  std::map<int, BoundParam> params;
  std::map<int, Array> defaults, spread;
  std::vector<std::shared_ptr<void>> expanded;  ///< parameters spread out on a GPU, while a run is queued
  /// Where each of the buffers that only forward and backward share lies, after the stamp at the start, and
  /// how large all of them are.
  struct Room {
    std::map<std::pair<Holds, int>, std::int64_t> places;
    std::int64_t bytes = 0;
    std::int64_t scratch = 0;  ///< where the memory for sums of parameter gradients starts
  };
  const void* forwarded = nullptr;  ///< the workspace that forward filled
  std::uint64_t stamp = 0;          ///< what forward left at its start
  Room forwarded_room;

  const Graph& step() const { return kernels->step(); }
  bool on_gpu() const { return kernels->options().target == "cuda"; }
  int device() const { return kernels->options().device; }

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
    fail("there is no ", word, " '", name, "'", which_there_are(name, names));
  }

  int output(const std::string& name) const {
    std::vector<std::string> names;
    for (std::size_t r = 0; r < step().results.size(); ++r) {
      if (step().results[r].gives != Gives::output) continue;
      if (step().results[r].name == name) return static_cast<int>(r);
      names.push_back(step().results[r].name);
    }
    fail("there is no output '", name, "'", which_there_are(name, names));
  }

  /// What a GPU reads and writes must be in its memory.
  void check_place(const std::string& what, const void* data, bool written) const {
    if (!on_gpu()) return;
    const std::optional<int> place = cuda_device_of(data, device());
    const std::string_view remedy = written ? "; give it memory there" : "; copy it there";
    if (!place)
      fail(what, " lies in the host's memory, but the kernel runs on CUDA device ", device(), remedy);
    if (*place != device())
      fail(what, " lies on CUDA device ", *place, ", but the kernel runs on device ", device(), remedy,
           ", or compile with options.device = ", *place);
  }

  void check_alignment(const std::string& what, const View& view) const {
    const std::int64_t size = bytes_of(view.type());
    const auto beyond = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data())) % size;
    if (beyond != 0)
      fail(what, " starts ", beyond, beyond == 1 ? " byte" : " bytes", " past a multiple of ", size,
           ", the size of ", name_of(view.type()), "; an array must start at a multiple");
  }

  /// `view` holds `rows` rows of `row` elements of `mem`; `by_value`: it may lie in the host's memory.
  void check(const std::string& what, const View& view, Mem mem, std::int64_t rows, std::int64_t row,
             bool written, bool by_value = false) const {
    if (view.type() != mem)
      fail(what, " must be ", name_of(mem), ", found ", name_of(view.type()),
           "; convert it, or trace the neuron for another type");
    const std::int64_t stride = view.row_stride().value_or(row);
    if (stride < 0) fail(what, " has rows every ", stride, " elements; the distance must not be negative");
    if (written && rows > 1 && stride < row)
      fail(what, " has rows every ", stride, " elements, but each has ", row,
           "; rows that are written must not overlap");
    std::int64_t needed = 0, bytes = 0;
    if (rows > 0 &&
        (__builtin_mul_overflow(rows - 1, stride, &needed) || __builtin_add_overflow(needed, row, &needed) ||
         __builtin_mul_overflow(needed, bytes_of(mem), &bytes)))
      fail(what, " has rows every ", stride, " elements, which is more than memory can have");
    if (view.count() < needed || (!view.row_stride() && view.count() != needed))
      fail(what, " must have ", needed, " elements (", shape_text(extent), "), found ", view.count());
    if (view.data() == nullptr && needed > 0) fail(what, " has no memory: its pointer is null");
    if (written && !view.writable()) fail(what, " is written, but its memory is constant");
    if (rows == 0 || row == 0) return;
    check_alignment(what, view);
    if (!by_value) check_place(what, view.data(), written);
  }

  /// What the values of a parameter are may change between a run and the next.
  void check_numbers() const {
    if (const std::string wrong = wrong_first_step(step(), first_step, extent.steps); !wrong.empty())
      fail(wrong);
    for (const auto& [index, param] : params) {
      if (!param.host) continue;
      const Argument& argument = step().arguments[index];
      const std::int64_t rows = argument.per_step ? extent.steps : 1;
      const std::string wrong = out_of_range(argument, param.view.data(), rows * elements_of(param.shape));
      if (!wrong.empty()) fail(wrong);
    }
  }

  /// All that is bound, and the workspace where there is one; what forward writes, backward may read.
  std::vector<Region> bound_regions(const View* workspace, bool backward) const {
    std::vector<Region> list;
    const auto add = [&](const char* word, const std::map<int, View>& views, std::int64_t rows, bool written,
                         bool state = false) {
      for (const auto& [index, view] : views) {
        const bool result = &views == &outputs;
        const std::string& name = result ? step().results[index].name : step().arguments[index].name;
        list.push_back(region(word, &name, view, rows, elements, written && !backward, state ? index : -1));
      }
    };
    add("input", inputs, extent.steps, false);
    add("state", first, 1, false, true);
    add("the last state", last, 1, true, true);
    add("the sequence of state", sequences, extent.steps, true);
    add("output", outputs, extent.steps, true);
    for (const auto& [index, param] : params) {
      const Argument& argument = step().arguments[index];
      list.push_back(region("param", &argument.name, param.view, argument.per_step ? extent.steps : 1,
                            elements_of(param.shape), false));
    }
    if (workspace != nullptr)
      list.push_back(region("the workspace", nullptr, *workspace, 1, workspace->count(), true));
    return list;
  }

  void check_overlaps(const std::vector<Region>& regions) const {
    for (std::size_t i = 0; i < regions.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const Region &a = regions[j], &b = regions[i];
        if ((!a.written && !b.written) || !share_a_byte(a, b)) continue;
        const bool one_state = a.state >= 0 && a.state == b.state;
        if (one_state && a.is_same(b)) continue;
        fail(a.what(), " and ", b.what(), " share memory; ",
             one_state ? "a state may be written where it is read, but then at exactly the same place"
                       : "what is written must overlap nothing else, so give it memory of its own");
      }
  }

  // ---- plans and their buffers -----------------------------------------------------------------------

  Layout layout() const {
    Layout layout;
    for (std::size_t a = 0; a < step().arguments.size(); ++a) {
      const Argument& argument = step().arguments[a];
      const int index = static_cast<int>(a);
      if (argument.role == Role::state && !first.contains(index)) layout[argument.name] = Map::scalar;
      const auto found = params.find(index);
      if (found != params.end()) layout[argument.name] = found->second.broadcast.map;
    }
    return layout;
  }

  /// What is empty may have no pointer, but it is bound: kernels are made for buffers that are.
  Bound rows_of_view(const View& view) const {
    return {.data = view.data() != nullptr ? view.data() : to_come().data,
            .row_stride = view.row_stride().value_or(elements)};
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
    Array& made = defaults.try_emplace(index, argument.mem, Shape{1}, argument.initial).first->second;
    return {.data = made.bytes.data(), .host = true};
  }

  /// Memory of the device until the run is queued.
  void* room_on_gpu(std::int64_t bytes) {
    void* out = nullptr;
    try {
      out = cuda_allocate(bytes, device(), stream);
    } catch (const UserError& error) {
      fail(error.what());
    }
    expanded.emplace_back(out, [at = device(), on = stream](void* data) {
      try {
        cuda_free(data, at, on);
      } catch (const UserError&) {  // the stream has failed, which whoever waits for it is told
      }
    });
    return out;
  }

  /// A single value may lie in the host's memory, but rows for each step may not, even if all are one.
  Bound standing_param(int index) {
    const Bound value = standing(index);
    const Argument& argument = step().arguments[index];
    if (!on_gpu() || !argument.per_step) return value;
    void* out = room_on_gpu(bytes_of(argument.mem));
    cuda_write(out, value.data, bytes_of(argument.mem), device(), stream);
    return {.data = out, .row_stride = 0};
  }

  Bound bound_param(int index) {
    const auto found = params.find(index);
    if (found == params.end()) return standing_param(index);
    const auto& [view, shape, broadcast, host] = found->second;
    const bool per_step = step().arguments[index].per_step;
    if (!broadcast.spread)
      return {.data = view.data(),
              .row_stride = per_step ? elements_of(shape) : 0,
              .inner = broadcast.inner,
              .count = broadcast.count,
              .host = host};
    const std::int64_t rows = per_step ? extent.steps : 1;
    if (on_gpu()) {
      if (rows * elements == 0) return {.data = view.data(), .row_stride = 0};
      void* out = room_on_gpu(rows * elements * bytes_of(view.type()));
      cuda_spread_out(extent.shape, shape, size_of(view.type()), rows, view.data(), out, device(), stream);
      return {.data = out, .row_stride = per_step ? elements : 0};
    }
    Array& out = spread[index];
    out = Array(view.type(), {rows * elements});
    spread_out(extent.shape, shape, size_of(view.type()), rows, view.data(), out.bytes.data());
    return {.data = out.bytes.data(), .row_stride = per_step ? elements : 0};
  }

  /// What this neuron calls a buffer: a kernel may be shared with one that has other names.
  const std::string& name_for(const Buffer& buffer) const {
    if (buffer.holds == Holds::output) return step().results[buffer.index].name;
    const Graph& joint = kernels->joint();
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
    return {.steps = extent.steps,
            .elements = elements,
            .first_step = first_step,
            .buffers = {},
            .device = device(),
            .stream = stream};
  }

  /// Gives expanded parameters back when a run is queued, or could not be.
  struct Release {
    std::vector<std::shared_ptr<void>>& list;
    ~Release() { list.clear(); }
  };

  /// A run of a forward kind; `own` gives the buffers that are not the caller's.
  PlanRun forward_run(const Plan& plan, const std::function<Bound(const Buffer&)>& own) {
    PlanRun run = plan_run();
    for (const Buffer& buffer : plan.buffers) {
      const Bound given = own(buffer);
      run.buffers.push_back(given.data != nullptr ? given : bound(buffer));
    }
    return run;
  }

  void run_inference() {
    check_numbers();
    check_overlaps(bound_regions(nullptr, false));
    const Kind kind = sequences.empty() ? Kind::inference_final_state : Kind::inference;
    const std::shared_ptr<const Executable> executable = kernels->executable(kind, layout());
    const Release release{expanded};
    executable->run(forward_run(executable->plan(), [](const Buffer&) { return Bound{}; }),
                    kernels->threads());
  }

  // ---- the workspace ---------------------------------------------------------------------------------

  /// The gradient that a buffer of backward is for, without the place where it goes.
  ParamGradient param_gradient(const Plan& plan, int buffer) const {
    const int index = plan.buffers[buffer].index;
    const auto found = params.find(index);
    return {.buffer = buffer,
            .mem = step().arguments[index].mem,
            .shape = found == params.end() ? Shape{} : found->second.shape};
  }

  Room room() {
    kernels->require_training();
    Room room{.places = {}, .bytes = alignment()};
    for (Kind kind : {Kind::forward, Kind::backward}) {
      const std::shared_ptr<const Executable> executable = kernels->executable(kind, layout());
      for (const Buffer& buffer : executable->plan().buffers) {
        // What backward reads again and the caller has no use for needs a place, too; and first states, which
        // may be written where they are read.
        const bool again = kind == Kind::backward && !buffer.write;
        const bool unbound = (buffer.holds == Holds::output && !outputs.contains(buffer.index)) ||
                             (buffer.holds == Holds::state_sequence && !sequences.contains(buffer.index));
        const bool own = buffer.holds == Holds::saved || buffer.holds == Holds::checkpoint ||
                         (again && (unbound || buffer.holds == Holds::first_state));
        if (!own || room.places.contains({buffer.holds, buffer.index})) continue;
        room.places[{buffer.holds, buffer.index}] = room.bytes;
        const std::int64_t bytes =
            rows_of(executable->plan(), buffer, extent.steps) * elements * bytes_of(buffer.mem);
        room.bytes += (bytes + alignment() - 1) / alignment() * alignment();
      }
    }
    room.scratch = room.bytes;
    const std::shared_ptr<const Executable> backward = kernels->executable(Kind::backward, layout());
    ParamGradients all{.step = extent.shape};
    for (std::size_t b = 0; b < backward->plan().buffers.size(); ++b)
      if (backward->plan().buffers[b].holds == Holds::grad_param)
        all.list.push_back(param_gradient(backward->plan(), static_cast<int>(b)));
    room.bytes += backward->scratch_bytes(extent.steps, all, Scratch::any_plan);
    return room;
  }

  /// Bytes of a workspace, wherever it starts.
  std::int64_t workspace_bytes(const Room& room) const { return room.bytes + alignment(); }
  std::int64_t alignment() const { return on_gpu() ? gpu_alignment : host_alignment; }

  std::byte* base(const View& workspace, const Room& room) const {
    if (workspace.count() * bytes_of(workspace.type()) < workspace_bytes(room))
      fail("the workspace must have ", workspace_bytes(room), " bytes (", shape_text(extent), "), found ",
           workspace.count() * bytes_of(workspace.type()), "; ask workspace_bytes() for the number");
    if (!workspace.writable()) fail("the workspace is written, but its memory is constant");
    if (workspace.data() == nullptr) fail("the workspace has no memory: its pointer is null");
    check_place("the workspace", workspace.data(), true);
    const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(workspace.data()));
    return static_cast<std::byte*>(workspace.data()) + (alignment() - address % alignment()) % alignment();
  }

  Bound from_workspace(std::byte* start, const Room& room, const Buffer& buffer) const {
    const auto found = room.places.find({buffer.holds, buffer.index});
    if (found == room.places.end()) return {};
    return {.data = start + found->second, .row_stride = elements};
  }

  void run_forward(const View& workspace) {
    const Room space = room();
    std::byte* start = base(workspace, space);
    if (!kernels->options().training.state_sequences && !sequences.empty())
      fail(
          "sequences of states are bound, but the kernel gives last states; compile it with "
          "training.state_sequences");
    check_numbers();
    check_overlaps(bound_regions(&workspace, false));
    const std::shared_ptr<const Executable> executable = kernels->executable(Kind::forward, layout());
    forwarded = nullptr;
    const Release release{expanded};
    const PlanRun run = forward_run(executable->plan(), [&](const Buffer& buffer) {
      return buffer.write ? from_workspace(start, space, buffer) : Bound{};
    });
    // A first state's gradient is seldom wanted, but by who names it.
    const bool names_gradients = !kernels->options().training.wanted.empty();
    kernels->prepare_training(layout(), *executable, run, [&](const Buffer& buffer) {
      return buffer.holds == Holds::grad_first_state ? names_gradients : !buffer.optional;
    });
    // What lies on a GPU cannot be looked at without waiting for it.
    stamp = next_stamp();
    if (!on_gpu()) std::memcpy(start, &stamp, sizeof stamp);
    const Plan& backward = kernels->executable(Kind::backward, layout())->plan();
    for (const Buffer& buffer : backward.buffers) {
      const auto found = first.find(buffer.index);
      if (buffer.holds != Holds::first_state || found == first.end() || elements == 0) continue;
      void* to = from_workspace(start, space, buffer).data;
      const std::int64_t bytes = elements * bytes_of(buffer.mem);
      if (on_gpu())
        cuda_copy(to, found->second.data(), bytes, device(), stream);
      else
        std::memcpy(to, found->second.data(), static_cast<std::size_t>(bytes));
    }
    executable->run(run, kernels->threads());
    forwarded = workspace.data();
    forwarded_room = space;
  }

  // ---- backward ----------------------------------------------------------------------------------------

  /// Says where the gradients lie.
  std::vector<Region> check_gradients(const Views& arriving, const Views& wanted) const {
    std::vector<Region> regions;
    if (arriving.empty()) fail("no gradient arrives; give one of an output or of a state");
    const Graph& joint = kernels->joint();
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
        const bool rows = at_output || kernels->options().training.state_sequences;
        const Mem mem = at_state && rows ? joint.arguments[argument.of].mem : argument.mem;
        regions.push_back(region(at_output ? "the gradient of output" : "the gradient of state", &name, view,
                                 rows ? extent.steps : 1, elements, false, rows ? -1 : argument.of));
        check(regions.back().what(), view, mem, rows ? extent.steps : 1, elements, false);
      }
      if (std::count(names.begin(), names.end(), name) > 1)
        fail("'", name,
             "' is an output and a state, so it does not say where the gradient arrives; rename one of them");
      if (!known && std::find(names.begin(), names.end(), name) == names.end())
        fail("there is no output or state '", name, "' for a gradient to arrive at",
             which_there_are(name, names));
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
        fail("there is no argument '", name, "' to take a gradient of", which_there_are(name, names));
      const std::vector<std::string>& compiled = kernels->options().training.wanted;
      const int index = static_cast<int>(found - step().arguments.data());
      const bool given = std::any_of(joint.results.begin(), joint.results.end(), [&](const Result& result) {
        return result.gives == Gives::grad && result.of == index;
      });
      const bool chosen =
          compiled.empty() || std::find(compiled.begin(), compiled.end(), name) != compiled.end();
      if (!given || !chosen)
        fail("the gradient of '", name, "' is not there: ",
             !is_float(value_type(found->mem)) ? join("it is ", name_of(found->mem), " and carries none")
             : chosen ? "the graph, which has its gradients already, does not give it"
                      : "the kernel was compiled for others (training.wanted)");
      const bool param = found->role == Role::param, state = found->role == Role::state;
      const auto bound_to = params.find(index);
      const std::int64_t rows = found->role == Role::input || found->per_step ? extent.steps : 1,
                         row = !param                     ? elements
                               : bound_to == params.end() ? 1
                                                          : elements_of(bound_to->second.shape);
      regions.push_back(region("the gradient of", &name, view, rows, row, true, state ? index : -1));
      check(regions.back().what(), view, param ? found->mem : gradient_memory(*found), rows, row, true);
    }
    return regions;
  }

  std::vector<int> absent_in(const Views& arriving) const {
    std::vector<int> absent;
    const Graph& joint = kernels->joint();
    for (std::size_t a = 0; a < joint.arguments.size(); ++a)
      if (joint.arguments[a].role == Role::grad_output &&
          !arriving.contains(joint.results[joint.arguments[a].of].name))
        absent.push_back(static_cast<int>(a));
    return absent;
  }

  void run_backward(const View& workspace, const Views& arriving, const Views& wanted) {
    kernels->require_training();
    std::vector<Region> regions = check_gradients(arriving, wanted);
    if (forwarded == nullptr || forwarded != workspace.data())
      fail("backward needs what forward left in this workspace; run forward on it first");
    const Room& space = forwarded_room;
    std::byte* start = base(workspace, space);
    if (!on_gpu() && std::memcmp(start, &stamp, sizeof stamp) != 0)
      fail(
          "another forward has used this workspace since, or something else has written to it; give each run "
          "a workspace of its own, and run forward again");
    check_numbers();
    for (Region& bound_region : bound_regions(&workspace, true)) regions.push_back(bound_region);
    check_overlaps(regions);
    const std::shared_ptr<const Executable> executable =
        kernels->executable(Kind::backward, layout(), absent_in(arriving));
    const Plan& plan = executable->plan();
    const Release release{expanded};
    PlanRun run = plan_run();
    ParamGradients sums{.step = extent.shape, .scratch = start + space.scratch};
    for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
      const Buffer& buffer = plan.buffers[b];
      const auto view_in = [&](const Views& views) {
        const auto found = views.find(name_for(buffer));
        return found == views.end() ? Bound{} : rows_of_view(found->second);
      };
      Bound given;
      if (buffer.holds == Holds::grad_param) {
        if (const auto found = wanted.find(name_for(buffer)); found != wanted.end()) {
          ParamGradient& gradient = sums.list.emplace_back(param_gradient(plan, static_cast<int>(b)));
          gradient.to = found->second.data();
          gradient.row_stride = found->second.row_stride().value_or(elements_of(gradient.shape));
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
    executable->run_backward(std::move(run), sums, kernels->threads());
  }
};

}  // namespace detail

Run& Run::in(const std::string& name, const View& view) {
  detail::RunState& run = held();
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::input, "input", name);
  run.check(join("input '", name, "'"), view, run.step().arguments[index].mem, run.extent.steps, run.elements,
            false);
  run.inputs.insert_or_assign(index, view);
  return *this;
}

Run& Run::param(const std::string& name, const View& view, std::vector<std::int64_t> shape) {
  detail::RunState& run = held();
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
  const std::optional<Broadcast> found = broadcast(run.extent.shape, shape);
  if (!found)
    run.fail(
        "param '", name, "' has shape ", text_of(shape), ", which does not broadcast to the step's shape ",
        text_of(run.extent.shape),
        "; each dimension, counted from the right, must be 1 or equal, and there may be no more of them");
  const std::int64_t row = elements_of(shape);
  const bool by_value = found->map == Map::scalar && !argument.per_step;
  run.check(join("param '", name, "' of shape ", text_of(given)), view, argument.mem,
            argument.per_step ? run.extent.steps : 1, row, false, by_value);
  if (view.row_stride().value_or(row) != row && argument.per_step)
    run.fail("param '", name, "' must have its rows side by side");
  const bool host = !run.on_gpu() || (by_value && !cuda_device_of(view.data(), run.device()));
  if (by_value && !host) run.check_place(join("param '", name, "'"), view.data(), false);
  if (host) {
    const std::string wrong =
        out_of_range(argument, view.data(), argument.per_step ? run.extent.steps * row : row);
    if (!wrong.empty()) run.fail(wrong);
  }
  run.params.insert_or_assign(index, detail::RunState::BoundParam{view, shape, *found, host});
  return *this;
}

Run& Run::state(const std::string& name, const View& view) {
  return first_state(name, view).last_state(name, view);
}

Run& Run::first_state(const std::string& name, const View& view) {
  detail::RunState& run = held();
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::state, "state", name);
  run.check(join("state '", name, "'"), view, run.step().arguments[index].mem, 1, run.elements, false);
  run.first.insert_or_assign(index, view);
  return *this;
}

Run& Run::last_state(const std::string& name, const View& view) {
  detail::RunState& run = held();
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::state, "state", name);
  run.check(join("the last state '", name, "'"), view, run.step().arguments[index].mem, 1, run.elements,
            true);
  run.last.insert_or_assign(index, view);
  return *this;
}

Run& Run::state_sequence(const std::string& name, const View& view) {
  detail::RunState& run = held();
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.argument(Role::state, "state", name);
  run.check(join("the sequence of state '", name, "'"), view, run.step().arguments[index].mem,
            run.extent.steps, run.elements, true);
  run.sequences.insert_or_assign(index, view);
  return *this;
}

Run& Run::out(const std::string& name, const View& view) {
  detail::RunState& run = held();
  run.forwarded = nullptr;  // backward belongs to what forward saw
  const int index = run.output(name);
  run.check(join("output '", name, "'"), view, run.step().results[index].mem, run.extent.steps, run.elements,
            true);
  run.outputs.insert_or_assign(index, view);
  return *this;
}

Run& Run::first_step(std::int64_t step) {
  detail::RunState& run = held();
  run.forwarded = nullptr;
  run.first_step = step;
  return *this;
}

Run& Run::stream(void* cuda_stream) {
  detail::RunState& run = held();
  if (!run.on_gpu())
    run.fail("a stream was given, but the target is ", run.kernels->options().target,
             "; compile with target \"cuda\"");
  run.stream = cuda_stream;
  return *this;
}

void Run::inference() { held().run_inference(); }

std::size_t Run::workspace_bytes() {
  detail::RunState& run = held();
  return static_cast<std::size_t>(run.workspace_bytes(run.room()));
}

void Run::forward(const View& workspace) { held().run_forward(workspace); }

void Run::backward(const View& workspace, const Views& arriving, const Views& wanted) {
  held().run_backward(workspace, arriving, wanted);
}

detail::RunState& Run::held() const {
  if (!state_) user_error("this run was moved to another; use that one, or bind the kernel again");
  return *state_;
}

detail::KernelState& Kernel::held() const {
  if (!state_) user_error("this kernel was moved to another; use that one, or compile the neuron again");
  return *state_;
}

Run Kernel::bind(Extent extent) const {
  auto run = std::make_shared<detail::RunState>();
  run->kernels = &held().kernels;
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

const KernelInfo& Kernel::info(Kind kind) const { return held().info(kind); }

Kernel compile(const Neuron& neuron, const CompileOptions& options) {
  const std::vector<std::string> targets = {"cpu", "cuda", "interpreter"};
  if (std::find(targets.begin(), targets.end(), options.target) == targets.end()) {
    const bool is_gpu = options.target == "gpu";
    user_error("there is no target '", options.target, "'",
               is_gpu ? " (did you mean 'cuda'?)" : did_you_mean(options.target, targets),
               "; choose cpu, cuda or interpreter");
  }
  if (options.target != "cuda" && options.device != 0)
    user_error("device ", options.device, " is asked for, but target '", options.target,
               "' has none; choose target cuda, or leave the device at 0");
  if (options.threads < 0 || options.threads > most_threads)
    user_error("the number of threads must be from 0 to ", most_threads, ", found ", options.threads);
  const std::string why = options.target == "cpu"    ? cpu_absent()
                          : options.target == "cuda" ? cuda_absent()
                                                     : "";
  if (!why.empty()) throw UserError(why);
  CompileOptions chosen = options;
  if (options.target == "cuda") {
    if (options.device < 0 || options.device >= cuda_device_count())
      user_error("there is no CUDA device ", options.device, "; this process sees ", cuda_device_count(),
                 ", counted from 0");
    if (options.training.costs.name == CostModel().name) chosen.training.costs = cost_model_named("gpu");
  }
  return Kernel(std::make_shared<detail::KernelState>(neuron.graph(options.training.type), chosen));
}

}  // namespace flexsn
