#include "call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <list>

#include "bind.h"
#include "error.h"
#include "fresh.h"

#ifndef INTRA_OP_PARALLEL
#error "at::parallel_for would run one thread; compile this file with OpenMP"
#endif

namespace flexsn {

using namespace ir;

namespace {

/// What a person reads of a tensor's type.
std::string type_text(at::ScalarType type) {
  const std::string hint = type == at::kLong ? " (integers of a step are int32: use .int())" : "";
  return join(c10::toString(type), hint);
}

/// Is this a process forked from the one that loaded the library? (Asking for its number takes longer.)
std::atomic<bool> forked = false;
[[maybe_unused]] const int forks_are_noted = ::pthread_atfork(nullptr, nullptr, [] { forked = true; });

/// torch's threads; a child process after a fork has none of them and runs alone.
Threads torch_threads() {
  Threads threads;
  threads.grain = std::int64_t{1} << 20;  // they stay awake for a while after a task
  threads.count = !forked && !at::in_parallel_region() ? at::get_num_threads() : 1;
  if (threads.count > 1)
    threads.parallel_for = [](std::int64_t count, const std::function<void(std::int64_t)>& task) {
      at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) task(i);
      });
    };
  return threads;
}

/// Is one step of the sequence an array without gaps?
bool rows_are_dense(const at::Tensor& tensor, std::size_t first_dim) {
  std::int64_t expected = 1;
  for (std::int64_t d = tensor.dim() - 1; d >= static_cast<std::int64_t>(first_dim); --d) {
    if (tensor.size(d) != 1 && tensor.stride(d) != expected) return false;
    expected *= tensor.size(d);
  }
  return true;
}

/// What a tensor is called in errors; written out only when there is one.
struct Name {
  const char* what;
  std::size_t place;
};
std::ostream& operator<<(std::ostream& out, const Name& name) {
  return out << name.what << ' ' << name.place;
}

/// Tensors of one call that must live until it ends, and where kernels find them.
class Call {
 public:
  Call(const TorchNeuron& neuron, at::IntArrayRef shape, at::Device device)
      : neuron_(neuron),
        device_(device),
        steps_(shape[0]),
        whole_(shape.vec()),
        step_(shape.begin() + 1, shape.end()) {
    elements_ = elements_of(step_);
  }

  std::int64_t steps() const { return steps_; }
  std::int64_t elements() const { return elements_; }
  const Shape& step() const { return step_; }
  const Argument& argument(int index) const { return neuron_.graph().arguments[index]; }

  template <class... Parts>
  [[noreturn]] static void fail(const Parts&... parts) {
    user_error("flexsn: ", parts...);
  }

  const Shape& sequence_shape() const { return whole_; }

  void check(const Name& what, const at::Tensor& tensor, Mem mem, const Shape& shape,
             const char* remedy = "") const {
    if (tensor.device() != device_)
      fail(what, " is on ", tensor.device().str(), ", but other tensors of the call are on ",
           device_.is_cpu() ? "the CPU" : device_.str(), "; move it");
    if (tensor.scalar_type() != scalar_type(mem))
      fail(what, " must be ", c10::toString(scalar_type(mem)), ", found ", type_text(tensor.scalar_type()));
    if (tensor.sizes() != at::IntArrayRef(shape))
      fail(what, " must have shape ", text_of(shape), ", found ", text_of(tensor.sizes().vec()), remedy);
    if (tensor.layout() != at::kStrided) fail(what, " must be a dense tensor; use .to_dense()");
    check_memory(what, tensor);
  }

  /// Storage can be made smaller under a tensor.
  static void check_memory(const Name& what, const at::Tensor& tensor) {
    if (tensor._is_zerotensor()) return;
    const std::size_t needed = at::detail::computeStorageNbytes(
        tensor.sizes(), tensor.strides(), tensor.element_size(), tensor.storage_offset());
    if (const std::size_t found = tensor.storage().nbytes(); needed > found)
      C10_THROW_ERROR(TypeError, join("flexsn: ", what, " is a tensor whose memory was freed: it needs a ",
                                      "storage of ", needed, " bytes, found ", found, "; make it anew"));
  }

  /// [T, step shape]: rows with any distance between them are read where they are, others are copied.
  Bound sequence(const Name& what, const at::Tensor& given, Mem mem) {
    check(what, given, mem, sequence_shape());
    const at::Tensor& tensor = settled(given);
    if (rows_are_dense(tensor, 1)) return bound(tensor, tensor.stride(0));
    if (tensor.stride(0) == 0 && steps_ > 0) return bound(keep(tensor.select(0, 0).contiguous()), 0);
    return bound(keep(tensor.contiguous()), elements_);
  }

  /// One step.
  Bound once(const Name& what, const at::Tensor& given, Mem mem) {
    check(what, given, mem, step_, "; call reset() before a batch of another shape");
    const at::Tensor& tensor = settled(given);
    return bound(tensor.is_contiguous() ? tensor : keep(tensor.contiguous()), elements_);
  }

  at::Tensor make(Mem mem, bool sequence) const { return make(sequence ? sequence_shape() : step_, mem); }
  at::Tensor make(at::IntArrayRef shape, Mem mem) const { return fresh(shape, scalar_type(mem), device_); }

  static Bound bound(const at::Tensor& tensor, std::int64_t row_stride) {
    return {.data = tensor.numel() == 0 ? to_come().data : tensor.data_ptr(), .row_stride = row_stride};
  }
  Bound written(const at::Tensor& tensor) const { return bound(tensor, elements_); }

  /// What torch has put off, a minus sign or zeros, written out; it does so itself for lists without gaps
  /// only.
  const at::Tensor& settled(const at::Tensor& tensor) {
    if (tensor._is_zerotensor()) return keep(at::zeros(tensor.sizes(), tensor.options()));
    return tensor.is_neg() ? keep(tensor.resolve_neg()) : tensor;
  }

  const at::Tensor& keep(at::Tensor tensor) { return held_.emplace_back(std::move(tensor)); }

  // ---- states and parameters: how they lie in memory chooses the kernel ---------------------------------

  template <class List>
  void bind_states(const List& states) {
    const std::vector<int>& places = neuron_.states();
    if (states.size() != 0 && static_cast<std::size_t>(states.size()) != places.size())
      fail("expected ", places.size(), " states, or none at all for those that start at zero, found ",
           states.size());
    for (std::size_t i = 0; i < places.size(); ++i)
      maps_.push_back(states.size() == 0 ? Map::scalar : Map::element);
  }

  void bind_params(at::TensorList params) {
    const std::vector<int>& places = neuron_.params();
    if (params.size() != places.size())
      fail("expected ", places.size(), " parameters, found ", params.size());
    for (std::size_t i = 0; i < params.size(); ++i) bind_param(i, params[i]);
  }

  const std::vector<Map>& maps() const { return maps_; }
  const Bound& param(std::size_t place) const { return params_[place]; }
  const Shape& param_shape(std::size_t place) const { return param_shapes_[place]; }

  /// One value for all elements, which the neuron holds.
  Bound initial(int index) const {
    return {.data = neuron_.initial(index), .row_stride = 0, .host = !device_.is_cpu()};
  }

  Place place() const { return device_.is_cpu() ? Place::cpu : Place::cuda; }
  PlanRun plan_run() const {
    PlanRun run{.steps = steps_, .elements = elements_, .first_step = 0, .buffers = {}};
    if (device_.is_cpu()) return run;
    run.device = device_.index();
    run.stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).native_handle();
    return run;
  }

 private:
  void bind_param(std::size_t place, const at::Tensor& tensor) {
    const Argument& wanted = argument(neuron_.params()[place]);
    const auto fail_for = [&](const auto&... parts) {
      fail("neuron '", neuron_.graph().name, "': ", parts...);
    };
    Shape shape = tensor.sizes().vec();
    if (wanted.per_step) {
      if (shape.empty() || shape[0] != steps_)
        fail_for("parameter '", wanted.name, "' changes with time, so its shape must start with T = ", steps_,
                 ", found ", text_of(shape));
      shape.erase(shape.begin());
    }
    require_parameter_on(device_, neuron_, place, tensor);
    check(Name{"parameter", place}, tensor, wanted.mem, tensor.sizes().vec());
    const std::optional<Broadcast> how = broadcast(step_, shape);
    if (!how)
      fail_for("parameter '", wanted.name, "' has shape ", text_of(shape),
               ", which does not broadcast to the step's shape ", text_of(step_), "; ",
               shape_that_fits(shape));
    const at::Tensor& dense = keep(tensor.contiguous());
    const std::int64_t row = elements_of(shape), rows = wanted.per_step ? steps_ : 1;
    // A GPU would have to be waited for.
    if (device_.is_cpu())
      if (const std::string wrong = out_of_range(wanted, dense.data_ptr(), rows * row); !wrong.empty())
        fail_for(wrong);
    Bound where = bound(dense, wanted.per_step ? row : 0);
    where.inner = how->inner;
    where.count = how->count;
    if (how->spread) where = bound(keep(spread(dense, rows, shape)), wanted.per_step ? elements_ : 0);
    maps_.push_back(how->spread ? Map::element : how->map);
    params_.push_back(where);
    param_shapes_.push_back(std::move(shape));
  }

  /// What to do with a parameter that does not broadcast.
  std::string shape_that_fits(const Shape& shape) const {
    // A list that is as long as another dimension than the last is most likely meant for that one.
    if (shape.size() == 1 && step_.size() > 1) {
      std::vector<std::size_t> dims = {1};  // where channels usually are
      for (std::size_t d = 0; d + 1 < step_.size(); ++d) dims.push_back(d);
      for (std::size_t d : dims)
        if (step_[d] == shape[0]) {
          Shape fits(step_.size() - d, 1);
          fits[0] = shape[0];
          return join("for an entry at each place of dimension ", d, " of a step, give it the shape ",
                      text_of(fits));
        }
    }
    return "each dimension, counted from the right, must be 1 or equal, and there may be no more of them";
  }

  /// A parameter with an entry for each element.
  at::Tensor spread(const at::Tensor& dense, std::int64_t rows, const Shape& shape) const {
    Shape narrow(1 + step_.size(), 1), wide = step_;
    narrow[0] = rows;
    std::copy_backward(shape.begin(), shape.end(), narrow.end());
    wide.insert(wide.begin(), rows);
    return dense.view(narrow).expand(wide).contiguous();
  }

  const TorchNeuron& neuron_;
  const at::Device device_;
  std::int64_t steps_, elements_ = 1;
  Shape whole_, step_;
  std::list<at::Tensor> held_;
  std::vector<Map> maps_;
  std::vector<Bound> params_;
  std::vector<Shape> param_shapes_;
};

/// The shape of what forward leaves for backward.
Shape saved_shape(const Call& call, const Plan& plan, const Buffer& buffer) {
  if (buffer.lead != Lead::per_segment) return call.sequence_shape();
  return {rows_of(plan, buffer, call.steps()) * call.elements() + checkpoint_pad};
}

/// Writes what no kernel writes and nothing reads. On a GPU it stays as it is: a launch takes longer than
/// some calls.
void clear_pad(const at::Tensor& checkpoints) {
  const auto bytes = checkpoint_pad * checkpoints.element_size();
  if (checkpoints.is_cpu())
    std::memset(static_cast<std::byte*>(checkpoints.data_ptr()) + checkpoints.nbytes() - bytes, 0, bytes);
}

/// Compiles backward beside forward, for the gradients that most calls have.
void prepare_training(const Call& call, Requested& requested, const Executable& forward, const PlanRun& run,
                      bool given_states) {
  const std::shared_ptr<const Executable> backward =
      requested.executable(call.place(), Kind::backward, call.maps());
  prepare_both(forward, run, *backward, [&](const Buffer& buffer) {
    return buffer.holds != Holds::grad_last_state && buffer.holds != Holds::grad_state_sequence &&
           (buffer.holds != Holds::grad_first_state || given_states);
  });
}

std::size_t place_of(const std::vector<int>& places, int index) {
  return static_cast<std::size_t>(std::find(places.begin(), places.end(), index) - places.begin());
}

}  // namespace

at::ScalarType scalar_type(Mem mem) {
  switch (mem) {
    case Mem::f16:
      return at::kHalf;
    case Mem::bf16:
      return at::kBFloat16;
    case Mem::f32:
      return at::kFloat;
    case Mem::f64:
      return at::kDouble;
    case Mem::i32:
      return at::kInt;
    case Mem::u8:
      return at::kByte;
    case Mem::b8:
      return at::kBool;
  }
  internal_check(false, "a memory type that torch does not have");
  return at::kFloat;
}

void require_parameter_on(at::Device device, const TorchNeuron& neuron, std::size_t place,
                          const at::Tensor& tensor) {
  if (device.is_meta() ? tensor.is_meta() : tensor.device() == device) return;
  const ir::Graph& graph = neuron.graph();
  user_error("flexsn: neuron '", graph.name, "': parameter '", graph.arguments[neuron.params()[place]].name,
             "' is on ", tensor.device().str(), ", but other tensors of the call are on ", device.str(),
             "; move it, or the module that it is of");
}

std::vector<at::Tensor> run_forward(const TorchNeuron& neuron, at::TensorList inputs, at::TensorList states,
                                    at::TensorList params, const Request& request, bool training) {
  if (inputs.size() != neuron.inputs().size())
    Call::fail("expected ", neuron.inputs().size(), " inputs, found ", inputs.size());
  if (inputs[0].dim() == 0) Call::fail("input 0 must have time as its first dimension, found a scalar");
  Call call(neuron, inputs[0].sizes(), inputs[0].device());
  std::vector<Bound> bound_inputs, bound_states;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    bound_inputs.push_back(call.sequence(Name{"input", i}, inputs[i], call.argument(neuron.inputs()[i]).mem));
  call.bind_states(states);
  for (std::size_t i = 0; i < neuron.states().size(); ++i) {
    const int index = neuron.states()[i];
    bound_states.push_back(states.empty() ? call.initial(index)
                                          : call.once(Name{"state", i}, states[i], call.argument(index).mem));
  }
  call.bind_params(params);

  Requested& requested = neuron.requested(request);
  if (training) requested.require_training();
  const Kind kind = training            ? Kind::forward
                    : request.sequences ? Kind::inference
                                        : Kind::inference_final_state;
  const std::shared_ptr<const Executable> executable = requested.executable(call.place(), kind, call.maps());

  std::vector<at::Tensor> results;
  for (int index : neuron.outputs()) results.push_back(call.make(neuron.graph().results[index].mem, true));
  for (int index : neuron.states()) results.push_back(call.make(call.argument(index).mem, request.sequences));
  const std::size_t first_state = neuron.outputs().size(), first_saved = results.size();
  PlanRun run = call.plan_run();
  for (const Buffer& buffer : executable->plan().buffers) {
    switch (buffer.holds) {
      case Holds::input:
        run.buffers.push_back(bound_inputs[place_of(neuron.inputs(), buffer.index)]);
        break;
      case Holds::first_state:
        run.buffers.push_back(bound_states[place_of(neuron.states(), buffer.index)]);
        break;
      case Holds::param:
        run.buffers.push_back(call.param(place_of(neuron.params(), buffer.index)));
        break;
      case Holds::output:
        run.buffers.push_back(call.written(results[place_of(neuron.outputs(), buffer.index)]));
        break;
      case Holds::state_sequence:
      case Holds::last_state:
        if ((buffer.holds == Holds::state_sequence) == request.sequences)
          run.buffers.push_back(call.written(results[first_state + place_of(neuron.states(), buffer.index)]));
        else
          run.buffers.push_back({});
        break;
      default: {
        results.push_back(call.make(saved_shape(call, executable->plan(), buffer), buffer.mem));
        run.buffers.push_back(call.written(results.back()));
      }
    }
  }
  internal_check(!training || results.size() == first_saved + requested.saved().size(),
                 "what is saved depends on how parameters lie in memory");
  if (training && !executable->is_ready(run))
    prepare_training(call, requested, *executable, run, !states.empty());
  executable->run(run, torch_threads());
  for (std::size_t i = first_saved; i < results.size(); ++i)
    if (requested.saved()[i - first_saved].lead == Lead::per_segment) clear_pad(results[i]);
  return results;
}

std::vector<int> places_now(const TorchNeuron& neuron, const Request& request, at::IntArrayRef now) {
  std::vector<int> arguments;
  const auto contains = [](const std::vector<int>& list, int index) {
    return std::find(list.begin(), list.end(), index) != list.end();
  };
  for (std::int64_t place : now) {
    if (place < 0 || static_cast<std::size_t>(place) >= neuron.arguments().size())
      Call::fail("there is no argument ", place, " to take a gradient of; there are ",
                 neuron.arguments().size());
    const int index = neuron.arguments()[place];
    if (!neuron.differentiable(index)) Call::fail(neuron.graph().arguments[index].name, " has no gradient");
    if (!request.wanted.empty() && !contains(request.wanted, index))
      Call::fail("backward is to give the gradient of argument ", place,
                 ", which is not among those that are wanted");
    if (contains(arguments, index)) Call::fail("the gradient of argument ", place, " is wanted now twice");
    arguments.push_back(index);
  }
  return arguments;
}

namespace {

/// Where the tensors of backward are: all in the same place, or what binds them says which is not.
at::Device device_of(const BackwardCall& given) {
  for (const OptionalTensors* list : {&given.grads, &given.inputs, &given.states, &given.results})
    for (const std::optional<at::Tensor>& tensor : *list)
      if (tensor && tensor->defined()) return tensor->device();
  return given.params.empty() ? at::Device(at::kCPU) : given.params[0].device();
}

}  // namespace

std::vector<at::Tensor> run_backward(const TorchNeuron& neuron, const BackwardCall& given,
                                     const Request& request) {
  if (given.shape.empty()) Call::fail("the shape must be [T, step shape], found []");
  Call call(neuron, given.shape, device_of(given));
  Requested& requested = neuron.requested(request);
  requested.require_training();
  const Graph& joint = requested.joint();
  const std::size_t outputs = neuron.outputs().size(), states = neuron.states().size();
  const auto count = [](const char* what, std::size_t expected, std::size_t found) {
    if (expected != found) Call::fail("backward expected ", expected, " ", what, ", found ", found);
  };
  count("gradients", outputs + states, given.grads.size());
  count("inputs", neuron.inputs().size(), given.inputs.size());
  count("results of forward", outputs + states + requested.saved().size(), given.results.size());
  call.bind_states(given.states);
  call.bind_params(given.params);

  std::vector<int> absent;
  for (std::size_t a = 0; a < joint.arguments.size(); ++a)
    if (joint.arguments[a].role == Role::grad_output &&
        !given.grads.get(place_of(neuron.outputs(), joint.arguments[a].of)).has_value())
      absent.push_back(static_cast<int>(a));

  std::map<int, at::Tensor> gradients;  // by argument
  const std::vector<int> now = places_now(neuron, request, given.now);
  for (int index : now) {
    const Argument& argument = call.argument(index);
    if (argument.role == Role::param)
      gradients[index] = call.make(given.params[place_of(neuron.params(), index)].sizes(), argument.mem);
    else
      gradients[index] = call.make(gradient_memory(argument), argument.role == Role::input);
  }

  const std::shared_ptr<const Executable> executable =
      requested.executable(call.place(), Kind::backward, call.maps(), absent);
  const Plan& plan = executable->plan();
  const auto read = [&](const OptionalTensors& list, std::size_t place, const char* what) -> at::Tensor {
    const std::optional<at::Tensor> found = list.get(place);
    if (!found || !found->defined()) Call::fail("backward reads ", what, " ", place, ", which is missing");
    return *found;
  };
  PlanRun run = call.plan_run();
  ParamGradients param_gradients{.step = call.step()};
  for (const Buffer& buffer : plan.buffers) {
    const auto state_place = [&] { return place_of(neuron.states(), buffer.index); };
    Bound bound;
    switch (buffer.holds) {
      case Holds::input: {
        const std::size_t place = place_of(neuron.inputs(), buffer.index);
        bound = call.sequence(Name{"input", place}, read(given.inputs, place, "input"), buffer.mem);
        break;
      }
      case Holds::first_state:
        bound = given.states.size() == 0 ? call.initial(buffer.index)
                                         : call.once(Name{"state", state_place()},
                                                     read(given.states, state_place(), "state"), buffer.mem);
        break;
      case Holds::param:
        bound = call.param(place_of(neuron.params(), buffer.index));
        break;
      case Holds::output: {
        const std::size_t place = place_of(neuron.outputs(), buffer.index);
        bound = call.sequence(Name{"output", place}, read(given.results, place, "result"), buffer.mem);
        break;
      }
      case Holds::state_sequence:
        bound = call.sequence(Name{"the sequence of state", state_place()},
                              read(given.results, outputs + state_place(), "result"), buffer.mem);
        break;
      case Holds::saved:
      case Holds::checkpoint: {
        std::size_t next_saved = 0;
        for (; next_saved < requested.saved().size(); ++next_saved)
          if (requested.saved()[next_saved].holds == buffer.holds &&
              requested.saved()[next_saved].index == buffer.index)
            break;
        const at::Tensor saved = read(given.results, outputs + states + next_saved, "result");
        call.check(Name{"result", outputs + states + next_saved}, saved, buffer.mem,
                   saved_shape(call, plan, buffer));
        bound = Call::bound(saved.is_contiguous() ? saved : call.keep(saved.contiguous()), call.elements());
        break;
      }
      case Holds::grad_output: {
        const std::size_t place = place_of(neuron.outputs(), joint.arguments[buffer.index].of);
        bound = call.sequence(Name{"the gradient of output", place}, read(given.grads, place, "gradient"),
                              buffer.mem);
        break;
      }
      case Holds::grad_last_state:
      case Holds::grad_state_sequence: {
        const std::size_t place = place_of(neuron.states(), buffer.index);
        const std::optional<at::Tensor> found = given.grads.get(outputs + place);
        if (!found || !found->defined()) break;
        const Name what{"the gradient of state", place};
        const bool sequence = buffer.holds == Holds::grad_state_sequence;
        if (sequence != request.sequences) break;
        // Gradients of half-typed states are carried wider than torch hands them over.
        const at::Tensor grad = found->scalar_type() == scalar_type(buffer.mem)
                                    ? *found
                                    : call.keep(found->to(scalar_type(buffer.mem)));
        bound = sequence ? call.sequence(what, grad, buffer.mem) : call.once(what, grad, buffer.mem);
        break;
      }
      case Holds::grad_param:
        if (gradients.contains(buffer.index)) {
          const Shape& shape = call.param_shape(place_of(neuron.params(), buffer.index));
          param_gradients.list.push_back({.buffer = static_cast<int>(run.buffers.size()),
                                          .mem = call.argument(buffer.index).mem,
                                          .shape = shape,
                                          .to = gradients[buffer.index].data_ptr(),
                                          .row_stride = elements_of(shape)});
        }
        break;
      case Holds::grad_input:
      case Holds::grad_first_state:
        if (gradients.contains(buffer.index)) bound = call.written(gradients[buffer.index]);
        break;
      case Holds::last_state:
        break;
    }
    run.buffers.push_back(bound);
  }
  if (param_gradients.list.empty()) {
    executable->run(run, torch_threads());
  } else {
    constexpr std::int64_t alignment = 256;
    const at::Tensor& scratch =
        call.keep(call.make({executable->scratch_bytes(call.steps(), param_gradients) + alignment}, Mem::u8));
    const auto address = reinterpret_cast<std::uintptr_t>(scratch.data_ptr());
    param_gradients.scratch = reinterpret_cast<void*>((address + alignment - 1) / alignment * alignment);
    executable->run_backward(run, param_gradients, torch_threads());
  }

  std::vector<at::Tensor> out;
  for (int index : now) {
    const at::ScalarType type = scalar_type(call.argument(index).mem);
    out.push_back(gradients[index].scalar_type() == type ? gradients[index] : gradients[index].to(type));
  }
  return out;
}

}  // namespace flexsn
