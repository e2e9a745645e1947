// NVRTC, NVIDIA's compiler for CUDA C++ in a library, opened when it is first needed; no header of it is
// used.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace flexsn {

/// May be used from several threads at once. What fails is tried again by the next call.
class Nvrtc {
 public:
  /// "": $FLEXSN_NVRTC, else one that the process has already, else those that the system finds.
  explicit Nvrtc(std::string library = "");
  ~Nvrtc();

  /// "NVRTC 13.0". Throws a UserError where there is none, or none that works, and says what to do.
  const std::string& version() const;
  /// "sm_90" where code for a device of this capability can be made; "compute_89", a text that the driver
  /// compiles, where NVRTC is older than the device. Throws a UserError where it is too new for it.
  std::string architecture(int capability) const;
  /// Object code for an architecture, or the text for the driver.
  std::string compile(const std::string& text, const std::string& architecture) const;

 private:
  struct Opened;
  const Opened& opened() const;

  std::string library_;
  mutable std::mutex opening_;
  mutable std::atomic<const Opened*> opened_ = nullptr;
};

/// Writes a text that could not be used to a file of its own and gives its path, for errors.
std::string left_for_reading(const std::string& text);

}  // namespace flexsn
