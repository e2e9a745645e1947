// The Python process that runs cases by Triton's interpreter and by the operators of torch.
#pragma once

#include <cstdio>
#include <filesystem>
#include <set>

#include "differential_stages.h"

namespace flexsn::fuzz {

class PythonWorker {
 public:
  PythonWorker(const std::string& python, const std::string& script);
  PythonWorker(const PythonWorker&) = delete;
  PythonWorker& operator=(const PythonWorker&) = delete;
  ~PythonWorker();

  /// Why a stage cannot be run; "" where it can.
  std::string absent(const std::string& stage) const;

  /// What differs, in words, "" where nothing does; nothing where the stage does not take such a case.
  std::optional<std::string> difference(const std::string& stage, const Case& one, const Outcome& expected);

 private:
  std::string answer();

  int child_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::set<std::string> stages_;
  std::string problem_;
  std::filesystem::path folder_;
};

}  // namespace flexsn::fuzz
