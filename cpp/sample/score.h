// Log-probabilities of a row, or its unchanged numbers: for given tokens and for the best ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sample/passes.h"

namespace weft {

// `ranks` are numbers of tokens with at least the value; for the best tokens, their place among them.
struct Scores {
    std::vector<std::int32_t> tokens;
    std::vector<float> values;
    std::vector<std::int32_t> ranks;
    // False if the row holds NaN, or its maximum is not finite: then there are no scores.
    bool is_finite = false;
};

// Scores the `given` tokens, which must be checked already, then the `num_best` best ones (-1: all), best first; of
// equal values, smaller ids come first, and impossible tokens are left out. `space` is scratch memory for a row.
Scores score(const Passes& passes, std::span<const float> logits, std::span<const std::int32_t> given, int num_best,
             bool is_normalised, std::vector<float>& space);

}  // namespace weft
