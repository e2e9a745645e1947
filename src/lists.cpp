// What there is: ops, targets, code, kernels on disk, the version.
#include "error.h"
#include "executable.h"
#include "export.h"
#include "ops.h"
#include "store.h"
#include "train.h"

namespace flexsn {

using namespace ir;

namespace {

std::string operands_of(const Row& row) {
  const Sig& sig = row.meaning.sig;
  if (row.is_leaf()) return "() -> i32";
  std::string text = "(";
  for (int i = 0; i < row.arity; ++i) {
    const SigType slot = i == 0 ? sig.first : SigType::T;
    text += join(i ? ", " : "", slot == SigType::T ? "T" : name_of(type_of(slot, Type::f32)));
  }
  return join(text, ") -> ", sig.result == SigType::T ? "T" : name_of(type_of(sig.result, Type::f32)),
              ", T: ", names_of(sig.types));
}

}  // namespace

std::vector<OpInfo> op_list() {
  std::vector<OpInfo> list;
  for (Op op : all_ops()) {
    const Row& row = row_of(op);
    list.push_back({row.name, operands_of(row),
                    row.is_leaf()       ? "leaf"
                    : row.is_expanded() ? "expanded"
                    : row.raw           ? "basic, in expansions only"
                                        : "basic",
                    row.doc});
  }
  return list;
}

std::vector<TargetInfo> target_list() {
  const std::string absent = cpu_absent();
  std::string no_cuda = cuda_absent(), cuda;
  try {
    if (no_cuda.empty()) cuda = cuda_description();
  } catch (const UserError& error) {  // a process that was forked from one that used it
    no_cuda = error.what();
  }
  return {{"interpreter", true, "defines what every op and every backend computes; runs anywhere"},
          {"cpu", absent.empty(),
           !absent.empty() ? absent
                           : join("vector code by ", cpu_compiler(), " for ",
                                  cpu_isa() == Isa::neon ? "aarch64 NEON" : name_of(cpu_isa()), ", ",
                                  default_thread_count(), " threads")},
          {"cuda", no_cuda.empty(), no_cuda.empty() ? cuda : no_cuda}};
}

std::string emit(const Neuron& neuron, Kind kind, Listing what, const Training& training) {
  if (what == Listing::ptx) return cuda_ptx(exported(neuron, "cuda", kind, training));
  const Plan plan = plan_of(neuron.graph(training.type), kind, training);
  const bool here = cpu_absent().empty();
  const LlvmOptions options{.isa = here ? cpu_isa() : Isa::x86_64_v3};
  const LlvmModule module = emit_llvm(plan, std::vector<bool>(plan.buffers.size(), true), options);
  return what == Listing::llvm ? module.text : cpu_assembly(module.text, options.isa);
}

CacheInfo cache_info() {
  const StoreInfo info = Store::standard().info();
  return {info.directory, info.usable, info.problem, static_cast<std::int64_t>(info.entries),
          static_cast<std::int64_t>(info.bytes)};
}

std::int64_t cache_clear() { return static_cast<std::int64_t>(Store::standard().clear()); }

std::string_view version() { return FLEXSN_VERSION; }

}  // namespace flexsn
