// Modules with memories and step modes, and what is done to all of them in a network.
#include <ATen/ATen.h>

#include <algorithm>

#include "error.h"
#include "flexsn/torch.h"

namespace flexsn::nn {

namespace {

Memory detached(const Memory& memory) {
  if (!memory) return {};
  Tensors tensors;
  for (const Tensor& tensor : *memory) tensors.push_back(tensor.detach());
  return tensors;
}

/// The same values in memory of its own.
Memory copied(const Memory& memory) {
  Memory copy = detached(memory);
  if (copy)
    for (Tensor& tensor : *copy) tensor = tensor.clone();
  return copy;
}

std::string quoted(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "\"" : ", \"") + name + "\"";
  return all;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// A module that lies on the stack cannot be asked for pointers to its modules, but for its children.
void visit(torch::nn::Module& net, const std::function<void(MemoryModule&)>& call) {
  if (auto* module = dynamic_cast<MemoryModule*>(&net)) call(*module);
  for (const std::shared_ptr<torch::nn::Module>& child : net.children()) visit(*child, call);
}

}  // namespace

MemoryModule::MemoryModule(std::string name) : torch::nn::Module(std::move(name)) {}

// ---- running -------------------------------------------------------------------------------------------

std::vector<std::string> MemoryModule::supported_step_modes() const { return {"s", "m"}; }

void MemoryModule::set_step_mode(const std::string& step_mode) {
  if (const auto supported = supported_step_modes(); !contains(supported, step_mode))
    user_error(name(), ": step_mode must be one of ", quoted(supported), ", found \"", step_mode, "\"");
  step_mode_ = step_mode;
}

std::vector<std::string> MemoryModule::supported_backends() const { return {"torch"}; }

void MemoryModule::set_backend(const std::string& backend) {
  if (const auto supported = supported_backends(); !contains(supported, backend))
    user_error(name(), ": backend must be one of ", quoted(supported), ", found \"", backend, "\"");
  backend_ = backend;
}

Tensor MemoryModule::forward(const Tensor& input) {
  Tensors outputs = forward_all({input});
  if (outputs.size() != 1)
    user_error(name(), ": forward gives one output, but there are ", outputs.size(), "; use forward_all");
  return std::move(outputs[0]);
}

Tensors MemoryModule::forward_all(at::TensorList inputs) {
  return step_mode_ == "s" ? single_step_forward(inputs) : multi_step_forward(inputs);
}

Tensors MemoryModule::single_step_forward(at::TensorList) {
  user_error(name(), " does not define single_step_forward");
}

Tensors MemoryModule::multi_step_forward(at::TensorList inputs) {
  if (inputs.empty() || inputs[0].dim() == 0 || inputs[0].size(0) == 0)
    user_error(name(), ": a multi-step call needs an input with time as its first dimension, T >= 1");
  std::vector<Tensors> rows;
  for (std::int64_t t = 0; t < inputs[0].size(0); ++t) {
    Tensors now;
    for (const Tensor& input : inputs) now.push_back(input.select(0, t));
    const Tensors outputs = single_step_forward(now);
    rows.resize(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) rows[i].push_back(outputs[i]);
  }
  Tensors sequences;
  for (const Tensors& row : rows) sequences.push_back(at::stack(row));
  return sequences;
}

// ---- memories -----------------------------------------------------------------------------------------

void MemoryModule::register_memory(const std::string& name, Memory value) {
  if (memories_.contains(name)) user_error(this->name(), ": there is a memory \"", name, "\" already");
  memories_.insert(name, {.value = std::move(value), .reset_value = {}});
  set_reset_value(name, memories_[name].value);
}

const Memory& MemoryModule::memory(const std::string& name) const {
  if (!memories_.contains(name))
    user_error(this->name(), ": there is no memory \"", name, "\"; there are ", quoted(memories_.keys()));
  return memories_[name].value;
}

void MemoryModule::set_memory(const std::string& name, Memory value) {
  memory(name);
  memories_[name].value = std::move(value);
}

const Memory& MemoryModule::reset_value(const std::string& name) const {
  memory(name);
  return memories_[name].reset_value;
}

void MemoryModule::set_reset_value(const std::string& name, const Memory& value) {
  memory(name);
  memories_[name].reset_value = copied(value);
}

torch::OrderedDict<std::string, Memory> MemoryModule::named_memories() const {
  torch::OrderedDict<std::string, Memory> all;
  for (const auto& item : memories_) all.insert(item.key(), item.value().value);
  return all;
}

void MemoryModule::reset() {
  for (auto& item : memories_) item.value().value = copied(item.value().reset_value);
}

void MemoryModule::detach() {
  for (auto& item : memories_) item.value().value = detached(item.value().value);
}

template <class Change>
void MemoryModule::change_memories(const Change& change) {
  for (auto& item : memories_)
    for (Memory* memory : {&item.value().value, &item.value().reset_value})
      if (*memory)
        for (Tensor& tensor : **memory) tensor = change(tensor);
}

void MemoryModule::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  change_memories([&](const Tensor& tensor) {
    return tensor.is_floating_point() ? tensor.to(device, dtype, non_blocking)
                                      : tensor.to(device, non_blocking);
  });
}

void MemoryModule::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  change_memories([&](const Tensor& tensor) {
    return tensor.is_floating_point() ? tensor.to(dtype, non_blocking) : tensor;
  });
}

void MemoryModule::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  change_memories([&](const Tensor& tensor) { return tensor.to(device, non_blocking); });
}

void MemoryModule::own_memories(const std::optional<torch::Device>& device) {
  for (auto& item : memories_)
    item.value() = {.value = copied(item.value().value), .reset_value = copied(item.value().reset_value)};
  if (device) change_memories([&](const Tensor& tensor) { return tensor.to(*device); });
}

void MemoryModule::pretty_print(std::ostream& stream) const {
  stream << name() << "(step_mode=" << step_mode_ << ", backend=" << backend_ << ")";
}

// ---- a whole network -------------------------------------------------------------------------------------

void reset_net(torch::nn::Module& net) {
  visit(net, [](MemoryModule& module) { module.reset(); });
}

void detach_net(torch::nn::Module& net) {
  visit(net, [](MemoryModule& module) { module.detach(); });
}

void set_step_mode(torch::nn::Module& net, const std::string& step_mode) {
  visit(net, [&](MemoryModule& module) { module.set_step_mode(step_mode); });
}

void set_backend(torch::nn::Module& net, const std::string& backend,
                 const std::function<bool(const torch::nn::Module&)>& which) {
  visit(net, [&](MemoryModule& module) {
    if (which && !which(module)) return;
    const std::vector<std::string> supported = module.supported_backends();
    if (contains(supported, backend))
      module.set_backend(backend);
    else
      TORCH_WARN("set_backend leaves ", module.name(), " at backend \"", module.backend(), "\": it supports ",
                 quoted(supported), ", not \"", backend, "\"");
  });
}

}  // namespace flexsn::nn
