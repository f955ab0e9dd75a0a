// The limits of this machine, for comparison with benchmarks.
#pragma once

#include <string>

#include "model/spec.h"

namespace weft {

struct Limits {
    double bytes_per_s;  // bytes read from memory
    double operations_per_s;  // multiplications and additions of the path's micro-kernel
};

// The best of a few rounds, on `num_threads` threads. Takes some tens of milliseconds.
Limits measure_limits(const std::string& path, Element element, Quantization quantization, int num_threads);

}  // namespace weft
