// The lists of what there is: ops, targets, the version.
#include "error.h"
#include "ops.h"

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
  return {{"interpreter", true, "defines what every op and every backend computes; runs anywhere"}};
}

std::string_view version() { return FLEXSN_VERSION; }

}  // namespace flexsn
