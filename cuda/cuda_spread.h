// Parameters whose shape no index finds, written out to the step's shape on the device.
#pragma once

#include "broadcast.h"
#include "cuda_code.h"

namespace flexsn {

std::string spread_text();
std::vector<std::string> spread_entries();

/// spread_out() of broadcast.h, queued on a stream.
void spread_on(const Cuda& cuda, const Gpu& gpu, void* stream, const Shape& step, const Shape& param,
               std::size_t bytes, std::int64_t rows, const void* from, void* to);

}  // namespace flexsn
