// Chooses a token from a row of logits that nothing masks or truncates: the best, or a draw by
// temperature. `weft.engine.sampling.sampler` is its twin in numpy and says what is computed.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math.h"

namespace weft {
namespace {

constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15U;  // as in `weft.engine.sampling.noise`
constexpr int kDrawBlock = 1024;

inline std::uint64_t noise_bits(std::uint64_t key, std::uint64_t token) {
    std::uint64_t value = key + (token + 1) * kGamma;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31);
}

// The score by which tokens compete: the logit over the temperature, plus Gumbel noise.
inline double noisy_score(const DrawTask& task, int token) {
    const std::uint64_t bits = noise_bits(task.key, static_cast<std::uint64_t>(token));
    const double uniform = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
    const double score = static_cast<double>(task.logits[token]) / task.temperature;
    return score + -std::log(-std::log(uniform));
}

// The largest of up to a block of logits; `trace` becomes NaN if one of them is.
inline float block_max(const float* logits, int count, float& trace) {
    Lanes highest = splat(-INFINITY);
    Lanes clamped = splat(0.0F);
    for (int i = 0; i < count; i += kLanes) {
        float rest[kLanes];
        const float* p = logits + i;
        if (count - i < kLanes) {
            for (int j = 0; j < kLanes; j++) rest[j] = i + j < count ? logits[i + j] : -INFINITY;
            p = rest;
        }
        const Lanes value = load(p);
        highest = max(highest, value);
        clamped = add(clamped, min(splat(1.0F), max(splat(-1.0F), value)));
    }
    trace += sum_of(clamped);
    return max_of(highest);
}

// The first of the largest logits. False if a logit is NaN or the largest is infinite.
inline bool find_best(const DrawTask& task, int& best) {
    float highest = -INFINITY;
    float trace = 0.0F;
    int block = 0;
    for (int start = 0; start < task.vocab_size; start += kDrawBlock) {
        const int left = task.vocab_size - start;
        const float top = block_max(task.logits + start, left < kDrawBlock ? left : kDrawBlock, trace);
        if (top > highest) {
            highest = top;
            block = start;
        }
    }
    if (trace != trace || !(highest < INFINITY) || !(highest > -INFINITY)) return false;
    best = block;
    while (task.logits[best] != highest) best++;
    return true;
}

// Whether one of 16 tokens may beat `lead`, by which the leader is ahead of the best logit alone.
// Noise is at most -log(1 - u), so a token wins only if 1 - u < exp(score - leader); both sides are
// taken in float32, with room for their rounding.
inline bool may_win(const DrawTask& task, int first, float best_logit, float lead) {
    float logits[kLanes];
    float falls_short[kLanes];  // 1 - u, from below
    for (int j = 0; j < kLanes; j++) {
        const int token = first + j;
        logits[j] = token < task.vocab_size ? task.logits[token] : -INFINITY;
        const std::uint64_t bits = noise_bits(task.key, static_cast<std::uint64_t>(token));
        falls_short[j] = static_cast<float>(static_cast<std::int32_t>(~bits >> 40)) * 0x1p-24F;
    }
    const Lanes inverse = splat(static_cast<float>(1.0 / task.temperature));
    const Lanes behind = mul(sub(load(logits), splat(best_logit)), inverse);
    const Lanes chance = mul(exp(sub(behind, splat(lead))), splat(1.001F));
    return max_of(sub(chance, load(falls_short))) > 0.0F;
}

// The winner among `count` tokens, which ascend; of equals the first.
int draw_among(const DrawTask& task, const int* tokens, int count) {
    int winner = tokens[0];
    double leader = noisy_score(task, winner);
    for (int i = 1; i < count; i++) {
        const double score = noisy_score(task, tokens[i]);
        if (!(score > leader)) continue;
        leader = score;
        winner = tokens[i];
    }
    return winner;
}

bool draw(const DrawTask& task, int& token) {
    if (!find_best(task, token)) return false;
    if (task.temperature == 0.0) return true;
    const float best_logit = task.logits[token];
    const double best_score = static_cast<double>(best_logit) / task.temperature;
    double leader = noisy_score(task, token);
    for (int first = 0; first < task.vocab_size; first += kLanes) {
        if (!may_win(task, first, best_logit, static_cast<float>(leader - best_score))) continue;
        for (int other = first; other < first + kLanes && other < task.vocab_size; other++) {
            const double score = noisy_score(task, other);
            if (score > leader || (score == leader && other < token)) {
                leader = score;
                token = other;
            }
        }
    }
    return true;
}

}  // namespace
}  // namespace weft
