// Errors of ours as Python's ValueError.
#pragma once

#include <c10/util/Exception.h>

#include "flexsn/flexsn.h"

namespace flexsn {

template <class Body>
auto guarded(const Body& body) {
  try {
    return body();
  } catch (const UserError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

}  // namespace flexsn
