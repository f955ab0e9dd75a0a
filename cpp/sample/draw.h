// Draws a token from a row: the largest of logit over temperature plus Gumbel noise, which is a hash of key and token.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math.h"
#include "sample/passes.h"

namespace weft {
namespace {

constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15U;  // as in `weft.engine.step.step_choices`
constexpr double kSteps = 0x1p53;  // number of values that the uniform number can take

constexpr int kFinalShift = 31;

// The hash without its last step, which does not change the first `kFinalShift` bits.
inline std::uint64_t mix(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
    return (value ^ (value >> 27)) * 0x94D049BB133111EBU;
}

inline std::uint64_t noise_bits(std::uint64_t key, int token) {
    const std::uint64_t value = mix(key + (static_cast<std::uint64_t>(token) + 1) * kGamma);
    return value ^ (value >> kFinalShift);
}

// The score of a token in the draw.
inline double noisy_score(const DrawTask& task, int token) {
    const std::uint64_t bits = noise_bits(task.key, token);
    const double uniform = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
    const double score = static_cast<double>(task.logits[token]) / task.temperature;
    return score + -std::log(-std::log(uniform));
}

inline bool takes_part(const DrawTask& task, int token) {
    const float logit = task.logits[token];
    return logit >= task.floor && (logit > task.end || (logit == task.end && token < task.end_token));
}

// The leading bits of the least sufficient noise that the hash's last step does not change.
inline std::uint64_t first_bits(std::uint64_t least) { return least & ~(~std::uint64_t{0} >> kFinalShift); }

// True if a token of the block may have noise of at least `enough`.
inline bool has_noise(std::uint64_t key, int first, std::uint64_t enough) {
    std::uint64_t value = key + (static_cast<std::uint64_t>(first) + 1) * kGamma;
    std::uint64_t found = 0;
    for (int i = 0; i < kScanBlock; i++) {
        found |= mix(value) >= enough ? 1U : 0U;
        value += kGamma;
    }
    return found != 0;
}

// For each of 16 blocks, an upper bound on the chance that a token beats the leader, which is `lead` ahead of the
// best logit. Noise is at most -log(1 - u), so a token wins only if 1 - u is at most e^(score - leader).
inline void find_chances(const DrawTask& task, int first_block, int num_blocks, double lead, float* chances) {
    float maxima[kLanes];
    for (int i = 0; i < kLanes; i++) maxima[i] = i < num_blocks ? task.maxima[first_block + i] : -INFINITY;
    const Lanes inverse = splat(static_cast<float>(1.0 / task.temperature));
    const Lanes behind = mul(sub(load(maxima), splat(task.logits[task.best])), inverse);
    store(chances, mul(exp(sub(behind, splat(static_cast<float>(lead)))), splat(1.001F)));
}

// Updates the leader with a block in which a token may win.
inline void compete(const DrawTask& task, int first, std::uint64_t enough, int& winner, double& leader) {
    const std::uint64_t key = task.key + (static_cast<std::uint64_t>(first) + 1) * kGamma;
    std::uint64_t bits[kScanBlock];
    for (int i = 0; i < kScanBlock; i++) bits[i] = mix(key + static_cast<std::uint64_t>(i) * kGamma);
    const int count = task.size - first < kScanBlock ? task.size - first : kScanBlock;
    for (int i = 0; i < count; i++) {
        const int token = first + i;
        if (bits[i] < enough || !takes_part(task, token)) continue;
        const double score = noisy_score(task, token);
        if (score > leader || (score == leader && token < winner)) {
            leader = score;
            winner = token;
        }
    }
}

int draw(const DrawTask& task) {
    int winner = task.best;
    double leader = noisy_score(task, winner);
    const double best_score = static_cast<double>(task.logits[task.best]) / task.temperature;
    const double rounding = 1e-15 * std::fabs(best_score);
    const int num_blocks = (task.size + kScanBlock - 1) / kScanBlock;
    for (int first_block = 0; first_block < num_blocks; first_block += kLanes) {
        const int count = num_blocks - first_block < kLanes ? num_blocks - first_block : kLanes;
        float chances[kLanes];
        find_chances(task, first_block, count, leader - best_score - rounding, chances);
        for (int i = 0; i < count; i++) {
            const float top = task.maxima[first_block + i];
            const double chance = static_cast<double>(chances[i]);
            // Below the last bound no noise is sufficient.
            if (top < task.floor || top < task.end || chance < 0x1p-56) continue;
            const double needed = kSteps * (1.0 - chance) - 2.0;
            const std::uint64_t enough = first_bits(needed > 0.0 ? static_cast<std::uint64_t>(needed) << 11U : 0);
            const int first = (first_block + i) * kScanBlock;
            if (has_noise(task.key, first, enough)) compete(task, first, enough, winner, leader);
        }
    }
    return winner;
}

}  // namespace
}  // namespace weft
