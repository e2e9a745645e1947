// The registry of handles as torch operators.
#include <torch/library.h>

#include <tuple>
#include <utility>

#include "flexsn/flexsn.h"
#include "registry.h"

namespace flexsn {

namespace {

Holder holder(bool owner) { return owner ? Holder::owner : Holder::active; }

/// Errors of ours as Python's RuntimeError, which is what the seed raises for a handle.
template <class Body>
auto handle_guarded(const Body& body) {
  try {
    return body();
  } catch (const UserError& error) {
    C10_THROW_ERROR(Error, error.what());
  }
}

}  // namespace

}  // namespace flexsn

TORCH_LIBRARY_FRAGMENT(flexsn, m) {
  using namespace flexsn;
  m.def("register_handle(str neuron) -> int",
        [](std::string neuron) { return registry().add(std::move(neuron)); });
  m.def("handle_text(int handle) -> str",
        [](std::int64_t handle) { return handle_guarded([&] { return registry().text(handle); }); });
  m.def("retain_handle(int handle, bool owner) -> ()", [](std::int64_t handle, bool owner) {
    handle_guarded([&] { registry().retain(handle, holder(owner)); });
  });
  m.def("release_handle(int handle, bool owner) -> bool",
        [](std::int64_t handle, bool owner) { return registry().release(handle, holder(owner)); });
  m.def("registry_info() -> (int, int, int)", [] {
    const Registry::Info info = registry().info();
    return std::make_tuple(info.entries, info.owners, info.active);
  });
}
