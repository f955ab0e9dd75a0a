// A layer's recurrence alone, for tests: every path must give the same bits as numpy.
#pragma once

#include <span>
#include <string>

#include "model/recurrence.h"
#include "model/weights.h"

namespace weft {

// Computes the part of the layer between its products: from rows [rows][made, unrounded] of a sequence that begins,
// or that continues from `state` [state_size], which is updated in place; into `out` [rows][inner_size]. Throws
// std::invalid_argument for sizes that do not fit.
void recurrent_rows(const std::string& path, int num_threads, const RecurrentSpec& recurrence, float norm_eps,
                    const LayerWeights& weights, std::span<const float> rows, bool is_begun, std::span<float> state,
                    std::span<float> out);

}  // namespace weft
