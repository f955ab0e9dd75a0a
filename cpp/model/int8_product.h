// One product of int8 rows by itself, for tests: what every path gives must be what numpy gives.
#pragma once

#include <span>
#include <string>

#include "model/pack.h"

namespace weft {

// Rows [rows][weights.columns] times `weights`, into `out` [rows][weights.rows], on the int8 kernels of
// `path`. Throws std::invalid_argument for sizes that do not fit each other.
void multiply_int8(const std::string& path, std::span<const float> rows, const Source& weights,
                   std::span<float> out);

// The same with weights in groups of that format.
void multiply_grouped(const std::string& path, const GroupFormat& format, std::span<const float> rows,
                      const Source& weights, std::span<float> out);

}  // namespace weft
