// Gradients that do not arrive after all: an absent one takes part in no arithmetic, which zero does not
// promise.
#pragma once

#include "partition.h"

namespace flexsn {

/// A backward part without the gradients that arrive at these arguments of the joint graph. What depends on
/// absent gradients only is absent too; a sum with one absent part is the other part. A gradient that nothing
/// arrives for is zero.
Part without_arriving(const Part& backward, const std::vector<int>& absent);

}  // namespace flexsn
