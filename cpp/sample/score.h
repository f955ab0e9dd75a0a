// Log-probabilities of a row, or its numbers as they are: of given tokens and of the best.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sample/passes.h"

namespace weft {

// `rank` is how many tokens have at least this value; of the best, which of them it is.
struct Scores {
    std::vector<std::int32_t> tokens;
    std::vector<float> values;
    std::vector<std::int32_t> ranks;
    bool is_finite = false;  // otherwise the row holds NaN, or has no finite largest, and there are none
};

// The `given` tokens, which have been checked, then the `num_best` best (-1: all), best first; of equals the smaller
// first, and none that cannot come. `space` is for a row's values.
Scores score(const Passes& passes, std::span<const float> logits, std::span<const std::int32_t> given, int num_best,
             bool is_normalised, std::vector<float>& space);

}  // namespace weft
