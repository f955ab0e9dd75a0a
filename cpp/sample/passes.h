// Passes over one row of logits, for choosing and scoring: the part that is compiled for each instruction set. No
// standard containers here or in what those files include, as in kernels/kernels.h.
#pragma once

#include <cstdint>

namespace weft {

constexpr int kScanBlock = 64;  // size of the blocks whose maxima are kept, to find logits by

// The tokens of a draw: those whose logits are at least `floor`, and that precede `end_token` in the order by logit
// (of equal logits, smaller ids first).
struct DrawTask {
    const float* logits;
    const float* maxima;  // maximum of each kScanBlock logits
    int size;
    int best;  // the first token with the maximum logit; always part of the draw
    double temperature;
    std::uint64_t key;  // key of the noise
    float floor;
    float end;  // the logit of `end_token`
    int end_token;
};

// Sums of e^(logit / temperature) over tokens from `task.floor` on, divided by the best token's.
struct Weights {
    double all;
    double before;  // sum over the tokens before a given token in that order
};

// Parts of a row, by the maximum of each kScanBlock logits.
enum class Part {
    kFrom,    // the blocks with a logit that is at least the given token's: all tokens before it are here
    kMaxima,  // only the maxima of the other blocks
    kBelow,   // the other blocks
};

// Bound on the error of either sum, relative to `all`: more than float32 loses in exponents, powers and sums over a
// row.
constexpr double kWeightsError = 4e-5;

struct Passes {
    // Finds the maximum of each kScanBlock logits, and of all. Returns false if a logit is NaN.
    bool (*find_maxima)(const float* row, int count, float* maxima, float& largest);
    // Returns the winner of a draw.
    int (*draw)(const DrawTask&);
    // Weights of a part of the row, and of the tokens before `token` in it, within kWeightsError.
    Weights (*weigh)(const DrawTask& task, int token, Part part);
    // Writes the row without the tokens whose mask bits are not set.
    void (*apply_mask)(const float* row, const std::uint32_t* words, int count, float* out);
    // Returns the sum of e^(logit - largest), with the difference in float32.
    double (*sum_exp)(const float* row, int count, float largest);
    void (*log_softmax)(const float* row, int count, double largest, double log_sum, float* out);
    int (*count_from)(const float* row, int count, float floor);
};

// One function per file.
const Passes& portable_passes();
const Passes& avx2_passes();
const Passes& avx512_passes();
const Passes& neon_passes();

}  // namespace weft
