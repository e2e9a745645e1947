// Errors of ours as Python's ValueError.
#pragma once

#include <c10/util/Exception.h>

#include <stdexcept>

#include "flexsn/flexsn.h"

namespace flexsn {

template <class Body>
auto guarded(const Body& body) {
  try {
    return body();
  } catch (const UserError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const std::out_of_range&) {
    C10_THROW_ERROR(ValueError,
                    "flexsn: the description of a graph names a value, a place or a field that it does not "
                    "have; take it as flexsn wrote it");
  }
}

}  // namespace flexsn
