// A trial of training on random data: by the law (the joint graph, step by step) and by plans.
#pragma once

#include "execute.h"
#include "random.h"
#include "train.h"

namespace flexsn {

class Trial {
 public:
  /// `joint` is what the plans were made from; sizes and maps are drawn from the seed, unless they are given.
  /// `edge_share` of the numbers are zeros, infinities, NaN and the like.
  Trial(const ir::Graph& joint, const Training& training, std::uint64_t seed,
        std::optional<std::int64_t> steps = {}, std::optional<std::int64_t> elements = {},
        double edge_share = 0.02);

  /// The maps that plans must be made for.
  const Layout& layout() const { return layout_; }
  std::int64_t steps() const { return steps_; }
  std::int64_t elements() const { return elements_; }

  /// What comes out, by name: outputs, states, gradients; of parameters the sums for each element.
  using Outcome = std::map<std::string, Array>;
  Outcome by_law() const;
  /// Who runs a plan.
  using Runner = std::function<void(const Plan& plan, const PlanRun& run)>;
  /// Forward, then backward on what forward left; or inference alone, for a graph without gradients.
  Outcome by_plans(const std::vector<const Plan*>& plans, const Runner& runner = execute) const;
  Outcome by_plans(const TrainingPlans& plans, const Runner& runner = execute) const {
    return by_plans({&plans.forward, &plans.backward}, runner);
  }

 private:
  struct Data {
    Array values = {};
    std::int64_t row_stride = 0;
    std::int64_t inner = 1, count = 1;
    std::vector<std::int64_t> indices = {};
    Map map = Map::element;
    bool given = true;
  };
  Data draw(Mem mem, bool rows, Map map, const Range& range, Random& random) const;
  Source source(const Data& data) const;
  Outcome room() const;

  const ir::Graph& joint_;
  const bool sequences_;
  const double edge_share_;
  std::vector<std::string> wanted_;
  std::int64_t steps_ = 0, elements_ = 0, first_step_ = 0;
  Layout layout_;
  std::vector<Data> data_;  ///< for each argument of the joint graph; of a new state what arrives at it
};

/// The first difference in bits, in words; "" where there is none. A NaN equals every NaN.
std::string difference(const Trial::Outcome& a, const Trial::Outcome& b);

}  // namespace flexsn
