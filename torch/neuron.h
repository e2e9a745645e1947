// A neuron as the torch operators see it: found by its canonical text, with the kernels of each request.
#pragma once

#include <set>

#include "kernels.h"

namespace flexsn {

/// What an operator is asked for beside the neuron.
struct Request {
  std::vector<int> wanted = {};  ///< arguments whose gradients are wanted; empty: all that carry one
  bool sequences = false;        ///< states of every step, not only the last ones
  std::string plan = {};         ///< "cpu" (or "") or "gpu", then options: "cpu,budget=8,saving=per_step"

  auto operator<=>(const Request&) const = default;
};

/// Where tensors are. What forward saves for backward does not depend on it.
enum class Place : std::uint8_t { cpu, cuda };

/// The kernels of one request.
class Requested {
 public:
  Requested(const ir::Graph& graph, const Request& request);

  const ir::Graph& joint() const { return kernels_.joint(); }
  void require_training() const { kernels_.require_training(); }
  bool trainable() const { return kernels_.trainable(); }
  /// The kernel of a kind for these layouts, one for each state and parameter; `absent` are the arguments of
  /// the joint graph at which no gradient arrives.
  std::shared_ptr<const Executable> executable(Place place, Kind kind, const std::vector<Map>& maps,
                                               const std::vector<int>& absent = {});
  bool is_on_gpu() const;
  /// What forward leaves for backward beside its results, in order: saved values and checkpoints.
  const std::vector<Buffer>& saved() const { return saved_; }
  /// Steps between checkpoints; 0: there are none.
  int segment() const { return segment_; }
  /// Does backward read this?
  bool reads(Holds holds, int index) const { return reads_.contains({holds, index}); }

 private:
  Kernels kernels_;
  std::vector<std::string> laid_out_;  ///< names of states and parameters
  std::vector<Buffer> saved_;
  int segment_ = 0;
  std::set<std::pair<Holds, int>> reads_;
  mutable std::mutex mutex_;
  std::map<std::tuple<Place, Kind, std::vector<Map>, std::vector<int>>, std::shared_ptr<const Executable>>
      known_;
};

/// A neuron of this process; equal texts are the same one as long as it is remembered.
class TorchNeuron {
 public:
  explicit TorchNeuron(std::string_view text);

  const ir::Graph& graph() const { return graph_; }
  // Indices of the graph's arguments and results, in the order of the operators' lists.
  const std::vector<int>& inputs() const { return inputs_; }
  const std::vector<int>& states() const { return states_; }
  const std::vector<int>& params() const { return params_; }
  const std::vector<int>& outputs() const { return outputs_; }
  /// Inputs, states and parameters in one list.
  const std::vector<int>& arguments() const { return arguments_; }
  /// Where the value stands that a state starts with.
  void* initial(int argument) const { return initial_.at(argument).get(); }
  const std::string& text() const { return text_; }
  /// Can a gradient be had of this argument; does one arrive at this output or state?
  bool differentiable(int argument) const { return differentiable_.contains(argument); }
  bool output_carries(int result) const { return outputs_that_carry_.contains(result); }
  bool state_carries(int argument) const { return states_that_carry_.contains(argument); }

  Requested& requested(const Request& request) const;
  bool is_on_gpu() const;

 private:
  std::string text_;
  ir::Graph graph_;
  std::map<int, std::unique_ptr<double>> initial_;
  std::vector<int> inputs_, states_, params_, outputs_, arguments_;
  std::set<int> differentiable_, outputs_that_carry_, states_that_carry_;
  mutable std::mutex mutex_;
  mutable std::map<Request, std::unique_ptr<Requested>> requested_;
};

/// The neuron of a text. It is remembered until `neurons_remembered` others have been used after it; one with
/// kernels on a GPU, which may be running or be part of a recorded graph, until the process ends.
using NeuronHandle = std::shared_ptr<const TorchNeuron>;
NeuronHandle neuron_of(std::string_view text);
inline constexpr std::size_t neurons_remembered = 1024;

}  // namespace flexsn
