#include "cuda_modules.h"

#include "error.h"
#include "ops.h"
#include "random_graph.h"
#include "train.h"

namespace flexsn::test {

using namespace ir;

namespace {

/// Gradients that a run leaves out now and then; everything else is there.
std::vector<bool> presence(const Plan& plan, Dice& dice, double absent) {
  std::vector<bool> present;
  for (const Buffer& buffer : plan.buffers) present.push_back(!buffer.optional || !dice.chance(absent));
  return present;
}

CudaOptions some_options(Dice& dice) {
  constexpr int vectors[] = {1, 2, 4}, steps[] = {1, 2, 4, 8}, threads[] = {16, 32, 64, 256};
  CudaOptions options;
  options.vector = dice.pick(vectors);
  options.unroll = dice.pick(steps);
  options.threads = dice.pick(threads);
  options.narrow_threads = dice.pick(threads);
  constexpr int resident[] = {0, 512, 1024};
  options.resident_threads = dice.pick(resident);
  options.early = dice.below(4) != 0;
  return options;
}

void add(std::vector<CudaCase>& cases, std::string what, Plan plan, Dice& dice, double absent = 0.3) {
  std::vector<bool> present = presence(plan, dice, absent);
  cases.push_back({std::move(what), std::move(plan), std::move(present), some_options(dice)});
}

/// The plans of training; none where nothing carries a gradient.
void add_training(std::vector<CudaCase>& cases, const std::string& what, const Graph& step,
                  const Training& training, const Layout& layout, Dice& dice) {
  try {
    Lowered lowered = lower(step, training, layout);
    add(cases, what + " forward", std::move(lowered.plans.forward), dice);
    add(cases, what + " backward", std::move(lowered.plans.backward), dice);
  } catch (const UserError&) {
  }
}

Layout same_for_all(const Graph& step, Map map) {
  Layout layout;
  for (const Argument& argument : step.arguments)
    if (argument.role != Role::input) layout[argument.name] = map;
  return layout;
}

}  // namespace

std::vector<CudaCase> neuron_cases(std::vector<std::string> names) {
  if (names.empty())
    for (const NeuronInfo& info : neuron_list()) names.push_back(info.name);
  std::vector<CudaCase> cases;
  Dice dice(1);
  int number = 0;
  for (const std::string& name : names) {
    const Graph step = neuron_named(name).graph();
    constexpr int segments[] = {2, 4, 8};
    const bool rebuilds = ++number % 3 != 0;
    Training training{.state_sequences = number % 2 == 0,
                      .saving = rebuilds ? Saving::rebuild : Saving::per_step};
    if (rebuilds) training.segment = dice.pick(segments);
    add_training(cases, name, step, training, {}, dice);
    const Kind kind = number % 2 == 0 ? Kind::inference : Kind::inference_final_state;
    add(cases, name + " inference", plan_of(step, kind, {}), dice);
  }
  return cases;
}

std::vector<CudaCase> type_cases() {
  std::vector<CudaCase> cases;
  Dice dice(2);
  for (Mem type : {Mem::f64, Mem::f16, Mem::bf16})
    for (const char* name : {"lif", "alif"}) {
      const Graph step = neuron_named(name).graph(type);
      const Training training{.type = type,
                              .state_sequences = name[0] == 'a',
                              .saving = name[0] == 'a' ? Saving::everything : Saving::rebuild,
                              .segment = name[0] == 'a' ? 0 : 4};
      const std::string what = join(name, " ", name_of(type));
      add_training(cases, what, step, training, {}, dice);
      add(cases, what + " inference", plan_of(step, Kind::inference, {.type = type}), dice);
    }
  for (Map map : {Map::scalar, Map::element, Map::indexed})
    for (Mem type : {Mem::f32, Mem::f16}) {
      const Graph step = neuron_named("plif").graph(type);
      const Training training{.type = type, .saving = Saving::rebuild, .segment = 4};
      add_training(cases, join("plif ", name_of(type), " map ", static_cast<int>(map)), step, training,
                   same_for_all(step, map), dice);
    }
  return cases;
}

Neuron choices() {
  return neuron("choices", [](Step& s) {
    auto x = s.input("x");
    auto last = s.state("last");
    s.output("carried", -last);
    s.next(last, cast(x > 0.9, Type::f32));
    s.output("minus", -cast(x > 0, Type::f32));
    s.output("product", select(x > 0.1, 2.0, 0.0) * -0.5);
    s.output("first", select(x > 0.2, -0.0, 1.0));
    s.output("second", select(x > 0.3, -1.0, -0.0));
    s.output("sign", -sign(x));
    s.output("step", -select(x > 0.7, -1.0, 0.0));
    s.output("both", -cast((x > 0.8) & (x < 2), Type::f32));
    s.output("equal", -select(x == 1, x, 0.0));
    s.output("count", -cast(cast(x > 0.4, Type::i32), Type::f32));
    s.output("wide", -cast(cast(x > 0.5, Type::f64), Type::f32));
    s.output("half", round_f16(-cast(x > 0.6, Type::f32)));
  });
}

std::vector<CudaCase> odd_cases() {
  const Neuron odd = neuron("odd \"one\"\n#error\\", [](Step& s) {
    auto x = s.input("float"), drive = s.input("V", Mem::f16);
    auto v = s.state("v"), u = s.state("run", 0.5, Mem::f64), half = s.state("τ", 0, Mem::bf16);
    auto spikes = s.state("K", 0, Mem::i32), armed = s.state("NAN", 1, Mem::b8);
    auto bytes = s.state("__x", 3, Mem::u8);
    auto gate = s.step_param("fmaf", 0.5);
    auto bias = s.param("flexsn_max", 0.1);
    auto scale = s.param("rows.x", 2, {}, Mem::f16);
    auto index = cast(s.step_index() * 3 + s.element_index(), Type::f32);
    auto decay = exp(bias * scale);
    auto h = v * decay + sigmoid(gate * x) + sin(index) + drive;
    auto fires = (h > 1) & armed;
    s.next(v, select(fires, 0.0, h));
    s.next(u, cast(h, Type::f64) * 0.25 + u / 3.0);
    s.next(half, round_bf16(half * 0.5 + h));
    s.next(spikes, spikes + cast(fires, Type::i32));
    s.next(armed, !fires);
    s.next(bytes, round_u8(bytes * 7 + spikes));
    s.output("int", fires);
    s.output("h", h);
    s.output("bytes", bytes);
    s.output("char16_t", u);
  });
  std::vector<CudaCase> cases;
  Dice dice(3);
  const Graph step = odd.graph();
  for (Map map : {Map::scalar, Map::element, Map::indexed}) {
    const Layout layout = same_for_all(step, map);
    const std::string what = join("odd, map ", static_cast<int>(map));
    const bool sequences = map == Map::element;
    add(cases, what, plan_of(step, sequences ? Kind::inference : Kind::inference_final_state, {}, layout),
        dice);
    add_training(cases, what, step, {.state_sequences = !sequences, .saving = Saving::rebuild, .segment = 4},
                 layout, dice);
    if (map != Map::indexed) continue;
    add_training(cases, what, step, {.state_sequences = true, .saving = Saving::per_step}, layout, dice);
  }
  // Steps that are rebuilt in pieces; of what changes with time some is read for it and again after it.
  const Neuron paced = neuron("paced", [](Step& s) {
    auto x = s.input("x"), drive = s.input("drive", Mem::f16);
    auto v = s.state("v"), u = s.state("u", 0.25, Mem::f64);
    auto gate = s.step_param("gate", 0.5, {}, Mem::f16), weight = s.param("weight", 0.9);
    auto h = v * gate + x * weight * v;
    auto fires = h > 1.0;
    s.next(v, select(fires, h * gate, h + drive));
    s.next(u, u * cast(gate * h, Type::f64) - 0.125);
    s.output("y", sin(h) * cast(u, Type::f32));
  });
  for (Map map : {Map::scalar, Map::element, Map::indexed})
    for (const auto& [segment, unroll] : {std::pair(2, 1), {8, 2}, {16, 4}}) {
      const Graph graph = paced.graph();
      add_training(cases,
                   join("paced, map ", static_cast<int>(map), ", ", segment, " steps, pieces of ", unroll),
                   graph, {.saving = Saving::rebuild, .segment = segment}, same_for_all(graph, map), dice);
      cases.back().options.unroll = unroll;
      cases.back().options.threads = 16;  // a block has room for what all of them keep
      cases.back().options.narrow_threads = 16;
    }
  // Nothing goes from step to step.
  const Neuron plain = neuron("plain", [](Step& s) {
    auto x = s.input("x");
    s.output("y", maximum(x, s.param("least", 0)) + minimum(x, -0.0));
  });
  add(cases, "plain", plan_of(plain.graph(), Kind::inference, {}), dice);
  add_training(cases, "plain", plain.graph(), {}, {}, dice);
  add(cases, "choices", plan_of(choices().graph(), Kind::inference, {}), dice);
  add_training(cases, "choices", choices().graph(), {}, {}, dice);
  return cases;
}

std::vector<CudaCase> row_cases() {
  std::vector<CudaCase> cases;
  Dice dice(4);
  for (Type t : {Type::f32, Type::f64, Type::i32, Type::b1}) {
    Graph graph;
    graph.name = join("rows of ", name_of(t));
    const auto input = [&](const char* name, Type type) {
      return add_argument(graph, {.role = Role::input, .name = name, .mem = natural_memory(type)});
    };
    const V condition = input("condition", Type::b1);
    const V operands[] = {input("a", t), input("b", t), input("c", t)};
    for (Op op : all_ops()) {
      const Row& row = row_of(op);
      if (row.is_leaf() || row.raw || row.is_expanded() || !row.meaning.sig.types.has(t)) continue;
      V chosen[] = {operands[0], operands[1], operands[2]};
      if (operand_type(row, 0, t) != t) chosen[0] = condition;
      const V result = apply(op, chosen, row.arity);
      graph.results.push_back({.gives = Gives::output,
                               .name = row.name,
                               .mem = natural_memory(result.type()),
                               .value = result.id});
    }
    // Constants of either sign, on either side.
    for (double constant : {0.0, -0.0, 1.0, -2.5, std::numeric_limits<double>::quiet_NaN(),
                            std::numeric_limits<double>::infinity()})
      for (Op op : {Op::maximum, Op::minimum}) {
        if (!is_float(t)) continue;
        const V fixed = flexsn::ir::constant(graph, t, constant);
        const V left[] = {fixed, operands[0]}, right[] = {operands[0], fixed};
        for (const V* pair : {left, right})
          graph.results.push_back({.gives = Gives::output,
                                   .name = join(row_of(op).name, constant),
                                   .mem = natural_memory(t),
                                   .value = apply(op, pair, 2).id});
      }
    add(cases, graph.name, schedule_inference(graph, Kind::inference), dice);
    cases.back().options.unroll = 2;  // how often a row is there matters to compilers alone
  }
  return cases;
}

std::vector<CudaCase> random_cases(std::uint64_t first_seed, int count) {
  std::vector<CudaCase> cases;
  for (auto seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(count); ++seed) {
    const Graph graph = random_graph(seed);
    Dice dice(seed + 1000);
    Layout layout;
    for (const Argument& argument : graph.arguments)
      if (argument.role == Role::param) layout[argument.name] = static_cast<Map>(dice.below(3));
    const std::string what = join("random graph ", seed);
    if (dice.chance(0.3))
      add(cases, what,
          plan_of(graph, dice.chance(0.5) ? Kind::inference : Kind::inference_final_state, {}, layout), dice);
    Training training{.state_sequences = dice.chance(0.5), .saving = static_cast<Saving>(dice.below(4))};
    if (training.saving == Saving::rebuild) training.segment = 2 << dice.below(4);
    add_training(cases, what, graph, training, layout, dice);
  }
  return cases;
}

}  // namespace flexsn::test
