// What a call that should be refused says.
#pragma once

#include <string>

#include "flexsn/flexsn.h"

namespace flexsn {

template <class Call>
std::string error(const Call& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace flexsn
