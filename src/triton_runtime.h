// What every Triton module has beside its kernels: checks, shapes, the sums of parameter gradients.
#pragma once

#include <string_view>

namespace flexsn {

/// After the imports.
std::string_view triton_runtime();
/// After that, where the neuron is trained.
std::string_view triton_training_runtime();

}  // namespace flexsn
