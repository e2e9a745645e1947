// The libtorch front end: modules with states, kernels, state dicts shared with Python, on tensors.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <sstream>

#include "flexsn/torch.h"

namespace flexsn {
namespace {

using nn::FlexSN;
using nn::FlexSNKernel;
using nn::FlexSNOptions;
using nn::Memory;
using nn::Tensors;
using torch::Tensor;

/// A neuron with two states, one of which does not start at 0, and a parameter with a range.
const Neuron alif = neuron("alif", [](Step& s) {
  auto x = s.input("x"), v = s.state("v"), a = s.state("a", 0.25);
  auto tau = s.param("tau", 2.0, {.low = 1.0}), beta = s.param("beta", 0.2);
  auto h = v + (x - v) / tau;
  auto z = spike(h - 0.5 - beta * a, surrogate::atan(2.0));
  s.next(v, select(z > 0, 0.0, h));
  s.next(a, 0.9 * a + z);
  s.output("z", z);
});

/// Two inputs and two outputs, no parameter.
const Neuron gate = neuron("gate", [](Step& s) {
  auto x = s.input("x"), y = s.input("y"), v = s.state("v");
  s.next(v, v + x * y);
  s.output("sum", v + x);
  s.output("over", v > 1.0);
});

/// Has a parameter with a value for each step.
const Neuron scaled = neuron("scaled", [](Step& s) {
  auto x = s.input("x"), v = s.state("v"), gain = s.step_param("gain", 2.0);
  s.next(v, v + gain * x);
  s.output("y", v + gain * x);
});

/// Reads the number of its step.
const Neuron clock = neuron("clock", [](Step& s) {
  auto x = s.input("x"), v = s.state("v");
  s.next(v, v + x);
  s.output("y", x + cast(s.step_index(), Type::f32));
});

/// The core of torch_state_dict.py.
const Neuron leaky = neuron("leaky", [](Step& s) {
  auto x = s.input("x"), v = s.state("v"), rate = s.param("rate", 0.5),
       threshold = s.param("threshold", 0.75);
  auto h = v + (x - v) * rate;
  auto z = spike(h - threshold, surrogate::atan(2.0));
  s.next(v, h * (1.0 - z));
  s.output("z", z);
});

/// What an error says; "" where there is none.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const Tensor left = a.detach().contiguous(), right = b.detach().contiguous();
  return std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

::testing::AssertionResult same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " tensors and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i], b[i])) return ::testing::AssertionFailure() << "tensor " << i << " differs";
  return ::testing::AssertionSuccess();
}

Array array_of(const Tensor& tensor) {
  const Tensor dense = tensor.detach().contiguous();
  Array array(Mem::f32, dense.sizes().vec());
  std::memcpy(array.bytes.data(), dense.data_ptr(), array.bytes.size());
  return array;
}

Tensor tensor_of(const Array& array) {
  return torch::from_blob(const_cast<std::byte*>(array.bytes.data()), array.shape, torch::kFloat).clone();
}

FlexSN learning(FlexSNOptions options = {}) {
  options.params["tau"] = torch::tensor({1.5, 2.0, 3.0}, torch::kFloat).view({3, 1});
  options.learnable = {"tau"};
  return FlexSN(alif, options);
}

class TorchModule : public ::testing::Test {
 protected:
  Tensor x = (torch::manual_seed(5), 2 * torch::randn({7, 2, 3, 4}));
};

// ---- what is computed
// --------------------------------------------------------------------------------------

TEST_F(TorchModule, ForwardAndBackwardHaveTheBitsOfTheInterpreter) {
  FlexSN module = learning();
  x.requires_grad_();
  const Tensor z = module(x), grad = torch::randn_like(z);
  z.backward(grad);

  Arguments arguments;
  arguments.inputs["x"] = array_of(x);
  arguments.params["tau"] = array_of(module->param("tau"));
  const Results results = run(alif, arguments);
  EXPECT_TRUE(same_bits(z, tensor_of(results.outputs.at("z"))));
  EXPECT_TRUE(same_bits(module->states()->at(0), tensor_of(results.states.at("v"))));
  EXPECT_TRUE(same_bits(module->states()->at(1), tensor_of(results.states.at("a"))));
  const Gradients gradients = run_backward(alif, arguments, {.outputs = {{"z", array_of(grad)}}});
  EXPECT_TRUE(same_bits(x.grad(), tensor_of(gradients.inputs.at("x"))));
  EXPECT_TRUE(same_bits(module->param("tau").grad(), tensor_of(gradients.params.at("tau"))));
  EXPECT_FALSE(module->param("beta").requires_grad());
}

TEST_F(TorchModule, StepsOneByOneGiveTheBitsOfTheSequence) {
  FlexSN whole = learning(), one_by_one = learning({.backend = "torch"}),
         single = learning({.step_mode = "s"});
  const Tensor grad = torch::randn_like(x);
  std::vector<Tensors> found;
  for (FlexSN* module : {&whole, &one_by_one, &single}) {
    Tensor input = x.clone().requires_grad_();
    Tensors rows;
    if (module == &single)
      for (std::int64_t t = 0; t < x.size(0); ++t) rows.push_back((*module)(input[t]));
    const Tensor z = rows.empty() ? (*module)(input) : torch::stack(rows);
    z.backward(grad);
    found.push_back({z, (*module)->states()->at(0), (*module)->states()->at(1), input.grad()});
    // Summed over elements and time in another order.
    EXPECT_TRUE(torch::allclose((*module)->param("tau").grad(), whole->param("tau").grad(), 1e-4, 1e-5));
  }
  EXPECT_TRUE(same_bits(found[0], found[1]));
  EXPECT_TRUE(same_bits(found[0], found[2]));
}

TEST_F(TorchModule, ChunksWithCarriedStatesGiveTheBitsOfTheWhole) {
  FlexSN module = learning();
  const Tensor whole = module(x);
  const Memory last = module->states();
  module->reset();
  EXPECT_FALSE(module->states().has_value());
  const Tensor first = module(x.narrow(0, 0, 3)), second = module(x.narrow(0, 3, 4));
  EXPECT_TRUE(same_bits(whole, torch::cat({first, second})));
  EXPECT_TRUE(same_bits(*last, *module->states()));
}

TEST_F(TorchModule, SeveralInputsAndOutputsGoThroughForwardAll) {
  FlexSN module(gate);
  const Tensor y = torch::randn_like(x);
  const Tensors outputs = module->forward_all({x, y});
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[1].scalar_type(), torch::kBool);
  const Tensor before = (x * y).cumsum(0) - x * y;
  EXPECT_TRUE(torch::allclose(outputs[0], before + x, 1e-4, 1e-4));
  EXPECT_EQ(module->counts(), (nn::ScanCounts{.inputs = 2, .states = 1, .outputs = 2}));
  EXPECT_EQ(error_of([&] { module(x); }), "neuron 'gate': expected 2 inputs, found 1");
}

TEST_F(TorchModule, TheTypeOfTheInputIsThatOfTheNeuron) {
  for (at::ScalarType type : {torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    FlexSN module = learning();
    const Tensor input = x.to(type).requires_grad_();
    const Tensor z = module(input);
    EXPECT_EQ(z.scalar_type(), type);
    EXPECT_EQ(module->states()->at(0).scalar_type(), type);
    z.sum().backward();
    EXPECT_EQ(module->param("tau").grad().scalar_type(), torch::kFloat) << "parameters stay as they are";
    Arguments arguments;
    arguments.type = type == torch::kHalf ? Mem::f16 : type == torch::kDouble ? Mem::f64 : Mem::bf16;
    arguments.inputs["x"] = Array(arguments.type, x.sizes().vec());
    const Tensor dense = input.detach().contiguous();
    std::memcpy(arguments.inputs["x"].bytes.data(), dense.data_ptr(), dense.nbytes());
    arguments.params["tau"] = Array(arguments.type, {3, 1}, {1.5, 2, 3});
    const Array expected = run(alif, arguments).outputs.at("z");
    EXPECT_EQ(std::memcmp(expected.bytes.data(), z.contiguous().data_ptr(), expected.bytes.size()), 0);
  }
}

TEST_F(TorchModule, AParameterOfEachStepHasTimeInFront) {
  EXPECT_TRUE(torch::allclose(FlexSN(scaled)(x), (2 * x).cumsum(0), 1e-4, 1e-4));
  const Tensor gain = torch::randn({7, 1, 1, 4});
  const FlexSNOptions options{.params = {{"gain", gain}}, .learnable = {"gain"}};
  FlexSN fused(scaled, options), one_by_one(scaled, options);
  one_by_one->set_backend("torch");
  const Tensor y = fused(x);
  EXPECT_TRUE(torch::allclose(y, (gain * x).cumsum(0), 1e-4, 1e-4));
  EXPECT_TRUE(same_bits(y, one_by_one(x)));
  fused->set_step_mode("s");
  EXPECT_EQ(error_of([&] { fused(x[0]); }),
            "FlexSN: parameter 'gain' has a value for each step, and a single step does not know its number: "
            "use step_mode \"m\"");
}

TEST_F(TorchModule, ANeuronThatReadsTheNumberOfItsStepRunsWholeSequencesOnly) {
  FlexSN module(clock);
  EXPECT_TRUE(same_bits(module(x), x + torch::arange(7, torch::kFloat).view({7, 1, 1, 1})));
  EXPECT_EQ(error_of([&] { module(x); }),
            "FlexSN: neuron 'clock' reads the number of a step, which starts at 0 in each call, so states "
            "cannot be carried on: call reset() before each call, or count in a state");
  module->reset();
  module->set_backend("torch");
  EXPECT_EQ(
      error_of([&] { module(x); }),
      "FlexSN: neuron 'clock' reads the number of a step, so it runs whole sequences only: use step_mode "
      "\"m\" with backend \"fused\"");
}

TEST_F(TorchModule, WithoutGradientsNothingIsKeptForBackward) {
  FlexSN module = learning();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(module(x).requires_grad());
  }
  module->reset();
  EXPECT_TRUE(module(x).requires_grad());
  FlexSN fixed(alif);
  EXPECT_FALSE(fixed(x).requires_grad());
  const Neuron plain = neuron("plain", [](Step& s) { s.output("y", s.input("x") > 0.0); });
  EXPECT_FALSE(FlexSN(plain)(x.clone().requires_grad_()).requires_grad());
}

// ---- states
// ----------------------------------------------------------------------------------------------------

TEST_F(TorchModule, StateSequencesAreKeptWhereAskedFor) {
  for (const char* backend : {"fused", "torch"}) {
    FlexSN module(alif, FlexSNOptions{.backend = backend, .store_state_seqs = true});
    module(x);
    ASSERT_TRUE(module->state_seqs().has_value());
    EXPECT_EQ(module->state_seqs()->at(0).sizes(), x.sizes());
    EXPECT_TRUE(same_bits(module->state_seqs()->at(1)[-1], module->states()->at(1)));
    EXPECT_FALSE(module->states()->at(1).is_view());
    module->reset();
    EXPECT_FALSE(module->state_seqs().has_value());
    module(x);
    module->set_store_state_seqs(false);
    EXPECT_FALSE(module->state_seqs().has_value());
  }
}

TEST_F(TorchModule, AnEmptySequenceLeavesTheStates) {
  for (const char* backend : {"fused", "torch"}) {
    FlexSN module(alif, FlexSNOptions{.backend = backend, .store_state_seqs = true});
    const Tensor none = x.narrow(0, 0, 0);
    const Tensor z = module(none);
    EXPECT_EQ(z.sizes(), none.sizes());
    EXPECT_TRUE(same_bits(module->states()->at(1), torch::full({2, 3, 4}, 0.25)));
    EXPECT_EQ(module->state_seqs()->at(0).sizes(), none.sizes());
    module(x);
    const Memory before = module->states();
    module(none);
    EXPECT_TRUE(same_bits(*before, *module->states()));
    EXPECT_EQ(
        error_of([&] { module(torch::empty({0, 5})); }),
        "neuron 'alif': state 0 must have shape [5], that of one step of the inputs, found [2, 3, 4]; call "
        "reset() before a batch of another shape");
  }
  EXPECT_EQ(FlexSN(gate)->forward_all({torch::empty({0, 2}), torch::empty({0, 2})})[1].scalar_type(),
            torch::kBool);
}

TEST_F(TorchModule, InitialStatesCanBeOverridden) {
  FlexSNOptions options;
  options.init_states = [](const std::string& step_mode, at::TensorList inputs) {
    const Tensor step = step_mode == "m" ? inputs[0][0] : inputs[0];
    return Tensors{torch::full_like(step, 0.125), torch::zeros_like(step)};
  };
  FlexSN overridden(alif, options), given(alif), reset(alif);
  given->set_states(Tensors{torch::full({2, 3, 4}, 0.125), torch::zeros({2, 3, 4})});
  reset->set_reset_value("states", given->states());
  reset->reset();
  const Tensor z = overridden(x);
  EXPECT_TRUE(same_bits(z, given(x)));
  EXPECT_TRUE(same_bits(z, reset(x)));
  EXPECT_FALSE(same_bits(z, FlexSN(alif)(x)));
  EXPECT_EQ(error_of([&] { given->set_states(Tensors{x}); }), "FlexSN: expected 2 states, found 1");
  overridden->set_step_mode("s");
  overridden->reset();
  EXPECT_TRUE(same_bits(overridden(x[0]), z[0]));
}

TEST_F(TorchModule, AGraphThatWasFreedIsNamedWithItsRemedy) {
  FlexSN module = learning();
  module(x).sum().backward();
  const std::string text = error_of([&] { module(x).sum().backward(); });
  EXPECT_NE(text.find("detach or reset between batches"), std::string::npos) << text;
  module->reset();
  module(x).sum().backward();
  nn::detach_net(*module);
  EXPECT_FALSE(module->states()->at(0).requires_grad());
  module(x).sum().backward();
}

TEST_F(TorchModule, AFunctionalCallLeavesTheModuleAsItIs) {
  FlexSN module = learning();
  const auto [outputs, states] = module->functional_forward({x.narrow(0, 0, 3)}, {});
  EXPECT_FALSE(module->states().has_value());
  const auto [rest, last] = module->functional_forward({x.narrow(0, 3, 4)}, states);
  const Tensor whole = module(x);
  EXPECT_TRUE(same_bits(torch::cat({outputs[0], rest[0]}), whole));
  EXPECT_TRUE(same_bits(last, *module->states()));
}

// ---- networks, copies, files
// ------------------------------------------------------------------------------------

torch::nn::Sequential network() {
  return torch::nn::Sequential(torch::nn::Linear(4, 6), FlexSN(alif), torch::nn::Linear(6, 3), learning());
}

TEST_F(TorchModule, FunctionsReachEveryNeuronOfANetwork) {
  torch::nn::Sequential net(torch::nn::Linear(4, 6), FlexSN(alif), FlexSN(alif));
  auto* first = net[1]->as<FlexSN>();
  net->forward(x);
  EXPECT_TRUE(first->states().has_value());
  nn::reset_net(*net);
  EXPECT_FALSE(first->states().has_value());
  nn::set_step_mode(*net, "s");
  EXPECT_EQ(first->step_mode(), "s");
  EXPECT_EQ(net->forward(x[0]).sizes(), (std::vector<std::int64_t>{2, 3, 6}));
  nn::set_backend(*net, "triton");
  EXPECT_EQ(first->backend(), "triton");
  nn::set_backend(*net, "torch", [&](const torch::nn::Module& module) { return &module == first; });
  EXPECT_EQ(first->backend(), "torch");
  EXPECT_EQ(net[2]->as<FlexSN>()->backend(), "triton");
}

TEST_F(TorchModule, ContainersGiveItBackByItsClass) {
  torch::nn::Sequential net = network();
  EXPECT_EQ(net->ptr<nn::FlexSNImpl>(1).get(), net[1]->as<FlexSN>());
  EXPECT_EQ(&net->at<nn::FlexSNImpl>(1), net[1]->as<FlexSN>());
}

TEST_F(TorchModule, TheLabelOfTheScanOperatorRunsStepByStep) {
  torch::nn::Sequential net = network();
  const Tensor expected = net->forward(x);
  nn::reset_net(*net);
  nn::set_backend(*net, "hop");
  EXPECT_EQ(net[1]->as<FlexSN>()->backend(), "hop");
  EXPECT_TRUE(torch::equal(net->forward(x), expected));
}

TEST_F(TorchModule, AKernelWithoutItsFirstTensorSaysSo) {
  const nn::FlexSNKernel kernel(*network()[1]->as<FlexSN>());
  EXPECT_EQ(error_of([&] { kernel(Tensors{Tensor(), x[0], x[0]}); }),
            "the kernel: argument 0 must be a tensor, found none");
}

TEST_F(TorchModule, ABackendThatIsNotSupportedIsLeftWithAWarning) {
  struct Heard : c10::WarningHandler {
    std::string text;
    void process(const c10::Warning& warning) override { text += warning.msg(); }
  } heard;
  FlexSN module(alif);
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&heard);
    nn::set_backend(*module, "cupy");
  }
  EXPECT_EQ(
      heard.text,
      "set_backend leaves FlexSN at backend \"fused\": it supports \"fused\", \"triton\", \"inductor\", "
      "\"torch\", \"hop\", not \"cupy\"");
  EXPECT_EQ(module->backend(), "fused");
}

TEST_F(TorchModule, ParametersAreNamedAsInPython) {
  const nn::StateDict values = nn::state_dict(*network());
  EXPECT_EQ(values.keys(), (std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias", "3.core.tau",
                                                     "1.core.tau", "1.core.beta", "3.core.beta"}));
}

TEST_F(TorchModule, OptionsMakeAsManyModulesAsOneLikes) {
  const FlexSNOptions options{.params = {{"tau", torch::full({4}, 3.0)}}, .learnable = {"tau"}};
  FlexSN first(alif, options), second(alif, options);
  {
    const torch::NoGradGuard no_grad;
    first->param("tau").fill_(5);
  }
  EXPECT_EQ(second->param("tau")[0].item<double>(), 3);
}

TEST_F(TorchModule, ACloneHasParametersAndStatesOfItsOwn) {
  FlexSN module = learning({.store_state_seqs = true});
  module(x);
  module->param("beta").fill_(0.5);
  const auto twin = std::dynamic_pointer_cast<nn::FlexSNImpl>(module->clone());
  EXPECT_TRUE(same_bits(*twin->states(), *module->states()));
  EXPECT_FALSE(twin->states()->at(0).requires_grad());
  EXPECT_NE(twin->states()->at(0).data_ptr(), module->states()->at(0).data_ptr());
  EXPECT_TRUE(twin->param("tau").requires_grad());
  EXPECT_NE(twin->param("tau").data_ptr(), module->param("tau").data_ptr());
  EXPECT_EQ(twin->param("beta").item<float>(), 0.5f);
  EXPECT_EQ(twin->parameters().size(), 1u);
  EXPECT_TRUE(same_bits(twin->forward(x), module(x)));
  EXPECT_TRUE(twin->store_state_seqs());
  struct Derived : nn::FlexSNImpl {
    using nn::FlexSNImpl::FlexSNImpl;
  };
  EXPECT_EQ(error_of([] { Derived(alif).clone(); }),
            "FlexSN: a class derived from FlexSNImpl must override clone()");
}

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(4, 4));
    neurons = register_module("neurons", learning());
  }
  Tensor forward(const Tensor& x) { return neurons(linear(x)); }
  torch::nn::Linear linear = nullptr;
  FlexSN neurons = nullptr;
};

TEST_F(TorchModule, AModuleAroundNeuronsClonesThem) {
  NetImpl net;
  {
    const torch::NoGradGuard no_grad;
    net.neurons->param("tau").fill_(4);
  }
  const auto twin = std::dynamic_pointer_cast<NetImpl>(net.clone());
  EXPECT_EQ(twin->neurons->param("tau")[0].item<double>(), 4);
  EXPECT_NE(twin->neurons->param("tau").data_ptr(), net.neurons->param("tau").data_ptr());
  EXPECT_TRUE(same_bits(twin->forward(x), net.forward(x)));
  EXPECT_EQ(twin->parameters().size(), net.parameters().size());
  twin->parameters().back().sum().backward();
  EXPECT_TRUE(twin->neurons->param("tau").grad().defined());
}

TEST_F(TorchModule, ItPrintsWhatItIs) {
  std::ostringstream text;
  text << learning();
  EXPECT_EQ(text.str(),
            "FlexSN(core=alif, num_inputs=1, num_states=2, num_outputs=1, step_mode=m, backend=fused)(\n"
            "  (core): alif(tau [3, 1] learnable, beta [])\n)");
  text.str("");
  text << FlexSN(gate);
  EXPECT_EQ(text.str(),
            "FlexSN(core=gate, num_inputs=2, num_states=1, num_outputs=2, step_mode=m, backend=fused)");
}

TEST_F(TorchModule, ArchivesOfTorchHoldTheParameters) {
  torch::nn::Sequential net = network(), other = network();
  {
    const torch::NoGradGuard no_grad;
    net[3]->as<FlexSN>()->param("tau").fill_(2.5);
  }
  std::stringstream archive;
  torch::save(net, archive);
  torch::load(other, archive);
  EXPECT_TRUE(same_bits(net->forward(x), other->forward(x)));
  EXPECT_TRUE(other[3]->as<FlexSN>()->param("tau").requires_grad());
}

TEST_F(TorchModule, MovingToAnotherTypeTakesStatesAlong) {
  FlexSN module = learning();
  module(x);
  module->to(torch::kDouble);
  EXPECT_EQ(module->states()->at(0).scalar_type(), torch::kDouble);
  EXPECT_EQ(module->param("tau").scalar_type(), torch::kDouble);
  EXPECT_EQ(module(x.to(torch::kDouble)).scalar_type(), torch::kDouble);
  FlexSN bare(gate);
  bare->forward_all({x, x});
  bare->to(torch::Device(torch::kMeta));
  EXPECT_TRUE(bare->states()->at(0).is_meta());
  EXPECT_TRUE(bare->forward_all({x.to(torch::kMeta), x.to(torch::kMeta)})[0].is_meta());
}

TEST_F(TorchModule, ValuesOfAStateDictAreCheckedBeforeAnyIsChanged) {
  torch::nn::Sequential net = network();
  nn::StateDict values, fewer;
  for (const auto& item : nn::state_dict(*net)) values.insert(item.key(), torch::zeros_like(item.value()));
  values["3.core.beta"] = torch::zeros({2});
  EXPECT_EQ(error_of([&] { nn::load_state_dict(*net, values); }),
            "load_state_dict: 3.core.beta has shape [] in the network, found [2]");
  EXPECT_NE(net->parameters()[0].abs().sum().item<double>(), 0);
  fewer.insert("0.weight", values["0.weight"]);
  fewer.insert("4.weight", values["0.weight"]);
  EXPECT_EQ(
      error_of([&] { nn::load_state_dict(*net[3], fewer); }),
      "load_state_dict: the names of the network and of the values differ; missing: core.tau, core.beta; "
      "unexpected: 0.weight, 4.weight; with strict = false what both have is loaded");
  nn::load_state_dict(*net, fewer, false);
  EXPECT_EQ(net->parameters()[0].abs().sum().item<double>(), 0);
}

// ---- Python
// -----------------------------------------------------------------------------------------------------

TEST_F(TorchModule, StateDictsPassBetweenPythonAndThisProgram) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("flexsn_state_dict_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto python = [&](const char* what) {
    return std::system((std::string(FLEXSN_STATE_DICT_SCRIPT) + " " + what + " " + folder.string()).c_str());
  };
  const auto file = [&](const char* name) { return (folder / name).string(); };
  const int status = python("write");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    std::filesystem::remove_all(folder);
    GTEST_SKIP() << "Python cannot import flexsn";
  }
  ASSERT_EQ(status, 0);

  const auto neurons = [&](std::int64_t channels) {
    return FlexSN(leaky,
                  FlexSNOptions{.params = {{"rate", torch::full({channels}, 0.5)}}, .learnable = {"rate"}});
  };
  torch::nn::Sequential net(torch::nn::Linear(6, 16), neurons(16), torch::nn::Linear(16, 4), neurons(4));
  nn::load_state_dict(*net, nn::read_state_dict(file("python.pt")));
  const nn::StateDict run = nn::read_state_dict(file("python_run.pt")),
                      many = nn::read_state_dict(file("many.pt"));
  EXPECT_EQ(many.size(), 1500u);
  EXPECT_EQ(many["1499"].item<double>(), 1499);
  const std::string nested = error_of([&] { nn::read_state_dict(file("nested.pt")); });
  EXPECT_NE(nested.find("is no file that torch.save(net.state_dict(), path) wrote"), std::string::npos)
      << nested;
  EXPECT_EQ(error_of([&] { nn::read_state_dict(file("numbers.pt")); }),
            "read_state_dict: expected tensors by name in " + file("numbers.pt") +
                ", found Int at epoch; write it with torch.save(net.state_dict(), path)");
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(same_bits(net->forward(run["x"]), run["y"]));
    EXPECT_TRUE(same_bits(net[3]->as<FlexSN>()->states()->at(0), run["v"]));
  }

  nn::reset_net(*net);
  (net->forward(run["x"]).mean(0) - 0.25).square().sum().backward();
  torch::optim::SGD(net->parameters(), 0.1).step();
  EXPECT_FALSE(
      same_bits(net[1]->as<FlexSN>()->param("rate"), nn::read_state_dict(file("python.pt"))["1.core.rate"]));
  nn::reset_net(*net);
  const Tensor y = net->forward(run["x"]);
  nn::write_state_dict(nn::state_dict(*net), file("cpp.pt"));
  nn::StateDict own;
  own.insert("x", run["x"]);
  own.insert("y", y);
  own.insert("v", net[3]->as<FlexSN>()->states()->at(0));
  nn::write_state_dict(own, file("cpp_run.pt"));
  EXPECT_EQ(python("check"), 0);
  EXPECT_EQ(error_of([&] { nn::read_state_dict(file("absent.pt")); }),
            "read_state_dict: cannot read " + file("absent.pt"));
  EXPECT_EQ(error_of([&] { nn::write_state_dict(own, file("absent/cpp.pt")); }),
            "write_state_dict: cannot write " + file("absent/cpp.pt"));
  std::filesystem::remove_all(folder);
}

// ---- errors
// -------------------------------------------------------------------------------------------------------

TEST_F(TorchModule, ErrorsSayWhatWasExpectedAndFound) {
  EXPECT_EQ(error_of([] { FlexSN(alif, FlexSNOptions{.learnable = {"taw"}}); }),
            "neuron 'alif': there is no parameter 'taw' (did you mean 'tau'?)");
  EXPECT_EQ(error_of([] { FlexSN(alif, FlexSNOptions{.params = {{"tau", torch::ones({}, torch::kLong)}}}); }),
            "neuron 'alif': parameter 'tau' must be a tensor of a type that a step can have, found Long");
  EXPECT_EQ(error_of([] {
              FlexSN(alif,
                     FlexSNOptions{.params = {{"tau", torch::ones({}, torch::kInt)}}, .learnable = {"tau"}});
            }),
            "neuron 'alif': parameter 'tau' is Int, so it cannot be learnable; give it as floats");
  EXPECT_EQ(error_of([] { FlexSN(alif, FlexSNOptions{.step_mode = "x"}); }),
            "FlexSN: step_mode must be one of \"s\", \"m\", found \"x\"");
  EXPECT_EQ(error_of([] { FlexSN(alif, FlexSNOptions{.backend = "cupy"}); }),
            "FlexSN: backend must be one of \"fused\", \"triton\", \"inductor\", \"torch\", \"hop\", found "
            "\"cupy\"");
  FlexSN module(alif);
  EXPECT_EQ(
      error_of([&] { module(x.to(torch::kInt)); }),
      "neuron 'alif': input 'x' has no type of its own, so it must be Half, BFloat16, Float or Double, found "
      "Int; convert it, or declare the type of the input in the step");
  EXPECT_EQ(error_of([&] { module(torch::tensor(1.0)); }),
            "neuron 'alif': input 0 must have time as its first dimension, found a scalar");
  EXPECT_EQ(error_of([&] { FlexSN(gate)->forward_all({x, x.narrow(0, 0, 3)}); }),
            "neuron 'gate': all inputs must have the same number of steps: input 0 has 7, input 1 has 3");
  module(x);
  EXPECT_EQ(
      error_of([&] { module(torch::zeros({2, 5})); }),
      "neuron 'alif': state 0 must have shape [5], that of one step of the inputs, found [2, 3, 4]; call "
      "reset() before a batch of another shape");
  FlexSN low(alif, FlexSNOptions{.params = {{"tau", torch::tensor(0.5f)}}});
  const std::string range = error_of([&] { low(x); });
  EXPECT_NE(range.find("tau"), std::string::npos) << range;
  EXPECT_EQ(
      error_of([] {
        FlexSN(parse_neuron("neuron n {\ninput x : f32\nparam w : f32\n%y = mul %x, %w\noutput y = %y\n}\n"));
      }),
      "neuron 'n': parameter 'w' has no default; give its value");
}

// ---- FlexSNKernel
// -----------------------------------------------------------------------------------------------

TEST_F(TorchModule, AKernelGivesOutputsAndStatesOfAllSteps) {
  Tensor tau = torch::full({4}, 3.0).requires_grad_();
  const FlexSNKernel kernel(alif, {{"tau", tau}});
  EXPECT_EQ(kernel.info(), (nn::ScanCounts{.inputs = 1, .states = 2, .outputs = 1}));
  const Tensor v = torch::randn({2, 3, 4}), a = torch::rand({2, 3, 4});
  const Tensors results = kernel({x, v, a});
  ASSERT_EQ(results.size(), 3u);

  FlexSN module(alif, FlexSNOptions{.params = {{"tau", tau}}, .store_state_seqs = true});
  module->set_states(Tensors{v, a});
  EXPECT_TRUE(same_bits(results[0], module(x)));
  EXPECT_TRUE(same_bits(results[2], module->state_seqs()->at(1)));
  EXPECT_TRUE(same_bits(results, FlexSNKernel(*module)({x, v, a})));
  EXPECT_FALSE(kernel.f_inf({x, v, a})[0].requires_grad());
  results[0].sum().backward();
  EXPECT_TRUE(tau.grad().defined());
  EXPECT_EQ(error_of([&] { kernel({x, v}); }),
            "the kernel takes 1 inputs and 2 states, expected 3 tensors, found 2");
}

TEST_F(TorchModule, TheBackwardKernelTakesAbsentGradients) {
  const FlexSNKernel kernel(alif);
  Tensor input = x.clone().requires_grad_(), v = torch::randn({2, 3, 4}).requires_grad_(),
         a = torch::rand({2, 3, 4});
  const Tensors results = kernel.f_fwd({input, v, a});
  const Tensor grad = torch::randn_like(x);
  const Tensors found = kernel.f_bwd(results, {input, v}, {grad, Tensor(), Tensor()});
  const Tensors expected = torch::autograd::grad({results[0]}, {input, v}, {grad});
  EXPECT_TRUE(same_bits(found, expected));
  EXPECT_FALSE(kernel.f_bwd(results, {input, v}, {Tensor(), Tensor(), Tensor()})[0].defined());
  const Tensor still = torch::zeros_like(v);
  const Tensors learned =
      kernel.f_bwd(kernel.f_fwd({input, still, a}), {input, still, a}, {grad, Tensor(), Tensor()});
  EXPECT_TRUE(learned[0].defined() && !learned[1].defined());
  EXPECT_EQ(error_of([&] { kernel.f_bwd(results, {input}, {grad}); }),
            "f_bwd: expected a gradient for each of 3 results, found 1");
}

// ---- on a GPU
// ----------------------------------------------------------------------------------------------------

class TorchModuleOnCuda : public TorchModule {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "torch sees no GPU";
  }
};

Tensors on_cpu(Tensors tensors) {
  for (Tensor& tensor : tensors) tensor = tensor.cpu();
  return tensors;
}

TEST_F(TorchModuleOnCuda, ACloneThereHasTheBitsOfTheCpu) {
  FlexSN here = learning();
  const auto there = std::dynamic_pointer_cast<nn::FlexSNImpl>(here->clone(torch::Device(torch::kCUDA)));
  EXPECT_TRUE(there->param("tau").is_cuda() && there->param("beta").is_cuda());
  const Tensor grad = torch::randn_like(x);
  Tensor input = x.clone().requires_grad_(), moved = x.cuda().requires_grad_();
  for (int call : {0, 1}) {  // the second starts from the states of the first
    SCOPED_TRACE(call);
    const Tensor z = here(input), found = there->forward(moved);
    z.backward(grad, true);
    found.backward(grad.cuda(), true);
    EXPECT_TRUE(found.is_cuda());
    EXPECT_TRUE(same_bits(on_cpu({found}), {z}));
    EXPECT_TRUE(same_bits(on_cpu(*there->states()), *here->states()));
    EXPECT_TRUE(same_bits(on_cpu({moved.grad(), there->param("tau").grad()}),
                          {input.grad(), here->param("tau").grad()}));
  }
}

TEST_F(TorchModuleOnCuda, StatesMoveAlongBetweenChunks) {
  const torch::NoGradGuard no_grad;
  for (const char* step_mode : {"m", "s"}) {
    FlexSN stays = learning(), moves = learning();
    stays(x.narrow(0, 0, 3));
    moves(x.narrow(0, 0, 3));
    moves->to(torch::kCUDA);
    for (FlexSN* module : {&stays, &moves}) (*module)->set_step_mode(step_mode);
    const Tensor rest = step_mode[0] == 'm' ? x.narrow(0, 3, 4) : x[3];
    EXPECT_TRUE(same_bits(on_cpu({moves(rest.cuda())}), {stays(rest)})) << step_mode;
    moves->to(torch::kCPU);
    EXPECT_TRUE(same_bits(*moves->states(), *stays->states())) << step_mode;
  }
}

TEST_F(TorchModuleOnCuda, SequencesAndTheKernelHaveTheBitsOfTheCpu) {
  const Tensor v = torch::randn({2, 3, 4}), a = torch::rand({2, 3, 4}), grad = torch::randn_like(x);
  std::vector<Tensors> found;
  for (const torch::Device device : {torch::kCPU, torch::kCUDA}) {
    const FlexSNKernel kernel(alif,
                              {{"tau", torch::full({4}, 3.0, device)}, {"beta", torch::ones({}, device)}});
    Tensor input = x.to(device).detach().requires_grad_(), first = v.to(device).requires_grad_();
    Tensors all = kernel({input, first, a.to(device)});
    for (const Tensor& gradient :
         torch::autograd::grad({all[0], all[2]}, {input, first}, {grad.to(device), torch::ones_like(all[2])}))
      all.push_back(gradient);
    found.push_back(on_cpu(all));
  }
  EXPECT_TRUE(same_bits(found[0], found[1]));
}

TEST_F(TorchModuleOnCuda, TensorsOnSeveralDevicesAreRefused) {
  FlexSN module = learning();
  const std::string said = error_of([&] { module(x.cuda()); });
  EXPECT_TRUE(
      said.ends_with("is on cpu, but other tensors of the call are on cuda:0; move it, or the module that "
                     "it is of"))
      << said;
}

// ---- modules of one's own
// ----------------------------------------------------------------------------------------

struct Leak : nn::MemoryModule {
  Leak() : MemoryModule("Leak") { register_memory("v", Tensors{torch::zeros({2})}); }
  Tensors single_step_forward(at::TensorList inputs) override {
    const Tensor v = 0.5 * memory("v")->at(0) + inputs[0];
    set_memory("v", Tensors{v});
    return {v};
  }
};

TEST(MemoryModule, StepsAreStackedAndMemoriesReset) {
  Leak leak;
  leak.set_step_mode("m");
  const Tensor y = leak.forward(torch::ones({2, 2}));
  EXPECT_TRUE(torch::equal(y, torch::tensor({{1.0f, 1.0f}, {1.5f, 1.5f}})));
  EXPECT_EQ(leak.named_memories().keys(), std::vector<std::string>{"v"});
  nn::reset_net(leak);
  EXPECT_TRUE(torch::equal(leak.memory("v")->at(0), torch::zeros({2})));
  leak.memory("v")->at(0).fill_(7);
  leak.reset();
  EXPECT_EQ(leak.memory("v")->at(0)[0].item<double>(), 0) << "the reset value is a copy";
  EXPECT_EQ(error_of([&] { leak.register_memory("v", {}); }), "Leak: there is a memory \"v\" already");
  EXPECT_EQ(error_of([&] { leak.memory("w"); }), "Leak: there is no memory \"w\"; there are \"v\"");
  EXPECT_EQ(error_of([&] { leak.set_backend("fused"); }),
            "Leak: backend must be one of \"torch\", found \"fused\"");
  EXPECT_EQ(error_of([&] { leak.forward(torch::ones({0, 2})); }),
            "Leak: a multi-step call needs an input with time as its first dimension, T >= 1");
  EXPECT_EQ(error_of([] { nn::MemoryModule("Bare").forward(torch::ones({2})); }),
            "Bare does not define single_step_forward");
  std::ostringstream text;
  text << leak;
  EXPECT_EQ(text.str(), "Leak(step_mode=m, backend=torch)");
}

}  // namespace
}  // namespace flexsn
