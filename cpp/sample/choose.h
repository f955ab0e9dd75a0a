// Chooses the next token of one sequence from its row of logits: masks, bias, penalties, truncation and the draw.
// `weft.compute.protocols.sampler` describes the computation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sample/row.h"

namespace weft {

using Tokens = std::span<const std::int32_t>;

// The processing of the row, in this order. Tokens must be checked already.
struct Choice {
    std::span<const std::uint32_t> mask;  // empty: no mask
    std::int32_t forced = -1;  // the only token that may be chosen; negative: none
    Tokens allowed;  // only these tokens may be chosen; empty: all
    Tokens forbidden;  // tokens that may not be chosen
    Tokens forbidden_ends;  // end tokens that may not be chosen
    Tokens biased;  // tokens with an entry in `bias`
    std::span<const float> bias;
    Tokens seen;  // tokens of prompt and output
    Tokens output;
    float repetition_penalty = 1;
    float frequency_penalty = 0;
    float presence_penalty = 0;
    double temperature = 0;  // 0: choose the best token
    double min_p = 0;
    std::int32_t top_k = 0;
    double top_p = 1;
    std::uint64_t key = 0;  // key of the noise

    bool has_penalty() const {
        return repetition_penalty != 1.0F || frequency_penalty != 0.0F || presence_penalty != 0.0F;
    }
    bool changes_row() const {
        return !mask.empty() || !allowed.empty() || !forbidden.empty() || !forbidden_ends.empty() ||
               !biased.empty() || has_penalty();
    }
};

// Memory of one thread, reused from row to row.
struct Scratch {
    std::vector<float> row;
    std::vector<float> scores;
    std::vector<std::int32_t> counts;  // by token; all zeros between two rows
};

struct Chosen {
    std::int32_t token = 0;
    bool is_finite = false;  // False if the row holds NaN, or its maximum is not finite
};

Chosen choose(const Passes& passes, std::span<const float> logits, const Choice& choice, Scratch& scratch);

// The row without tokens that the mask forbids; in `scratch.row` if there is a mask.
std::span<const float> masked(const Passes& passes, std::span<const float> logits, const Choice& choice,
                              Scratch& scratch);

// The row as the draw sees it, in `scratch.row`: tokens that cannot be drawn are minus infinity. `logits` must have
// no NaN, and a finite maximum among the tokens that the mask leaves.
std::span<const float> processed(const Passes& passes, std::span<const float> logits, const Choice& choice,
                                 Scratch& scratch);

}  // namespace weft
