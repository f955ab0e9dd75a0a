// Log-probabilities of a row: of given tokens and of the best. `weft.engine.sampling.sampler` is the twin in numpy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace weft {

// `rank` is how many tokens have at least this log-probability.
struct Scores {
    std::vector<std::int32_t> tokens;
    std::vector<float> logprobs;
    std::vector<std::int32_t> ranks;
};

// The `given` tokens, then the `num_best` best, best first; of equals the smaller first, and none that
// cannot come. Nothing for a row that holds NaN or has no finite largest. Throws std::invalid_argument
// for a token that the row does not have.
std::optional<Scores> score(const Kernels& kernels, std::span<const float> logits,
                            std::span<const std::int32_t> given, int num_best);

}  // namespace weft
