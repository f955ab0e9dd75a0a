// A layer's recurrence by itself, for tests: what every path gives must be what numpy gives, bit for bit.
#pragma once

#include <span>
#include <string>

#include "model/recurrence.h"
#include "model/weights.h"

namespace weft {

// What lies between the products of such a layer: of rows [rows][made, unrounded] of a sequence that begins, or that
// goes on from `state` [state_size], which goes on in place; into `out` [rows][inner_size]. Throws
// std::invalid_argument for sizes that do not fit.
void recurrent_rows(const std::string& path, int num_threads, const RecurrentSpec& recurrence, float norm_eps,
                    const LayerWeights& weights, std::span<const float> rows, bool is_begun, std::span<float> state,
                    std::span<float> out);

}  // namespace weft
