#include "jit.h"

#include <llvm/AsmParser/Parser.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/Core.h>
#include <llvm/ExecutionEngine/Orc/ExecutorProcessControl.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar.h>

#include <math.h>
#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "environment.h"
#include "error.h"

namespace flexsn {

namespace {

void start_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
  });
}

std::string message(llvm::Error error) { return llvm::toString(std::move(error)); }

template <class T>
T checked(llvm::Expected<T> value) {
  if (!value) internal_error("LLVM: " + message(value.takeError()), std::source_location::current());
  return std::move(*value);
}

void checked(llvm::Error error) {
  if (error) internal_error("LLVM: " + message(std::move(error)), std::source_location::current());
}

/// The instruction set exactly, whatever more this machine has: the same code everywhere.
std::unique_ptr<llvm::TargetMachine> target_machine(Isa isa, llvm::CodeGenOptLevel level) {
  start_llvm();
  const std::string triple = is_x86(isa) ? "x86_64-unknown-linux-gnu" : "aarch64-unknown-linux-gnu";
  std::string problem;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, problem);
  internal_check(target != nullptr, "LLVM was built without a target that flexsn is linked with");
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(
      target->createTargetMachine(triple, is_x86(isa) ? name_of(isa) : "generic", "", options,
                                  llvm::Reloc::PIC_, llvm::CodeModel::Small, level));
}

std::string compile(const std::string& text, Isa isa, unsigned optimized_up_to, llvm::CodeGenFileType what) {
  const IeeeEnvironment environment;  // for what LLVM folds
  llvm::LLVMContext context;
  llvm::SMDiagnostic problem;
  const std::unique_ptr<llvm::Module> module = llvm::parseAssemblyString(text, problem, context);
  if (module == nullptr)
    internal_error(join("LLVM cannot read what flexsn wrote: ", problem.getMessage().str(),
                        " in: ", problem.getLineContents().str()),
                   std::source_location::current());
  internal_check(!llvm::verifyModule(*module), "LLVM finds what flexsn wrote illegal");
  const auto level = module->getInstructionCount() > optimized_up_to ? llvm::CodeGenOptLevel::None
                                                                     : llvm::CodeGenOptLevel::Default;
  const std::unique_ptr<llvm::TargetMachine> machine = target_machine(isa, level);
  module->setTargetTriple(machine->getTargetTriple().str());
  module->setDataLayout(machine->createDataLayout());
  llvm::SmallVector<char, 0> code;
  llvm::raw_svector_ostream out(code);
  llvm::legacy::PassManager passes;
  // The emitter has already put every value at the loop level where it belongs.
  passes.add(llvm::createEarlyCSEPass());
  passes.add(llvm::createInstructionCombiningPass());
  internal_check(!machine->addPassesToEmitFile(passes, out, nullptr, what),
                 "LLVM cannot write object code for this target");
  passes.run(*module);
  return {code.begin(), code.end()};
}

}  // namespace

Isa isa_with(const std::vector<std::string>& features, std::string_view asked) {
  const auto missing = [&](std::initializer_list<const char*> needed) {
    std::string list;
    for (const char* feature : needed)
      if (std::find(features.begin(), features.end(), feature) == features.end())
        list += join(list.empty() ? "" : ", ", feature);
    return list;
  };
  if (const std::string list = missing({"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"});
      !list.empty())
    user_error("CPU kernels need an x86-64-v3 processor, but this one lacks ", list,
               "; use the interpreter (target \"interpreter\"), which gives the same bits");
  const std::string wider = missing({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
  if (asked.empty()) return wider.empty() ? Isa::x86_64_v4 : Isa::x86_64_v3;
  if (asked == name_of(Isa::x86_64_v3)) return Isa::x86_64_v3;
  if (asked != name_of(Isa::x86_64_v4))
    user_error("FLEXSN_ISA must be x86-64-v3 or x86-64-v4 on this machine, found '", asked, "'");
  if (!wider.empty())
    user_error("FLEXSN_ISA asks for x86-64-v4, but this processor lacks ", wider, "; leave it away");
  return Isa::x86_64_v4;
}

Isa host_isa() {
#if defined(__aarch64__)
  return Isa::neon;
#elif defined(__x86_64__)
  static const Isa isa = [] {
    std::vector<std::string> features;
    for (const auto& feature : llvm::sys::getHostCPUFeatures())
      if (feature.getValue()) features.push_back(feature.getKey().str());
    const char* asked = std::getenv("FLEXSN_ISA");
    return isa_with(features, asked == nullptr ? "" : asked);
  }();
  return isa;
#else
  user_error(
      "CPU kernels are made for x86-64 and aarch64; use the interpreter (target \"interpreter\"), which "
      "gives the same bits");
#endif
}

std::string compile_object(const std::string& text, Isa isa, unsigned optimized_up_to) {
  return compile(text, isa, optimized_up_to, llvm::CodeGenFileType::ObjectFile);
}

std::string compile_assembly(const std::string& text, Isa isa) {
  return compile(text, isa, largest_optimized, llvm::CodeGenFileType::AssemblyFile);
}

std::string compiler_version() { return "LLVM " LLVM_VERSION_STRING; }

/// What a kernel's code lives in. Nothing of the process is visible to it but the functions named here.
struct Code::Session {
  /// Ends it before its parts are destroyed, also where linking fails.
  struct End {
    llvm::orc::ExecutionSession& execution;
    ~End() {
      if (llvm::Error error = execution.endSession()) llvm::consumeError(std::move(error));
    }
  };
  std::string problems;  ///< what LLVM reports beside the errors that it returns
  llvm::orc::ExecutionSession execution{checked(llvm::orc::SelfExecutorProcessControl::Create())};
  llvm::orc::ObjectLinkingLayer layer{execution};
  llvm::orc::JITDylib& library = execution.createBareJITDylib("flexsn");
  End end{execution};

  explicit Session(const std::string& object) {
    execution.setErrorReporter([this](llvm::Error error) { problems += "; " + message(std::move(error)); });
    const auto symbol = [](auto* function) {
      return llvm::orc::ExecutorSymbolDef{llvm::orc::ExecutorAddr::fromPtr(function),
                                          llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
    };
    double (*fmod_f64)(double, double) = &::fmod;
    float (*fmod_f32)(float, float) = &::fmodf;
    checked(library.define(llvm::orc::absoluteSymbols(
        {{execution.intern("fmod"), symbol(fmod_f64)}, {execution.intern("fmodf"), symbol(fmod_f32)}})));
    checked(layer.add(library, llvm::MemoryBuffer::getMemBufferCopy(object, "flexsn kernel")));
  }
};

Code::Code(const std::string& object) : session_(std::make_shared<Session>(object)) {}

LlvmCall Code::function(const std::string& name) const {
  auto found = session_->execution.lookup({&session_->library}, name);
  if (!found)
    internal_error("LLVM: " + message(found.takeError()) + session_->problems,
                   std::source_location::current());
  return found->getAddress().toPtr<LlvmCall>();
}

}  // namespace flexsn
