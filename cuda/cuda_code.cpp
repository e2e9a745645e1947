#include "cuda_code.h"

#include <array>
#include <atomic>

#include "cuda_spread.h"
#include "cuda_sums.h"
#include "emit_cuda.h"
#include "error.h"

namespace flexsn {

namespace {

constexpr int attribute_shared_bytes = 1, attribute_local_bytes = 3, attribute_registers = 4;
constexpr int error_out_of_memory = 2, error_invalid_context = 201, error_invalid_handle = 400;
constexpr int jit_error_log = 5, jit_error_log_bytes = 6;
constexpr std::int64_t most_blocks = 0x7fffffff;

/// What a driver says of object code that it does not take.
struct Refused {
  std::string why, log;
  bool for_memory = false;
};

/// Code on a device until the end of the scope, unless somebody takes it.
struct Module {
  const Driver& driver;
  void* handle = nullptr;

  ~Module() {
    if (handle != nullptr) driver.functions().cuModuleUnload(handle);
  }
};

}  // namespace

/// A text on one device, loaded by the first who needs it.
struct CudaCode::Loaded {
  const Driver& driver;
  std::mutex loading = {};
  std::atomic<bool> made = false;
  const Gpu* gpu = nullptr;
  void* module = nullptr;
  std::vector<CudaFunction> functions = {};

  explicit Loaded(const Driver& its_driver) : driver(its_driver) {}
  ~Loaded() {
    if (module == nullptr) return;
    try {  // at the end of the process the driver may have ended first
      const CurrentGpu current(driver, *gpu);
      const RelaxedCapture relaxed(driver);
      driver.functions().cuModuleUnload(module);
    } catch (const UserError&) {
    }
  }
};

/// A text for one architecture.
struct CudaCode::Object {
  std::mutex mutex;
  std::string bytes;  ///< "" until it is made
};

Cuda::Cuda(const std::string& driver_library, const std::string& nvrtc_library, const Store& store)
    : driver(driver_library),
      nvrtc(nvrtc_library),
      sums_(std::make_unique<CudaCode>(*this, store, emit_cuda_reduce(), sum_entries())),
      spread_(std::make_unique<CudaCode>(*this, store, spread_text(), spread_entries())) {}

Cuda::~Cuda() = default;

const Cuda& Cuda::standard() {
  static const Cuda* const shared = new Cuda;  // to the end: kernels may be destroyed after static objects
  return *shared;
}

CudaCode::CudaCode(const Cuda& cuda, Store store, std::string text, std::vector<std::string> entries)
    : cuda_(cuda), store_(std::move(store)), text_(std::move(text)), entries_(std::move(entries)) {}

CudaCode::~CudaCode() = default;

void CudaCode::link(const Gpu& gpu, const std::string& object, Loaded& loaded) const {
  const DriverFunctions& driver = cuda_.driver.functions();
  const CurrentGpu current(cuda_.driver, gpu);
  const RelaxedCapture relaxed(cuda_.driver);
  std::array<char, 4096> log{};
  std::array<int, 2> options = {jit_error_log, jit_error_log_bytes};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  Module module{cuda_.driver};
  if (const int result = driver.cuModuleLoadDataEx(&module.handle, object.c_str(), options.size(),
                                                   options.data(), values.data());
      result != 0)
    throw Refused{cuda_.driver.error_text(result), log.data(), result == error_out_of_memory};
  std::vector<CudaFunction> functions;
  for (const std::string& entry : entries_) {
    CudaFunction& function = functions.emplace_back();
    cuda_.driver.check(driver.cuModuleGetFunction(&function.handle, module.handle, entry.c_str()),
                       "find a kernel in its module");
    // Asking also makes sure that the code is there before a capture starts.
    const auto ask = [&](int attribute, int& value) {
      cuda_.driver.check(driver.cuFuncGetAttribute(&value, attribute, function.handle),
                         "tell what a kernel needs");
    };
    ask(attribute_registers, function.registers);
    ask(attribute_local_bytes, function.local_bytes);
    ask(attribute_shared_bytes, function.shared_bytes);
  }
  loaded.functions = std::move(functions);
  loaded.gpu = &gpu;
  loaded.module = module.handle;
  module.handle = nullptr;
  loaded.made = true;
}

void CudaCode::load(const Gpu& gpu, Loaded& loaded) const {
  const std::string architecture = cuda_.nvrtc.architecture(gpu.capability);
  Object* object = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Object>& place = objects_[architecture];
    if (!place) place = std::make_unique<Object>();
    object = place.get();
  }
  const auto link_made = [&](const std::string& made) {
    try {
      link(gpu, made, loaded);
    } catch (const Refused& refused) {
      user_error("the CUDA driver could not load a kernel that ", cuda_.nvrtc.version(), " made for ",
                 architecture, " on ", gpu.name, ": ", refused.why,
                 refused.for_memory
                     ? std::string()
                     : join("; a driver must not be older than NVRTC; the text is ", left_for_reading(text_)),
                 refused.log.empty() ? "" : "\n", refused.log);
    }
  };
  const std::lock_guard lock(object->mutex);
  if (!object->bytes.empty()) return link_made(object->bytes);
  std::string key = join("flexsn ", version(), ", ", cuda_.nvrtc.version(), ", ", architecture);
  for (const char* option : cuda_compile_options) key += join(" ", option);
  key += "\n" + text_;
  // What comes from the disk is what was saved, but it may have been saved by a defect.
  if (std::optional<std::string> stored = store_.load("cubin", key)) {
    try {
      link(gpu, *stored, loaded);
      object->bytes = std::move(*stored);
      return;
    } catch (const Refused&) {
    } catch (const UserError&) {  // it lacks an entry
    }
  }
  std::string made = cuda_.nvrtc.compile(text_, architecture);
  link_made(made);
  store_.save("cubin", key, made);
  object->bytes = std::move(made);
}

const std::vector<CudaFunction>& CudaCode::on(const Gpu& gpu) const {
  Loaded* found = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Loaded>& place = loaded_[gpu.number];
    if (!place) place = std::make_unique<Loaded>(cuda_.driver);
    found = place.get();
  }
  if (found->made) return found->functions;
  const std::lock_guard lock(found->loading);
  if (!found->made) load(gpu, *found);  // where that throws, whoever comes next tries again
  return found->functions;
}

bool CudaCode::is_on(const Gpu& gpu) const {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(gpu.number);
  return found != loaded_.end() && found->second->made;
}

void CudaCode::launch(const Gpu& gpu, std::size_t index, std::int64_t blocks, int threads, void* stream,
                      void** parameters, std::string_view neuron) const {
  if (blocks == 0) return;
  const auto fail = [&](const auto&... parts) {
    user_error(neuron.empty() ? "" : join("neuron '", neuron, "': "), parts...);
  };
  if (blocks > most_blocks)
    fail("a CUDA kernel can have ", most_blocks, " blocks at most, but this run needs ", blocks,
         "; run fewer elements at once");
  const CudaFunction& function = on(gpu)[index];
  const CurrentGpu current(cuda_.driver, gpu);
  const int result = cuda_.driver.functions().cuLaunchKernel(function.handle, static_cast<unsigned>(blocks),
                                                             1, 1, static_cast<unsigned>(threads), 1, 1, 0,
                                                             stream, parameters, nullptr);
  if (result != 0)
    fail("the CUDA driver could not queue a kernel: ", cuda_.driver.error_text(result),
         result == error_invalid_context || result == error_invalid_handle
             ? "; the stream must be one of the device that the run is on"
             : "");
}

}  // namespace flexsn
