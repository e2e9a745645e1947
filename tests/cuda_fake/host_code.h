// CUDA texts on the host: compiled with cuda_host.h where FLEXSN_FAKE_RUNS is set; else they only pass for
// code.
#pragma once

#include <string>

namespace flexsn::fake {

/// What loads as HostCode. Where `log` is not empty afterwards, the text does not compile.
std::string host_object(const std::string& text, std::string& log);

class HostCode {
 public:
  /// `object` is what host_object gave.
  explicit HostCode(const std::string& object);
  HostCode(const HostCode&) = delete;
  HostCode& operator=(const HostCode&) = delete;
  ~HostCode();

  bool loads() const;
  bool has(const std::string& function) const;
  void run(const std::string& function, unsigned blocks, unsigned threads, void** parameters) const;

 private:
  std::string object_;
  void* library_ = nullptr;
};

}  // namespace flexsn::fake
