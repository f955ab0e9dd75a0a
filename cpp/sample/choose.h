// Chooses the next token of one sequence from its row of logits: masks, bias, penalties, truncation and
// the draw. `weft.engine.sampling.sampler` is its twin in numpy and says what is computed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/kernels.h"

namespace weft {

using Tokens = std::span<const std::int32_t>;

// What is done to the row, in this order. Every token is checked before anything is done.
struct Choice {
    std::optional<Tokens> allowed;       // others may not come
    Tokens forbidden;                    // may not come, and then neither
    Tokens forbidden_ends;               // may these
    Tokens biased;                       // gets what `bias` says
    std::span<const float> bias;
    Tokens seen;                         // prompt and output
    Tokens output;
    float repetition_penalty = 1;
    float frequency_penalty = 0;
    float presence_penalty = 0;
    double temperature = 0;  // 0: the best
    double min_p = 0;
    std::int64_t top_k = 0;
    double top_p = 1;
    std::uint64_t key = 0;  // of the noise

    // The plain numbers, each by its name in Python: whoever fills them in from there repeats none.
    template <class Read>
    void read_numbers(const Read& read) {
        read("repetition_penalty", repetition_penalty);
        read("frequency_penalty", frequency_penalty);
        read("presence_penalty", presence_penalty);
        read("temperature", temperature);
        read("min_p", min_p);
        read("top_k", top_k);
        read("top_p", top_p);
        read("key", key);
    }
};

// The token; nothing for a row that holds NaN or has no finite largest. Throws std::invalid_argument for
// a token that the row does not have.
std::optional<int> choose(const Kernels& kernels, std::span<const float> logits, const Choice& choice);

}  // namespace weft
