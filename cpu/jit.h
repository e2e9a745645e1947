// LLVM: IR text to object code, object code to functions of this process. jit.cpp alone sees LLVM's headers.
#pragma once

#include <memory>

#include "emit_llvm.h"

// LLVM lives in a shared library of its own, which shows nothing but what is marked so: another copy of LLVM
// in the same process never meets it.
#define FLEXSN_SHOWN __attribute__((visibility("default")))

namespace flexsn {

/// The widest instruction set of this machine, or the one that FLEXSN_ISA asks for. Throws a UserError where
/// the processor is older than kernels need.
FLEXSN_SHOWN Isa host_isa();

/// The same for an x86-64 processor with these features, as LLVM calls them; `asked` is "" for the widest.
FLEXSN_SHOWN Isa isa_with(const std::vector<std::string>& features, std::string_view asked);

/// Instructions of the largest kernel that is optimized. The time that it takes grows with the square of a
/// loop's body: 15 s at this size, minutes for 10,000 operations of a neuron.
constexpr unsigned largest_optimized = 12000;

/// Object code for a module; the text must be one of emit_llvm's.
FLEXSN_SHOWN std::string compile_object(const std::string& text, Isa isa,
                                        unsigned optimized_up_to = largest_optimized);
/// The same as a listing.
FLEXSN_SHOWN std::string compile_assembly(const std::string& text, Isa isa);

/// Everything beside the text and the Isa that decides what compile_object gives.
FLEXSN_SHOWN std::string compiler_version();

/// Object code in this process, ready to run; copies share it.
class FLEXSN_SHOWN Code {
 public:
  /// `object` is what compile_object gave for host_isa(), now or in another process.
  explicit Code(const std::string& object);
  LlvmCall function(const std::string& name) const;

 private:
  struct Session;
  std::shared_ptr<Session> session_;
};

}  // namespace flexsn
