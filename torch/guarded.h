// Errors of ours as Python's ValueError, and numbers as IEEE has them, whatever torch.set_flush_denormal
// says.
#pragma once

#include <c10/util/Exception.h>

#include "environment.h"
#include "flexsn/flexsn.h"

namespace flexsn {

template <class Body>
auto guarded(const Body& body) {
  const IeeeEnvironment environment;
  try {
    return body();
  } catch (const UserError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

}  // namespace flexsn
