// CUDA as a target: what the core asks of it.
#include "cuda_kernel.h"
#include "cuda_shape.h"
#include "cuda_spread.h"
#include "error.h"

namespace flexsn {

namespace {

constexpr int attribute_memory_type = 2, attribute_managed = 8, attribute_device = 9;
constexpr int memory_of_host = 1;
constexpr int error_invalid_value = 1;

DeviceAddress address(const void* data) { return reinterpret_cast<DeviceAddress>(data); }

std::string version_text(int version) { return join(version / 1000, ".", version % 1000 / 10); }

std::shared_ptr<const CudaKernel> kernel_of(Plan plan, CudaEntry usual = CudaEntry::automatic) {
  const CudaShape shape = cuda_shape_to_run(plan);
  const CudaChoice choice{.options = shape.options,
                          .entry = shape.entry == CudaEntry::automatic ? usual : shape.entry};
  return std::make_shared<CudaKernel>(std::move(plan), Cuda::standard(), Store::standard(), choice);
}

}  // namespace

std::shared_ptr<const Executable> cuda_executable(Plan plan, bool as_many) {
  return kernel_of(std::move(plan), as_many ? CudaEntry::wide : CudaEntry::automatic);
}

std::string cuda_absent() {
  try {
    Cuda::standard().driver.functions();
    Cuda::standard().nvrtc.version();
  } catch (const UserError& error) {
    return join("there are no CUDA kernels: ", error.what());
  }
  return "";
}

std::string cuda_description() {
  const Cuda& cuda = Cuda::standard();
  const int count = cuda.driver.device_count();
  const Gpu& first = cuda.driver.gpu(0);
  return join(count, count == 1 ? " device: " : " devices, the first: ", first.name, " (sm_",
              first.capability, "); driver ", version_text(cuda.driver.version()), ", ",
              cuda.nvrtc.version());
}

int cuda_device_count() { return Cuda::standard().driver.device_count(); }

std::optional<int> cuda_device_of(const void* data, int asking) {
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(asking));
  const auto ask = [&](int attribute) -> std::optional<int> {
    int value = 0;
    const int result = driver.functions().cuPointerGetAttribute(&value, attribute, address(data));
    if (result == error_invalid_value) return {};
    driver.check(result, "tell where an array lies");
    return value;
  };
  // Memory that the driver has never heard of is the host's; managed memory is wherever it is needed.
  const std::optional<int> type = ask(attribute_memory_type);
  if (!type) return {};
  if (ask(attribute_managed).value_or(0) != 0) return asking;
  return *type == memory_of_host ? std::nullopt : ask(attribute_device);
}

void cuda_copy(void* to, const void* from, std::int64_t bytes, int device, void* stream) {
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(device));
  driver.check(driver.functions().cuMemcpyDtoDAsync_v2(address(to), address(from),
                                                       static_cast<std::size_t>(bytes), stream),
               "copy memory");
}

void cuda_write(void* to, const void* from, std::int64_t bytes, int device, void* stream) {
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(device));
  // A copy would be read when a captured graph is replayed; the value of a memset is part of the graph.
  for (std::int64_t i = 0; i < bytes; ++i)
    driver.check(driver.functions().cuMemsetD8Async(address(to) + static_cast<DeviceAddress>(i),
                                                    static_cast<const unsigned char*>(from)[i], 1, stream),
                 "write a value");
}

void* cuda_allocate(std::int64_t bytes, int device, void* stream) {
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(device));
  DeviceAddress made = 0;
  driver.check(
      driver.functions().cuMemAllocAsync(&made, static_cast<std::size_t>(bytes), stream),
      join("allocate ", bytes, " bytes for a parameter that is expanded to the step's shape").c_str());
  return reinterpret_cast<void*>(made);
}

void cuda_free(void* data, int device, void* stream) {
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(device));
  driver.check(driver.functions().cuMemFreeAsync(address(data), stream), "free memory");
}

void cuda_spread_out(const Shape& step, const Shape& param, std::size_t bytes, std::int64_t rows,
                     const void* from, void* to, int device, void* stream) {
  const Cuda& cuda = Cuda::standard();
  spread_on(cuda, cuda.driver.gpu(device), stream, step, param, bytes, rows, from, to);
}

std::string cuda_ptx(const std::string& text) {
  const Cuda& cuda = Cuda::standard();
  int capability = 90;
  try {
    capability = cuda.driver.gpu(0).capability;
  } catch (const UserError&) {  // NVRTC needs no device
  }
  std::string architecture = cuda.nvrtc.architecture(capability);
  if (architecture.starts_with("sm_")) architecture.replace(0, 3, "compute_");
  std::string made = cuda.nvrtc.compile(text, architecture);
  while (!made.empty() && made.back() == '\0') made.pop_back();
  return made;
}

CudaDevice cuda_device(int device) {
  const Gpu& gpu = Cuda::standard().driver.gpu(device);
  return {gpu.multiprocessors, gpu.instructions_a_byte};
}

std::vector<CudaSums> cuda_sums(const Plan& backward, const ParamGradients& gradients, std::int64_t steps,
                                bool wide) {
  return kernel_of(backward)->sums(gradients, steps, wide);
}

std::vector<CudaFigures> cuda_figures(const Plan& plan, int device) {
  PlanRun run;
  run.device = device;
  run.buffers.assign(plan.buffers.size(), to_come());
  return kernel_of(plan)->figures(run);
}

}  // namespace flexsn
