// Partitions and plans: every plan gives the bits of the law, costs what it says and keeps to its budget.
#include "plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "compile.h"
#include "error.h"
#include "random_graph.h"
#include "text.h"
#include "trial.h"

namespace flexsn::test {
namespace {

using namespace ir;
using What = Port::What;

const char* const neurons[] = {"if", "lif", "lif:v_reset=none", "plif", "alif", "izhikevich", "adex"};
constexpr Saving savings[] = {Saving::automatic, Saving::everything, Saving::per_step, Saving::rebuild};

Partition parts_of(const Neuron& neuron, const Training& training) {
  return lower(neuron.graph(training.type), training).parts;
}

/// The first difference between the law and the plans of `training` on random data.
std::string law_broken(const Graph& step, const Training& training, std::uint64_t seed,
                       std::optional<std::int64_t> steps = {}, std::optional<std::int64_t> elements = {}) {
  const Graph joint = joint_of(compile(step, Stage::simplified), training);
  const Trial run(joint, training, seed, steps, elements);
  const TrainingPlans plans = schedule_training(joint, partition(joint, training), training, run.layout());
  return difference(run.by_law(), run.by_plans(plans));
}

/// Two inputs, three states (one an integer, one half as wide), two outputs, parameters of all kinds.
const Neuron odd = neuron("odd", [](Step& s) {
  const auto x = s.input("x"), y = s.input("y", Mem::f16);
  const auto u = s.state("u", 0.5), w = s.state("w", 0, Mem::bf16), n = s.state("n", 3, Mem::i32);
  const auto tau = s.param("tau", 2), gate = s.step_param("gate", 1);
  const auto h = (u + (x - u) / tau).named("h");
  const auto z = spike(h - w * w * 0.1, surrogate::atan());
  s.next(u, tanh(h) * gate * (1 - z));
  s.next(w, round_bf16(w * 0.75 + y * z));
  s.next(n, select(z > 0, n + 1, n));
  s.output("z", z);
  s.output("count", n);
  s.output("speed", exp(-u * u) * cast(n, Type::f32));
});

// ---- bits ------------------------------------------------------------------------------------------

TEST(Plan, EveryPlanGivesTheBitsOfTheLaw) {
  for (const char* name : neurons)
    for (Mem type : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16})
      for (Saving saving : savings)
        for (bool sequences : {false, true})
          for (std::uint64_t seed = 0; seed < 4; ++seed) {
            const Training training{.type = type,
                                    .state_sequences = sequences,
                                    .saving = saving,
                                    .segment = saving == Saving::rebuild ? 2 << seed : 0};
            EXPECT_EQ(law_broken(neuron_named(name).graph(type), training, seed), "")
                << name << " " << name_of(type) << " saving " << static_cast<int>(saving) << " seed " << seed;
          }
}

TEST(Plan, ANeuronNobodyPlannedForGivesTheBitsOfTheLaw) {
  const std::vector<std::string> masks[] = {{}, {"x"}, {"tau"}, {"gate", "u"}, {"y", "w"}};
  for (Saving saving : savings)
    for (const std::vector<std::string>& wanted : masks)
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const Training training{.wanted = wanted,
                                .state_sequences = seed % 2 == 1,
                                .saving = saving,
                                .segment = saving == Saving::rebuild ? 4 : 0};
        EXPECT_EQ(law_broken(odd.graph(), training, seed), "") << static_cast<int>(saving) << " " << seed;
      }
}

TEST(Plan, LongAndLargeRunsGiveTheBitsOfTheLaw) {
  for (Saving saving : {Saving::per_step, Saving::rebuild}) {
    EXPECT_EQ(law_broken(odd.graph(), {.saving = saving}, 1, 1000, 1), "");
  }
  EXPECT_EQ(
      law_broken(neuron_named("plif").graph(), {.saving = Saving::rebuild, .segment = 2}, 2, 3, 1000003), "");
}

TEST(Plan, InferenceKindsGiveTheBitsOfTheLaw) {
  for (const char* name : neurons) {
    const Graph step = neuron_named(name).graph();
    const Graph simple = compile(step, Stage::simplified);
    constexpr std::int64_t steps = 5, elements = 600;
    Dice dice(1);
    Array x(Mem::f32, {steps, elements}), s(Mem::f32, {steps, elements}), expected = s;
    for (std::int64_t n = 0; n < x.size(); ++n) x.set(n, dice.uniform(-1, 3));
    for (Kind kind : {Kind::inference, Kind::inference_final_state}) {
      Scan scan;
      scan.steps = steps;
      scan.elements = elements;
      std::vector<std::unique_ptr<Array>> arrays, wanted;
      const Plan plan = plan_of(step, kind, {});
      PlanRun run{.steps = steps, .elements = elements, .first_step = 0, .buffers = {}};
      std::map<std::pair<Holds, int>, Array*> bound;
      for (const Buffer& buffer : plan.buffers) {
        const std::int64_t row = buffer.map == Map::element ? elements : 1;
        const bool rows = buffer.lead == Lead::per_step;
        Array& array = *arrays.emplace_back(
            std::make_unique<Array>(buffer.mem, std::vector{(rows ? steps : 1) * row}, 1.25));
        if (buffer.holds == Holds::input) array = x;
        bound[{buffer.holds, buffer.index}] = &array;
        run.buffers.push_back({.data = array.bytes.data(), .row_stride = row});
      }
      execute(plan, run);
      for (std::size_t a = 0; a < simple.arguments.size(); ++a) {
        const Role role = simple.arguments[a].role;
        const Holds holds = role == Role::input   ? Holds::input
                            : role == Role::state ? Holds::first_state
                                                  : Holds::param;
        const Array* array = bound.at({holds, static_cast<int>(a)});
        scan.sources.push_back({.mem = array->type,
                                .data = array->bytes.data(),
                                .row_stride = role == Role::input ? elements : 0,
                                .map = role == Role::param ? Map::scalar : Map::element});
      }
      for (std::size_t r = 0; r < simple.results.size(); ++r) {
        const Result& result = simple.results[r];
        const bool sequence = result.gives == Gives::output || kind == Kind::inference;
        Array& array = *wanted.emplace_back(
            std::make_unique<Array>(result.mem, std::vector{(sequence ? steps : 1) * elements}));
        scan.targets.push_back(sequence ? Target{.sequence = array.bytes.data(), .row_stride = elements}
                                        : Target{.last = array.bytes.data()});
      }
      interpret(simple, scan);
      for (std::size_t r = 0; r < simple.results.size(); ++r) {
        const Result& result = simple.results[r];
        const Array* found = result.gives == Gives::output ? bound.at({Holds::output, static_cast<int>(r)})
                             : kind == Kind::inference     ? bound.at({Holds::state_sequence, result.of})
                                                           : bound.at({Holds::last_state, result.of});
        EXPECT_EQ(found->bytes, wanted[r]->bytes) << name << " result " << r;
      }
    }
  }
}

TEST(Plan, JointGraphsFromElsewhereGiveTheBitsOfTheLaw) {
  const char* const texts[] = {
      // A gradient arrives at the new state, but none of the old one is given; and the other way round.
      "neuron a {\n  input x : f32\n  state v : f32\n  grad g : f32 of output y\n  grad h : f32 of next v\n"
      "  %a = mul %x, %v\n  %b = mul %g, %v\n  %c = add %b, %h\n  output y = %a : f32\n  next v = %a\n  grad "
      "of x = %c\n}\n",
      "neuron b {\n  input x : f32\n  state v : f32\n  grad g : f32 of output y\n"
      "  %a = mul %x, %v\n  %b = mul %g, %v\n  %c = mul %g, %x\n  output y = %a : f32\n  next v = %x\n  grad "
      "of x = %b\n"
      "  grad of v = %c\n}\n",
      // A gradient that needs no gradient.
      "neuron c {\n  input x : f32\n  state v : f32\n  grad g : f32 of output y\n  %a = mul %x, %v\n  output "
      "y = %a : f32\n"
      "  next v = %a\n  grad of x = %v\n}\n"};
  for (const char* text : texts) {
    const Neuron joint = parse_neuron(text);
    for (Saving saving : savings)
      for (std::uint64_t seed = 0; seed < 6; ++seed)
        EXPECT_EQ(law_broken(joint.graph(), {.saving = saving}, seed), "")
            << text << static_cast<int>(saving);
    for (const Check& c : check(joint)) EXPECT_TRUE(c.passed) << c.what << ": " << c.detail;
  }
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {2, 1}, {3, 4});
  arguments.states["v"] = Array(Mem::f32, {1}, {5});
  EXPECT_EQ(run(parse_neuron(texts[0]), arguments).outputs.at("y").values(), (std::vector<double>{15, 60}));
  Arriving arriving;
  arriving.outputs["y"] = Array(Mem::f32, {2, 1}, {1, 1});
  EXPECT_EQ(run_backward(parse_neuron(texts[1]), arguments, arriving).states.at("v")[0], 3);
  EXPECT_THROW(
      run_backward(parse_neuron(texts[0]), arguments, Arriving{.states = {{"v", Array(Mem::f32, {1})}}}),
      UserError);
  EXPECT_THROW(
      parse_neuron(
          "neuron d {\n  input x : f32\n  state v : f16\n  grad h : f16 of next v\n  %a = round_f16 %x\n"
          "  next v = %a\n  grad of x = %h\n}\n"),
      UserError);
}

TEST(Check, ANaNAmongGradientsIsFound) {
  const Neuron root = neuron("root", [](Step& s) {
    const auto x = s.input("x");
    s.output("y", select(x > 0, sqrt(x), 0.0));
  });
  bool failed = false;
  for (const Check& c : check(root)) failed |= c.what == "gradients agree with differences" && !c.passed;
  EXPECT_TRUE(failed);
}

// ---- what the planner chooses ------------------------------------------------------------------------

TEST(Partition, LifMovesFivePassesAndCheckpoints) {
  const Partition parts = parts_of(neuron_named("lif"), {.costs = cost_model_named("bytes")});
  EXPECT_GE(parts.segment, 8);
  EXPECT_TRUE(parts.handed.empty());
  ASSERT_EQ(parts.kept.size(), 1u);  // h, and nothing else
  EXPECT_DOUBLE_EQ(parts.bytes_kept, 4 + 4.0 / parts.segment);
  EXPECT_DOUBLE_EQ(parts.floor, 4);
  const Explanation out = explain(neuron_named("lif"), {.steps = 8, .elements = 4194304});
  EXPECT_LE(out.training_passes, 5.3);
  EXPECT_GE(out.training_passes, 5.0);
  EXPECT_EQ(out.checkpoint_rows, 0);
  const Explanation saving = explain(
      neuron_named("lif"), {.steps = 8, .elements = 4194304, .training = {.saving = Saving::per_step}});
  EXPECT_NEAR(saving.training_passes, 6.125, 1e-6);  // h written and read, x not read again
}

TEST(Partition, BoolsAreOneByteAndOutputsCostNothing) {
  // The gradient needs only on which side of zero x was.
  const Neuron gate = neuron("gate", [](Step& s) {
    const auto x = s.input("x"), w = s.input("w");
    const auto v = s.state("v");
    const auto h = v + x * 0.5;
    s.next(v, select(h > 0, h, 0.25 * h));
    s.output("y", h + w);
  });
  const Partition side = parts_of(gate, {.saving = Saving::per_step});
  ASSERT_EQ(side.handed.size(), 1u);
  EXPECT_EQ(side.handed[0].mem, Mem::b8);
  EXPECT_EQ(side.bytes_kept, 1);
  // The derivative of tanh comes from its result, which is an output.
  const Neuron soft = neuron("soft", [](Step& s) { s.output("y", tanh(s.input("x"))); });
  const Partition known = parts_of(soft, {});
  ASSERT_EQ(known.handed.size(), 1u);
  EXPECT_EQ(known.handed[0].from, (Port{What::output, 0}));
  EXPECT_EQ(known.floor, 4);
  // That of exp(sin(x)) needs both or x: with arithmetic free, the input alone.
  const Neuron deep = neuron("deep", [](Step& s) { s.output("y", exp(sin(s.input("x")))); });
  const Partition read_again = parts_of(deep, {.costs = cost_model_named("bytes")});
  ASSERT_EQ(read_again.handed.size(), 1u);
  EXPECT_EQ(read_again.handed[0].from, (Port{What::input, 0}));
  // A linear neuron needs nothing.
  const Neuron line = neuron("line", [](Step& s) {
    const auto v = s.state("v");
    s.next(v, v * 0.5 + s.input("x"));
    s.output("y", v);
  });
  EXPECT_TRUE(parts_of(line, {}).handed.empty());
  EXPECT_EQ(parts_of(line, {}).segment, 0);
  EXPECT_EQ(parts_of(line, {.saving = Saving::rebuild, .segment = 4}).segment, 0);
}

TEST(Partition, HalfTypesAreSavedInTheirOwnWidth) {
  const Partition parts = parts_of(odd, {.saving = Saving::everything});
  std::map<std::string, Mem> found;
  for (const Handed& value : parts.handed) found[value.name] = value.mem;
  EXPECT_EQ(found.at("y"), Mem::f16);
  EXPECT_EQ(found.at("saved_w"), Mem::bf16);
}

TEST(Partition, TheCostOfArithmeticDecides) {
  // An expensive update: where ops cost nothing it is rebuilt, where they cost much it is saved.
  const Neuron costly = neuron("costly", [](Step& s) {
    const auto x = s.input("x"), v = s.state("v");
    const auto h = v + tanh(exp(sin(x)) * v);
    s.next(v, h);
    s.output("y", h * h);
  });
  EXPECT_GT(parts_of(costly, {.costs = cost_model_named("bytes")}).segment, 0);
  EXPECT_EQ(parts_of(costly, {.costs = {.name = "slow", .op = 4}}).segment, 0);
}

TEST(Partition, ABoolThatOneOpGivesIsNotKeptBesideItsOperand) {
  // In memory it is a byte, but to make bytes of vectors and vectors of bytes takes longer than to compare.
  const Neuron gated = neuron("gated", [](Step& s) {
    const auto x = s.input("x"), v = s.state("v");
    const auto h = v + (x - v) * 0.5f;
    s.next(v, select(h >= 1.0f, -h, h * h));
    s.output("y", h);
  });
  const Partition parts = parts_of(gated, {.saving = Saving::rebuild});
  ASSERT_EQ(parts.kept.size(), 1u);
  EXPECT_EQ(parts_of(gated, {.costs = {.op = 1}, .saving = Saving::rebuild}).kept.size(), 2u);
}

TEST(Partition, SequencesOfStatesAreNotSavedAgain) {
  const Neuron square = neuron("square", [](Step& s) {
    const auto v = s.state("v");
    const auto h = sin(v) + s.input("x");
    s.next(v, h);
    s.output("y", h * h);
  });
  const Partition parts =
      parts_of(square, {.wanted = {"x"}, .state_sequences = true, .saving = Saving::per_step});
  const auto from_sequence = std::count_if(parts.handed.begin(), parts.handed.end(),
                                           [](const Handed& h) { return h.from.what == What::sequence; });
  EXPECT_EQ(from_sequence, 1);
}

TEST(Partition, ABudgetIsKept) {
  for (const char* name : neurons) {
    const Partition free = parts_of(neuron_named(name), {});
    for (double budget : {4.0, 5.0, 6.5, 9.0, 13.0, 21.0}) {
      try {
        const Partition parts = parts_of(neuron_named(name), {.budget = budget});
        EXPECT_LE(parts.bytes_kept, budget) << name;
        EXPECT_GE(parts.cost, free.cost) << name;
        EXPECT_EQ(law_broken(neuron_named(name).graph(), {.budget = budget}, 3), "") << name << " " << budget;
      } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find("at least"), std::string::npos) << error.what();
      }
    }
    EXPECT_LE(parts_of(neuron_named(name), {.budget = free.bytes_kept}).bytes_kept, free.bytes_kept) << name;
  }
  // Exactly the bytes of h, which make the input unnecessary.
  const Partition tight = parts_of(neuron_named("lif"), {.budget = 4});
  EXPECT_EQ(tight.segment, 0);
  ASSERT_EQ(tight.handed.size(), 1u);
  EXPECT_EQ(tight.handed[0].name, "saved_h");
}

/// Bytes and ops of a plan, counted from the plan itself.
double cost_of(const Neuron& neuron, const Training& training) {
  const Lowered lowered = lower(neuron.graph(training.type), training);
  double cost = 0;
  for (const Plan* plan : {&lowered.plans.forward, &lowered.plans.backward}) {
    double memory = 0, processor = training.costs.op * work_of(plan->step.graph);
    for (const Buffer& buffer : plan->buffers)
      if (buffer.lead != Lead::once && buffer.holds != Holds::param && buffer.holds != Holds::grad_param)
        memory +=
            static_cast<double>(size_of(buffer.mem)) / (buffer.lead == Lead::per_segment ? plan->segment : 1);
    if (plan->rebuild) processor += training.costs.op * work_of(plan->rebuild->graph);
    for (Type type : plan->kept)
      cost += (1 - training.costs.hidden) * training.costs.keep *
              std::max<double>(static_cast<double>(size_of(natural_memory(type))), training.costs.smallest);
    cost += memory + processor - training.costs.hidden * std::min(memory, processor);
  }
  return cost;
}

TEST(Partition, TheAutomaticPlanIsTheCheapest) {
  // Much that only backward needs, and that forward runs as well.
  const Neuron flip = neuron("flip", [](Step& s) {
    const auto v = s.state("v");
    const auto h = v * 0.5 + s.input("x");
    s.next(v, h * (1.0 - h));
    s.output("y", h * detach(tanh(exp(sin(tanh(exp(sin(h))))))));
  });
  std::vector<Neuron> all = {flip, odd};
  for (const char* name : neurons) all.push_back(neuron_named(name));
  for (const Neuron& neuron : all)
    for (const char* model : {"cpu", "gpu", "bytes"})
      for (Saving saving : {Saving::everything, Saving::per_step, Saving::rebuild}) {
        const CostModel costs = cost_model_named(model);
        // The planner counts ops before neighbours are merged, a quotient among them at times.
        EXPECT_LE(cost_of(neuron, {.costs = costs}), cost_of(neuron, {.costs = costs, .saving = saving}) + 4)
            << neuron.name() << " " << model << " " << static_cast<int>(saving);
      }
}

TEST(Partition, TheFewestBytesAreFound) {
  // Two alike, of which one may be saved; an input half as wide as what is made of it.
  const Neuron sym = neuron("sym", [](Step& s) {
    const auto a = s.input("a", Mem::f16), b = s.input("b", Mem::f16), x = s.input("x"), y = s.input("y");
    s.output("z", x * detach(tanh(exp(sin(a)))) + y * detach(tanh(exp(sin(b)))));
  });
  for (double budget : {4.0, 6.0, 8.0}) {
    const Partition parts = parts_of(sym, {.wanted = {"x", "y"}, .budget = budget});
    EXPECT_LE(parts.bytes_kept, budget);
    EXPECT_GT(parts.bytes_kept, budget - 2);
  }
  EXPECT_EQ(
      parts_of(sym, {.wanted = {"x", "y"}, .budget = 4, .costs = {.name = "dear", .op = 1000}}).bytes_kept,
      4);
  // A narrow state that is a wider output as well.
  const Neuron narrow = parse_neuron(
      "neuron narrow {\n  input x : f32\n  state w : bf16\n  %p = mul %w, %x\n  %q = mul %p, %w\n  %r = "
      "round_bf16 %p\n"
      "  output wide = %w : f32\n  output q = %q : f32\n  next w = %r\n}\n");
  const Partition parts = parts_of(narrow, {.saving = Saving::per_step});
  double bytes = 0;
  for (const Handed& value : parts.handed) bytes += static_cast<double>(size_of(value.mem));
  EXPECT_EQ(parts.bytes_kept, bytes);
}

TEST(Partition, WhatIsNotWantedIsNeitherSavedNorComputed) {
  const KernelInfo all = kernel_info(odd, Kind::backward),
                   some = kernel_info(odd, Kind::backward, {.wanted = {"x"}});
  const auto written = [](const KernelInfo& info) {
    std::vector<std::string> names;
    for (const Named& named : info.writes) names.push_back(named.name);
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_EQ(written(all),
            (std::vector<std::string>{"grad_gate", "grad_tau", "grad_u", "grad_w", "grad_x", "grad_y"}));
  EXPECT_EQ(written(some), (std::vector<std::string>{"grad_x"}));
  const auto ops = [](const std::vector<std::string>& wanted) {
    return op_count(lower(odd.graph(), {.wanted = wanted}).plans.backward.step.graph);
  };
  EXPECT_LT(ops({"x"}), ops({}));
}

TEST(Partition, PlansAreTheSameHoweverTheNeuronWasWritten) {
  const std::string text = show(neuron_named("alif"), {.stage = Stage::plan, .canonical = true});
  EXPECT_EQ(text, show(parse_neuron(show(neuron_named("alif"))), {.stage = Stage::plan, .canonical = true}));
  EXPECT_NE(text,
            show(neuron_named("alif"),
                 {.stage = Stage::plan, .canonical = true, .training = {.saving = Saving::everything}}));
}

// ---- the description of kernels ------------------------------------------------------------------------

TEST(KernelInfo, NamesWhatAKernelTakesAndGives) {
  const KernelInfo info = kernel_info(odd, Kind::forward, {.saving = Saving::everything});
  EXPECT_EQ(info.inputs, (std::vector<Named>{{"x", Mem::f32}, {"y", Mem::f16}}));
  EXPECT_EQ(info.states, (std::vector<Named>{{"u", Mem::f32}, {"w", Mem::bf16}, {"n", Mem::i32}}));
  EXPECT_EQ(info.params, (std::vector<Named>{{"tau", Mem::f32}, {"gate", Mem::f32}}));
  EXPECT_EQ(info.outputs, (std::vector<Named>{{"z", Mem::f32}, {"count", Mem::i32}, {"speed", Mem::f32}}));
  EXPECT_EQ(info.segment, 0);
  EXPECT_TRUE(info.checkpoints.empty());
  int inputs = 0, outputs = 0, saved = 0;
  for (const Residual& residual : info.residuals) {
    if (residual.input >= 0) {
      EXPECT_EQ(info.inputs.at(residual.input).name, residual.name);
      ++inputs;
      continue;
    }
    EXPECT_EQ(info.returns.at(residual.returned), (Named{residual.name, residual.type}));
    (residual.returned < 3 ? outputs : saved) += 1;
  }
  EXPECT_EQ(inputs, 1);
  EXPECT_GT(outputs, 0);
  EXPECT_GT(saved, 0);
  EXPECT_EQ(info.returns.size(), 6u + static_cast<std::size_t>(saved));

  const KernelInfo rebuilt = kernel_info(odd, Kind::backward, {.saving = Saving::rebuild, .segment = 8});
  EXPECT_EQ(rebuilt.segment, 8);
  EXPECT_FALSE(rebuilt.checkpoints.empty());
  EXPECT_TRUE(std::any_of(rebuilt.reads.begin(), rebuilt.reads.end(),
                          [](const Named& n) { return n.name == "grad_z"; }));
}

TEST(KernelInfo, WithoutADifferentiableOutputThereIsInferenceOnly) {
  const Neuron hard = neuron("hard", [](Step& s) {
    const auto x = s.input("x"), n = s.state("n", 0, Mem::i32);
    s.next(n, n + cast(x > 0, Type::i32));
    s.output("n", n);
  });
  EXPECT_EQ(kernel_info(hard, Kind::inference).writes.size(), 2u);
  EXPECT_EQ(kernel_info(hard, Kind::inference_final_state).outputs.size(), 1u);
  for (Kind kind : {Kind::forward, Kind::backward}) try {
      kernel_info(hard, kind);
      ADD_FAILURE() << "no error";
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()),
                "neuron 'hard': no output and no state can carry a gradient to what is wanted; run it for "
                "inference, "
                "or use with_grad or spike where it branches");
    }
  const Explanation explained = explain(hard);
  EXPECT_NE(explained.untrainable.find("no output and no state"), std::string::npos);
  EXPECT_NE(explained.text.find("training: none. "), std::string::npos);
  // Partly differentiable: the gradient of the integer output does not exist, that of the other does.
  EXPECT_EQ(kernel_info(odd, Kind::backward).outputs.size(), 3u);
}

// ---- what a run costs ----------------------------------------------------------------------------------

TEST(Explain, CountsEveryByte) {
  const std::int64_t steps = 100, elements = 1000;
  const Explanation lif =
      explain(neuron_named("lif"), {.steps = steps,
                                    .elements = elements,
                                    .given_states = true,
                                    .training = {.saving = Saving::rebuild, .segment = 8}});
  ASSERT_EQ(lif.training.size(), 2u);
  const std::int64_t row = 4 * elements, checkpoints = 12;  // of 13 segments
  EXPECT_EQ(lif.checkpoint_rows, checkpoints);
  EXPECT_EQ(lif.training[0].read, (steps + 1) * row);                   // x, first v
  EXPECT_EQ(lif.training[0].written, (steps + 1 + checkpoints) * row);  // s, last v
  EXPECT_EQ(lif.training[1].read,
            (2 * steps + 2 + checkpoints) * row);         // x, gradient of s, of last v; first v
  EXPECT_EQ(lif.training[1].written, (steps + 1) * row);  // gradients of x, of first v
  EXPECT_EQ(lif.kept_alive, (steps + 1 + checkpoints) * row);
  EXPECT_DOUBLE_EQ(lif.kept_alive_per_step, 4.5);
  EXPECT_EQ(lif.floor, (5 * steps + 4) * row);
  const Explanation plif = explain(neuron_named("plif"), {.steps = steps, .elements = elements});
  ASSERT_EQ(plif.training.size(), 3u);
  EXPECT_EQ(plif.training[2].kernel, "reduce w");
  EXPECT_EQ(plif.training[2].read, row + 4);  // the sum goes through memory on its way into its own type
  EXPECT_EQ(plif.training[2].written, 4 + 4);
  for (const char* name : neurons) {
    const Explanation out = explain(neuron_named(name), {.steps = 64, .elements = 4096});
    EXPECT_GE(out.ratio, 1) << name;
    EXPECT_LE(out.ratio, 2) << name;
  }
  EXPECT_EQ(explain(neuron_named("lif"), {.steps = 0}).training_passes, 0);
}

/// The kernels of one name, added up.
Traffic kernel(const std::vector<Traffic>& kernels, const std::string& name) {
  Traffic sum{.kernel = name};
  for (const Traffic& one : kernels)
    if (one.kernel == name) {
      sum.read += one.read, sum.written += one.written;
      sum.read_per_step += one.read_per_step, sum.written_per_step += one.written_per_step;
    }
  return sum;
}

TEST(Explain, CountsParametersOfEveryShape) {
  // Gradients of x need w and gate, that of w needs x.
  const Neuron line = neuron("line", [](Step& s) {
    const auto x = s.input("x"), w = s.param("w", 1), gate = s.step_param("gate", 1);
    s.output("y", x * w * gate);
  });
  constexpr std::int64_t steps = 10, n = 4 * 2 * 3, row = 4 * n, pass = steps * row;
  using Shapes = std::map<std::string, std::vector<std::int64_t>>;
  const auto explained = [&](const Shapes& shapes, const std::vector<std::string>& wanted) {
    return explain(line, {.steps = steps,
                          .shape = {{4, 2, 3}},
                          .param_shapes = shapes,
                          .training = {.wanted = wanted, .saving = Saving::per_step}});
  };
  const auto forward = [&](const Shapes& shapes) {
    return kernel(explained(shapes, {"x"}).training, "forward").read;
  };
  EXPECT_EQ(forward({}), pass + 4 + 4);  // two defaults, an entry each
  EXPECT_EQ(forward({{"w", {}}}), pass + 4 + 4);
  EXPECT_EQ(forward({{"w", {3}}}), pass + 3 * 4 + 4);
  EXPECT_EQ(forward({{"w", {2, 1}}}), pass + 2 * 4 + 4);
  EXPECT_EQ(forward({{"w", {4, 2, 3}}}), pass + row + 4);
  EXPECT_EQ(forward({{"gate", {steps}}}), pass + 4 + steps * 4);
  EXPECT_EQ(forward({{"gate", {steps, 3}}}), pass + 4 + steps * 3 * 4);
  EXPECT_EQ(forward({{"gate", {steps, 4, 2, 3}}}), pass + 4 + pass);

  // Full size: backward reads both again, one like a first state, one like an input.
  const Explanation full = explained({{"w", {4, 2, 3}}, {"gate", {steps, 4, 2, 3}}}, {"x"});
  EXPECT_EQ(full.elements, n);
  EXPECT_EQ(kernel(full.training, "backward").read, pass + row + pass);
  EXPECT_DOUBLE_EQ(kernel(full.training, "backward").read_per_step, 8);
  EXPECT_EQ(full.kept_alive, row + pass);
  EXPECT_DOUBLE_EQ(full.kept_alive_per_step, 4);
  EXPECT_EQ(full.floor, 6 * pass + row);  // x, gate, y; the gradients of y and x, gate again; w
  EXPECT_NE(full.text.find("gate (f32): a parameter with an entry for each element and step, read again"),
            std::string::npos);
  EXPECT_NE(full.text.find("and, like inputs, the full size of gate\n"), std::string::npos);

  // Two dimensions with one that is summed between them: no map fits.
  const Explanation spread = explained({{"w", {4, 1, 3}}, {"gate", {steps, 4, 1, 3}}}, {"x"});
  ASSERT_EQ(spread.params.size(), 2u);
  EXPECT_EQ(spread.params[1].name, "w");
  EXPECT_EQ(spread.params[1].bytes, 12 * 4);
  EXPECT_EQ(spread.params[1].expanded, row);
  const Traffic twice = kernel(spread.training, "expand w");  // for forward and for backward
  EXPECT_EQ(twice.read, 2 * 12 * 4);
  EXPECT_EQ(twice.written, 2 * row);
  EXPECT_EQ(kernel(spread.training, "expand gate").written, 2 * pass);
  EXPECT_DOUBLE_EQ(kernel(spread.training, "expand gate").written_per_step, 2 * 4);
  EXPECT_EQ(kernel(spread.training, "forward").read, pass + row + pass);
  EXPECT_EQ(kernel(spread.inference, "expand w").written, row);
  EXPECT_EQ(spread.floor, 4 * pass + (1 + steps) * 12 * 4);  // nobody must expand
  EXPECT_EQ(spread.kept_alive, (1 + steps) * 12 * 4);
  EXPECT_NE(spread.text.find("N = 24 of shape [4, 2, 3]"), std::string::npos);
  EXPECT_NE(
      spread.text.find("param 'w' of shape [4, 1, 3] is expanded to [4, 2, 3]: 96 B written once a call\n"),
      std::string::npos);
  EXPECT_NE(
      spread.text.find("param 'gate' of shape [10, 4, 1, 3] is expanded to [4, 2, 3] for each step: 960 B "
                       "written once a call\n"),
      std::string::npos);

  // Sums over elements: what backward wrote is read, one dimension after the other is summed.
  const auto reduced = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const Explanation out = explained({{name, shape}}, {name});
    return std::pair(kernel(out.training, "reduce " + name).read,
                     kernel(out.training, "reduce " + name).written);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(reduced("w", {}), Pair(row + 4, 4 + 4));
  EXPECT_EQ(reduced("w", {3}), Pair(row + 12, 12 + 12));
  EXPECT_EQ(reduced("w", {2, 1}), Pair(row + 32 + 8, 32 + 8 + 8));  // 3 away, then 4
  EXPECT_EQ(reduced("w", {4, 2, 3}), Pair(row + row, row + row));
  EXPECT_EQ(reduced("gate", {steps}), Pair(pass + steps * 4, steps * (4 + 4)));
  EXPECT_EQ(reduced("gate", {steps, 4, 1, 3}), Pair(pass + steps * 48, steps * (48 + 48)));
  const Explanation gradient = explained({{"w", {4, 2, 3}}}, {"w"});
  EXPECT_EQ(kernel(gradient.training, "backward").written, row);
}

TEST(Partition, AFullStepParameterCostsLikeAnInput) {
  // The gradient needs only on which side of zero the gate was.
  const Neuron gated = neuron("gated", [](Step& s) {
    const auto x = s.input("x"), gate = s.step_param("gate", 1);
    s.output("y", select(gate > 0, x, 0.25 * x));
  });
  const Partition small = parts_of(gated, {.wanted = {"x"}});
  EXPECT_EQ(small.bytes_kept, 0);
  const Partition large = parts_of(gated, {.wanted = {"x"}, .full_step_params = {"gate"}});
  ASSERT_EQ(large.handed.size(), 1u);
  EXPECT_EQ(large.handed[0].mem, Mem::b8);
  EXPECT_EQ(large.bytes_kept, 1);
  EXPECT_EQ(large.floor, 2);
  // Read again where nothing is cheaper, and then as the parameter that it is.
  const Neuron scaled =
      neuron("scaled", [](Step& s) { s.output("y", s.input("x") * s.step_param("gate", 1)); });
  const Partition again = parts_of(scaled, {.wanted = {"x"}, .full_step_params = {"gate"}});
  EXPECT_TRUE(again.handed.empty());
  EXPECT_EQ(again.bytes_kept, 4);
  EXPECT_EQ(again.floor, 4);
  EXPECT_THROW(parts_of(scaled, {.wanted = {"x"}, .budget = 3, .full_step_params = {"gate"}}), UserError);
  for (Saving saving : savings)
    for (std::uint64_t seed = 0; seed < 12; ++seed)
      for (const Neuron& neuron : {gated, scaled, odd})
        EXPECT_EQ(law_broken(neuron.graph(), {.saving = saving, .full_step_params = {"gate"}}, seed), "")
            << neuron.name() << " " << static_cast<int>(saving) << " " << seed;
}

// ---- errors ----------------------------------------------------------------------------------------------

/// Gradients chosen from a graph that has all of them, against those of the step for that choice alone.
std::string broken_choice(std::uint64_t seed, int* compared) {
  Dice dice(seed);
  Graph step = compile(random_graph(seed), Stage::simplified);
  for (std::size_t i = 0; i < step.arguments.size(); ++i) step.arguments[i].name = join("argument ", i);
  for (std::size_t i = 0; i < step.results.size(); ++i)
    if (step.results[i].gives == Gives::output) step.results[i].name = join("output ", i);
  Training training;
  for (const Argument& argument : step.arguments)
    if (is_float(value_type(argument.mem)) && dice.chance(0.5)) training.wanted.push_back(argument.name);
  if (dice.chance(0.7)) training.arriving.emplace();
  for (const Result& result : step.results)
    if (training.arriving && result.gives == Gives::output && is_float(value_type(result.mem)) &&
        dice.chance(0.5))
      training.arriving->push_back(result.name);
  Graph chosen, direct;
  try {
    direct = joint_of(step, training);
    chosen = joint_of(joint_of(step, {}), training);
  } catch (const UserError&) {
    return "";  // no gradient flows to what is wanted
  }
  // A gradient that reaches nothing wanted is an argument of the one and not of the other.
  if (direct.arguments.size() != chosen.arguments.size()) return "";
  ++*compared;
  const Trial trial(direct, training, seed), same(chosen, training, seed);
  const Trial::Outcome law = trial.by_law();
  if (const std::string found = difference(law, same.by_law()); !found.empty()) return "law: " + found;
  return difference(
      law, same.by_plans(schedule_training(chosen, partition(chosen, training), training, same.layout())));
}

TEST(Plan, AGraphWithItsGradientsGivesThoseThatAreAskedFor) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed)
    ASSERT_EQ(broken_choice(seed, &compared), "") << seed << "\n" << print(random_graph(seed));
  EXPECT_GT(compared, 100);
  const Neuron plif = neuron_named("plif"), joint = parse_neuron(show(plif, {.stage = Stage::joint}));
  for (const Training& training : {Training{.wanted = {"x"}},
                                   {.wanted = {"w"}},
                                   {.wanted = {"x", "v"}},
                                   {.arriving = std::vector<std::string>{}}})
    EXPECT_EQ(show(joint, {.stage = Stage::plan, .training = training}),
              show(plif, {.stage = Stage::plan, .training = training}));
}

TEST(Plan, WrongRequestsAreNamed) {
  const auto error = [](const auto& call) {
    try {
      call();
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const Neuron lif = neuron_named("lif");
  const auto text = [&](const Training& training) {
    return error([&] { kernel_info(lif, Kind::forward, training); });
  };
  EXPECT_EQ(
      text({.segment = 6}),
      "neuron 'lif': the number of steps between checkpoints must be a power of two from 2 to 1024, or 0 to "
      "leave it to the planner, found 6");
  EXPECT_EQ(text({.saving = Saving::per_step, .segment = 8}),
            "neuron 'lif': values are saved for each step, so there are no checkpoints for a segment of 8 "
            "steps; leave "
            "the segment out, or let values be rebuilt");
  EXPECT_EQ(text({.budget = 3, .saving = Saving::per_step}),
            "neuron 'lif': training within a budget of 3 bytes kept per element and step is not possible "
            "with the way "
            "of saving that is asked for; at least 4 bytes must stay, inputs that are read again included. "
            "Raise the "
            "budget, or ask for fewer gradients");
  EXPECT_EQ(text({.budget = -1}),
            "neuron 'lif': the budget must be a number of bytes of at least 0, found -1");
  EXPECT_EQ(
      text({.budget = 3}),
      "neuron 'lif': training within a budget of 3 bytes kept per element and step is not possible; at least "
      "4 "
      "bytes must stay, inputs that are read again included. Raise the budget, or ask for fewer gradients");
  EXPECT_EQ(text({.costs = {.name = "odd", .op = -1}}),
            "neuron 'lif': the costs of model 'odd' must be numbers from 0 to 1000000, found -1");
  EXPECT_EQ(text({.wanted = {"y"}}),
            "neuron 'lif': there is no argument 'y' to take a gradient of (did you mean 'x'?)");
  EXPECT_EQ(text({.arriving = {{"spike"}}}),
            "neuron 'lif': there is no output 'spike' for a gradient to arrive at");
  EXPECT_EQ(error([] { cost_model_named("cup"); }),
            "there is no cost model 'cup' (did you mean 'cpu'?); choose cpu, gpu or bytes");
  EXPECT_EQ(error([&] { kernel_info(odd, Kind::backward, {.wanted = {"n"}}); }),
            "neuron 'odd': 'n' is i32 and carries no gradient; ask only for float arguments");
  EXPECT_EQ(error([&] { kernel_info(odd, Kind::backward, {.arriving = {{"count"}}}); }),
            "neuron 'odd': output 'count' is i32 and carries no gradient; leave its gradient out");
  const Neuron joint = parse_neuron(show(lif, {.stage = Stage::joint}));
  const auto of_joint = [&](const Training& training) {
    return error([&] { kernel_info(joint, Kind::forward, training); });
  };
  EXPECT_EQ(of_joint({.wanted = {"y"}}),
            "neuron 'lif': there is no argument 'y' to take a gradient of (did you mean 'x'?)");
  EXPECT_EQ(of_joint({.arriving = {{"spike"}}}),
            "neuron 'lif': there is no output 'spike' for a gradient to arrive at");
  const Neuron of_x =
      parse_neuron(show(neuron_named("plif"), {.stage = Stage::joint, .training = {.wanted = {"x"}}}));
  EXPECT_EQ(error([&] { kernel_info(of_x, Kind::forward, {.wanted = {"w"}}); }),
            "neuron 'plif': it has its gradients already, and that of 'w' is not among them; leave it out of "
            "what is wanted, or give the step it was made from");
  const Neuron stateless = neuron("square", [](Step& s) {
    const auto x = s.input("x");
    s.output("z", x * x);
  });
  const Neuron square = parse_neuron(show(stateless, {.stage = Stage::joint}));
  EXPECT_EQ(error([&] { kernel_info(square, Kind::forward, {.arriving = std::vector<std::string>{}}); }),
            "neuron 'square': no gradient arrives at an output or a state of it; name an output that has one "
            "in the graph");
  EXPECT_EQ(show(joint, {.stage = Stage::plan}), show(lif, {.stage = Stage::plan}));
  EXPECT_EQ(error([&] { explain(lif, {.steps = -1}); }),
            "neuron 'lif': the number of steps must not be negative, found -1");
  EXPECT_EQ(error([&] { explain(lif, {.elements = -2}); }),
            "neuron 'lif': the number of elements must not be negative, found -2");
  EXPECT_EQ(error([&] { explain(lif, {.steps = std::int64_t{1} << 40, .elements = std::int64_t{1} << 40}); }),
            "neuron 'lif': 1099511627776 steps of 1099511627776 elements are too many to count their bytes");
  const auto shapes = [&](const std::vector<std::int64_t>& step, const std::string& name,
                          const std::vector<std::int64_t>& param) {
    return error([&] { explain(odd, {.steps = 5, .shape = step, .param_shapes = {{name, param}}}); });
  };
  EXPECT_EQ(error([&] { explain(lif, {.elements = 5, .shape = {{2, 3}}}); }),
            "neuron 'lif': 5 elements are asked for, but the step's shape [2, 3] has 6; give one of the two");
  EXPECT_EQ(error([&] { explain(lif, {.elements = 6, .shape = {{2, 3}}}); }), "no error");
  EXPECT_EQ(shapes({2, -3}, "tau", {}), "neuron 'odd': the step's shape [2, -3] must not be negative");
  EXPECT_EQ(shapes({std::int64_t{1} << 40, std::int64_t{1} << 40}, "tau", {}),
            "neuron 'odd': the step's shape [1099511627776, 1099511627776] has too many elements");
  EXPECT_EQ(shapes({2, 3}, "tau", {-3}),
            "neuron 'odd': param 'tau' has shape [-3], which must not be negative");
  EXPECT_EQ(shapes({2, 3}, "tua", {3}),
            "neuron 'odd': there is no param 'tua' to have a shape (did you mean 'tau'?)");
  EXPECT_EQ(shapes({2, 3}, "x", {3}),
            "neuron 'odd': there is no param 'x' to have a shape (there are 'tau', 'gate')");
  EXPECT_EQ(
      shapes({2, 3}, "tau", {2}),
      "neuron 'odd': param 'tau' has shape [2], which does not broadcast to the step's shape [2, 3]; each "
      "dimension, counted from the right, must be 1 or equal, and there may be no more of them");
  EXPECT_NE(shapes({2, 3}, "tau", {1, 2, 3}).find("does not broadcast"), std::string::npos);
  EXPECT_EQ(shapes({2, 3}, "gate", {3}),
            "neuron 'odd': param 'gate' changes with time, so its shape must start with T = 5, found [3]");
  EXPECT_EQ(error([&] { explain(lif, {.param_shapes = {{"tau", {}}}}); }),
            "neuron 'lif': there is no param 'tau' to have a shape; the neuron has no param");
  EXPECT_EQ(error([&] { kernel_info(odd, Kind::forward, {.full_step_params = {"gato"}}); }),
            "neuron 'odd': there is no parameter 'gato' that changes with time (did you mean 'gate'?); "
            "full_step_params may name no others");
  const Neuron expanded = parse_neuron(show(lif, {.stage = Stage::expanded}));
  EXPECT_EQ(error([&] { kernel_info(expanded, Kind::forward); }),
            "neuron 'lif': it is expanded to exact ops; differentiate the step it was made from");
  EXPECT_EQ(kernel_info(expanded, Kind::inference).outputs.size(), 1u);
  const Neuron early = parse_neuron(
      "neuron early {\n  input x : f32\n  grad g : f32 of output y\n  %a = mul %x, %x\n  %b = add %a, %g\n"
      "  output y = %b : f32\n  grad of x = %g\n}\n");
  EXPECT_EQ(error([&] { kernel_info(early, Kind::forward); }),
            "neuron 'early': output 'y' depends on a gradient that arrives, but forward runs before any "
            "gradient is "
            "there; compute it from inputs, states and parameters");
}

}  // namespace
}  // namespace flexsn::test
