// A single product of int8 rows, for tests: every path must give the same result as numpy.
#pragma once

#include <span>
#include <string>

#include "model/pack.h"

namespace weft {

// Multiplies rows [rows][weights.columns] by `weights`, into `out` [rows][weights.rows], with the int8 kernels of
// `path`. Throws std::invalid_argument for sizes that do not fit each other.
void multiply_int8(const std::string& path, std::span<const float> rows, const Source& weights,
                   std::span<float> out);

// Multiplies rows by group-quantized weights of this format, like `multiply_int8`.
void multiply_grouped(const std::string& path, const GroupFormat& format, std::span<const float> rows,
                      const Source& weights, std::span<float> out);

}  // namespace weft
