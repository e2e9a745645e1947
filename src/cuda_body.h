// One body of a plan as CUDA C++: an inline function that runs a step of one element.
#pragma once

#include "plan.h"

namespace flexsn {

/// What is asked of a body: which of its arguments a run has, which of its results it wants.
struct CudaBodyTask {
  const Body* body = nullptr;
  std::string name;               ///< of the function
  std::string comment;            ///< what the function is, in words
  std::vector<bool> given = {};   ///< for each argument; one that is not given is -0
  std::vector<bool> wanted = {};  ///< for each result
};

/// The text, and how it is called: step(once, step index, arguments ..., results ...), by value and by
/// reference, where `once` is what once(element, arguments ...) gave.
struct CudaBody {
  std::string text;
  std::string step;
  std::string once, once_type;       ///< "" where nothing but constants stays the same in time
  std::vector<int> once_reads = {};  ///< arguments of the body
  bool once_reads_element = false;
  std::vector<int> reads = {};
  bool reads_step = false;
  std::vector<int> gives = {};  ///< results of the body
  int ops = 0;                  ///< statements of a step
  int work = 0;                 ///< of them
};

CudaBody cuda_body(const CudaBodyTask& task);

}  // namespace flexsn
