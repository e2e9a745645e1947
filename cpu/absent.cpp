// What stands for CPU kernels where flexsn is built without LLVM.
#include "error.h"
#include "executable.h"

namespace flexsn {

std::string cpu_absent() {
  return "there are no CPU kernels: flexsn was built without LLVM 19; install llvm-19-dev and build again, "
         "or use the "
         "interpreter (target \"interpreter\"), which gives the same bits";
}

std::shared_ptr<const Executable> cpu_executable(Plan) { throw UserError(cpu_absent()); }

std::string cpu_compiler() { throw UserError(cpu_absent()); }

Isa cpu_isa() { throw UserError(cpu_absent()); }

std::string cpu_assembly(const std::string&, Isa) { throw UserError(cpu_absent()); }

}  // namespace flexsn
