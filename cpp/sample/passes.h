// Passes over one row of logits, for choosing from it and scoring it: what is compiled for each instruction set. No
// standard containers here or in what those files include, as in kernels/kernels.h.
#pragma once

#include <cstdint>

namespace weft {

constexpr int kScanBlock = 64;  // logits of which the largest is kept, to find others by

// Who takes part in a draw: tokens whose logits are at least `floor`, and that come before `end_token` where all are
// ordered by logit, of equals the smaller first.
struct DrawTask {
    const float* logits;
    const float* maxima;  // of each kScanBlock logits
    int size;
    int best;  // the first of the largest logits; it takes part
    double temperature;
    std::uint64_t key;  // of the noise
    float floor;
    float end;  // the logit of `end_token`
    int end_token;
};

// Sums of e^(logit / temperature) over those that take part, divided by that of the best.
struct Weights {
    double all;
    double before;  // those before a token in that order
};

// Of either sum, beside `all`: more than float32 loses in exponents, powers and sums of as many as a row has.
constexpr double kWeightsError = 4e-5;

struct Passes {
    // The largest of each kScanBlock logits, and of all. False if one of them all is NaN.
    bool (*find_maxima)(const float* row, int count, float* maxima, float& largest);
    // The winner of a draw.
    int (*draw)(const DrawTask&);
    // Of all that are at least `task.floor`, and of those before `token`, within kWeightsError. Quickly, `all` may be
    // less: of blocks whose logits are all below the token's it has the largest alone.
    Weights (*weigh)(const DrawTask& task, int token, bool is_quick);
    // The row without the tokens whose bits of the mask are not set.
    void (*apply_mask)(const float* row, const std::uint32_t* words, int count, float* out);
    // The sum of e^(logit - largest), the difference in float32.
    double (*sum_exp)(const float* row, int count, float largest);
    void (*log_softmax)(const float* row, int count, double largest, double log_sum, float* out);
    int (*count_from)(const float* row, int count, float floor);
};

// One a file.
const Passes& portable_passes();
const Passes& avx2_passes();
const Passes& avx512_passes();
const Passes& neon_passes();

}  // namespace weft
