// CUDA texts on the host: compiled with cuda_host.h where FLEXSN_FAKE_RUNS is set; else they only pass for
// code.
#pragma once

#include <mutex>
#include <string>

namespace flexsn::fake {

class HostCode {
 public:
  explicit HostCode(std::string text) : text_(std::move(text)) {}
  HostCode(const HostCode&) = delete;
  HostCode& operator=(const HostCode&) = delete;
  ~HostCode();

  bool has(const std::string& function) const;
  /// What is never run is never compiled; the compiler's log where it could not be.
  std::string run(const std::string& function, unsigned blocks, unsigned threads, void** parameters,
                  bool outer);

 private:
  const std::string text_;
  std::mutex mutex_;
  void* library_ = nullptr;
};

}  // namespace flexsn::fake
