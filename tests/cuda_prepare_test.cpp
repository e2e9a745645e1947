// What is compiled before a run that needs it, and what in the background.
#include "cuda_fake_fixture.h"

namespace flexsn::test {
namespace {

TEST_F(CudaFake, NoSizeCompilesAgain) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  const CudaKernel kernel(plan, cuda, no_store);
  EXPECT_EQ(entry_of(*fake_, kernel, run_of(plan, 3, 100)), "flexsn_narrow");
  const PlanRun many = run_of(plan, 3, 1 << 20);
  wait_until([&] { return kernel.is_ready(many); });
  EXPECT_TRUE(kernel.is_ready(many)) << "the other entry is made in the background";
  EXPECT_EQ(fake_->compiled.size(), 2u) << "each entry alone";
  EXPECT_EQ(entry_of(*fake_, kernel, many), "flexsn_wide");
  EXPECT_EQ(entry_of(*fake_, kernel, run_of(plan, 9, 101)), "flexsn_narrow");
  EXPECT_EQ(fake_->compiled.size(), 2u);
}

TEST_F(CudaFake, AnEntryThatCannotRunIsNotMade) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  for (const auto& [entry, made] : {std::pair(CudaEntry::narrow, 1u), {CudaEntry::wide, 2u}}) {
    fake_->compiled.clear();
    {  // whose end waits for what is made in the background
      const CudaKernel kernel(plan, cuda, no_store, {.entry = entry});
      EXPECT_EQ(entry_of(*fake_, kernel, run_of(plan, 3, 101)), "flexsn_narrow");
    }
    EXPECT_EQ(fake_->compiled.size(), made);
  }
}

TEST_F(CudaFake, WhatFailsInTheBackgroundIsMadeByTheRunThatNeedsIt) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  const CudaKernel kernel(plan, cuda, no_store);
  fake_->failing = "nvrtcCompileProgram";
  fake_->fails_at = 2;
  EXPECT_EQ(entry_of(*fake_, kernel, run_of(plan, 3, 100)), "flexsn_narrow");
  wait_until([&] { return has_failed(); });
  EXPECT_EQ(entry_of(*fake_, kernel, run_of(plan, 3, 1 << 20)), "flexsn_wide");
}

TEST_F(CudaFake, WhatIsPreparedIsWhatRuns) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = plan_of(neuron_named("plif").graph(), Kind::backward, {});
  const CudaKernel kernel(plan, cuda, no_store);
  PlanRun later{.steps = 3, .elements = 1000, .buffers = {}};
  later.buffers.assign(plan.buffers.size(), to_come());
  EXPECT_FALSE(kernel.is_ready(later));
  fake_->failing = "nvrtcCompileProgram";
  EXPECT_TRUE(contains(error([&] { kernel.prepare(later); }), "could not"));
  EXPECT_FALSE(kernel.is_ready(later));
  kernel.prepare(later);
  EXPECT_TRUE(kernel.is_ready(later));
  EXPECT_EQ(fake_->compiled.size(), 2u) << "the entry and the sums of parameters' gradients";
  later.elements = 0;  // needs no code at all
  EXPECT_TRUE(CudaKernel(plan, cuda, no_store).is_ready(later));
}

TEST_F(CudaFake, BackwardIsPreparedForAsManyElementsAsForward) {
  struct Noting : Executable {
    Plan of = plan_of(neuron_named("lif").graph(), Kind::backward, {.costs = cost_model_named("gpu")});
    mutable PlanRun noted;
    const Plan& plan() const override { return of; }
    void run(const PlanRun&, const Threads&) const override {}
    void prepare(const PlanRun& run) const override { noted = run; }
  };
  const Cuda cuda(library, library, no_store);
  const Noting backward;
  for (const auto& [elements, others] : {std::pair(1000, 1 << 20), {1 << 20, 1000}}) {
    prepare_both(Noting(), run_of(backward.of, 3, elements), backward, [](const Buffer&) { return true; });
    const CudaKernel kernel(backward.of, cuda, no_store);
    kernel.prepare(backward.noted);
    EXPECT_TRUE(kernel.is_ready(run_of(backward.of, 3, elements))) << elements;
    EXPECT_FALSE(kernel.is_ready(run_of(backward.of, 3, others))) << elements;
  }
}

TEST_F(CudaFake, BackwardIsPreparedForInputsThatLieAsForwards) {
  const Cuda cuda(library, library, no_store);
  const ir::Graph lif = neuron_named("lif").graph();
  const Training training{.saving = Saving::rebuild, .segment = 8};
  const CudaKernel forward(plan_of(lif, Kind::forward, training), cuda, no_store);
  const CudaKernel backward(plan_of(lif, Kind::backward, training), cuda, no_store);
  const auto oddly = [](const CudaKernel& kernel) {
    PlanRun run = run_of(kernel.plan(), 8, 1 << 20);
    for (std::size_t b = 0; b < run.buffers.size(); ++b)
      if (kernel.plan().buffers[b].holds == Holds::input)
        run.buffers[b].data = static_cast<std::byte*>(run.buffers[b].data) + sizeof(float);
    return run;
  };
  prepare_both(forward, oddly(forward), backward, [](const Buffer&) { return true; });
  EXPECT_TRUE(forward.is_ready(oddly(forward)));
  EXPECT_TRUE(backward.is_ready(oddly(backward)));
  EXPECT_FALSE(backward.is_ready(run_of(backward.plan(), 8, 1 << 20)));
  EXPECT_EQ(fake_->compiled.size(), 2u);
}

TEST_F(CudaFake, WhatIsToComeLiesForTheWidestLoads) {
  const Cuda cuda(library, library, no_store);
  const Neuron masked = neuron("masked", [](Step& s) {  // f64 beside a row of bytes: four elements a thread
    const auto x = s.input("x"), v = s.state("v");
    s.next(v, select(s.input("m", Mem::b8), v * 0.5 + x, x));
    s.output("y", v * x);
  });
  const Plan plan = plan_of(masked.graph(Mem::f64), Kind::inference_final_state, {});
  const CudaKernel kernel(plan, cuda, no_store);
  PlanRun later{.steps = 3, .elements = 1 << 20, .buffers = {}};
  later.buffers.assign(plan.buffers.size(), to_come());
  kernel.prepare(later);
  EXPECT_EQ(kernel.options().vector, 4);
  const PlanRun run = run_of(plan, 3, 1 << 20);
  EXPECT_TRUE(kernel.is_ready(run));
  EXPECT_EQ(entry_of(*fake_, kernel, run), "flexsn_wide");
}

TEST_F(CudaFake, ForwardRunsWhereBackwardCannotBePrepared) {
  struct Failing : Executable {
    Plan of = lif_plan();
    const Plan& plan() const override { return of; }
    void run(const PlanRun&, const Threads&) const override {}
    void prepare(const PlanRun&) const override { user_error("no code"); }
  };
  const Cuda cuda(library, library, no_store);
  const CudaKernel kernel(lif_plan(), cuda, no_store);
  const PlanRun run = run_of(lif_plan(), 3, 100);
  const auto all = [](const Buffer&) { return true; };
  EXPECT_EQ(error([&] { prepare_both(kernel, run, Failing(), all); }), "no error");
  EXPECT_TRUE(kernel.is_ready(run));
  EXPECT_EQ(error([&] { prepare_both(Failing(), run, kernel, all); }), "no code");
}

}  // namespace
}  // namespace flexsn::test
