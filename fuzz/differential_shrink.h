// Makes a case that fails as small as it can be while it still fails.
#pragma once

#include "differential_case.h"

namespace flexsn::fuzz {

struct Shrunk {
  Case smallest;
  int tries = 0;
};

/// Greedy: outputs, states, inputs, ops, sizes, options and values are taken away or made simpler as long as
/// `fails` says that the rest still does, until nothing smaller does. `fails` gets legal graphs only.
/// It stops after `most_tries` calls.
Shrunk shrink(Case failing, const std::function<bool(const Case&)>& fails, int most_tries);

}  // namespace flexsn::fuzz
