// Passes over one row of logits, for choosing from it and scoring it; passes.h says what each gives. What is done with
// the few tokens that are left is in choose.cpp and score.cpp.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math.h"
#include "sample/passes.h"

namespace weft {
namespace {

constexpr int kSumBlock = 1024;
constexpr double kFarBelow = -708.0;  // e to this is almost too small to be normal

// e^x for x <= 0, within 1 unit in the last place; what is too small to be normal is next to 0. Plain
// arithmetic, so that the compiler makes vectors of it.
inline double exp_of(double x) {
    constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves no fraction
    x = x > kFarBelow ? x : kFarBelow;
    const double shifted = x * 1.4426950408889634 + kMagic;
    const double n = shifted - kMagic;
    const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const std::uint64_t power = __builtin_bit_cast(std::uint64_t, shifted) -
                                __builtin_bit_cast(std::uint64_t, kMagic) + 1023;
    return p * __builtin_bit_cast(double, power << 52);
}

// The largest of up to a block of logits; a lane of `trace` becomes NaN if one of them is.
inline float block_max(const float* logits, int count, Lanes& trace) {
    float rest[kScanBlock];
    if (count < kScanBlock) {
        for (int i = 0; i < kScanBlock; i++) rest[i] = i < count ? logits[i] : -INFINITY;
        logits = rest;
    }
    Lanes highest = splat(-INFINITY);
    for (int i = 0; i < kScanBlock; i += kLanes) {
        const Lanes value = load(logits + i);
        highest = max(highest, value);
        trace = add(trace, min(splat(1.0F), max(splat(-1.0F), value)));
    }
    return max_of(highest);
}

bool find_maxima(const float* row, int count, float* maxima) {
    Lanes trace = splat(0.0F);
    for (int first = 0; first < count; first += kScanBlock) {
        const int left = count - first;
        maxima[first / kScanBlock] = block_max(row + first, left < kScanBlock ? left : kScanBlock, trace);
    }
    const float sum = sum_of(trace);
    return sum == sum;
}

// Adds up the weights of a block by lane, of those that take part: all, and those whose logits are above `bound`.
inline void weigh_block(const DrawTask& task, const float* logits, float bound, float* all, float* before) {
    const Lanes inverse = splat(static_cast<float>(1.4426950408889634 / task.temperature));
    const Lanes largest = splat(task.logits[task.best]);
    float weights[kScanBlock];
    for (int i = 0; i < kScanBlock; i += kLanes)
        store(weights + i, exp2(mul(sub(load(logits + i), largest), inverse)));
    for (int i = 0; i < kScanBlock; i += kLanes) {
        for (int j = 0; j < kLanes; j++) {
            const float weight = logits[i + j] >= task.floor ? weights[i + j] : 0.0F;
            all[j] += weight;
            before[j] += logits[i + j] > bound ? weight : 0.0F;
        }
    }
}

// A block that lies around `token`, or at the row's end: others than those before it are above `bound` only.
inline void weigh_mixed(const DrawTask& task, int first, int token, float* all, float* before) {
    const float bound = task.logits[token];
    float logits[kScanBlock];
    float equals[kScanBlock];  // minus infinity but for those that are equal, and before
    for (int i = 0; i < kScanBlock; i++) {
        logits[i] = first + i < task.size ? task.logits[first + i] : -INFINITY;
        equals[i] = first + i < token && logits[i] == bound ? bound : -INFINITY;
    }
    float ignored[kLanes] = {};
    weigh_block(task, logits, bound, all, before);
    weigh_block(task, equals, -INFINITY, ignored, before);
}

// The weights of the largest of up to 16 blocks, by lane.
inline void weigh_maxima(const DrawTask& task, int first_block, int count, float* weights) {
    float maxima[kLanes];
    for (int i = 0; i < kLanes; i++) maxima[i] = i < count ? task.maxima[first_block + i] : -INFINITY;
    const Lanes inverse = splat(static_cast<float>(1.4426950408889634 / task.temperature));
    store(weights, exp2(mul(sub(load(maxima), splat(task.logits[task.best])), inverse)));
}

Weights weigh(const DrawTask& task, int token, bool is_quick) {
    constexpr int kBlocksAtOnce = kLanes;  // whose weights are added in float32
    const float bound = task.logits[token];
    const float below = __builtin_nextafterf(bound, -INFINITY);
    const int num_blocks = (task.size + kScanBlock - 1) / kScanBlock;
    Weights sums{0.0, 0.0};
    for (int first_block = 0; first_block < num_blocks; first_block += kBlocksAtOnce) {
        alignas(64) float all[kLanes] = {};
        alignas(64) float before[kLanes] = {};
        const int count = num_blocks - first_block < kBlocksAtOnce ? num_blocks - first_block : kBlocksAtOnce;
        float largest[kLanes];
        if (is_quick) weigh_maxima(task, first_block, count, largest);
        for (int i = 0; i < count; i++) {
            const int block = first_block + i;
            const float top = task.maxima[block];
            if (top < task.floor) continue;
            if (is_quick && top < bound) {
                all[i] += largest[i];
                continue;
            }
            const int first = block * kScanBlock;
            const int end = first + kScanBlock;
            if (end > task.size || (first <= token && token < end))
                weigh_mixed(task, first, token, all, before);
            else
                weigh_block(task, task.logits + first, end <= token ? below : bound, all, before);
        }
        sums.all += static_cast<double>(sum_of(load(all)));
        sums.before += static_cast<double>(sum_of(load(before)));
    }
    return sums;
}

void apply_mask(const float* row, const std::uint32_t* words, int count, float* out) {
    constexpr int kBits = 32;
    int first = 0;
    for (; first + kBits <= count; first += kBits) {
        const std::uint32_t word = words[first / kBits];
        for (int i = 0; i < kBits; i++) out[first + i] = ((word >> i) & 1U) != 0 ? row[first + i] : -INFINITY;
    }
    for (int i = first; i < count; i++) out[i] = ((words[i / kBits] >> (i % kBits)) & 1U) != 0 ? row[i] : -INFINITY;
}

// The sum of e^x over numbers that `fill(first, count, x)` gives, a block of them at a time: each pass
// over a block is one loop that the compiler makes vectors of, and no number is lost beside a large sum.
template <class Fill>
inline double sum_of_powers(int count, const Fill& fill) {
    double total = 0.0;
    for (int first = 0; first < count; first += kSumBlock) {
        alignas(64) double x[kSumBlock];
        const int size = count - first < kSumBlock ? count - first : kSumBlock;
        fill(first, size, x);
        for (int i = size; i < kSumBlock; i++) x[i] = kFarBelow;
        for (int i = 0; i < kSumBlock; i++) {
            const double power = exp_of(x[i]);
            x[i] = x[i] > kFarBelow ? power : 0.0;
        }
        for (int width = kSumBlock / 2; width > 0; width /= 2)
            for (int i = 0; i < width; i++) x[i] += x[i + width];
        total += x[0];
    }
    return total;
}

double sum_exp(const float* row, int count, float largest) {
    return sum_of_powers(count, [=](int first, int size, double* x) {
        for (int i = 0; i < size; i++) x[i] = static_cast<double>(row[first + i] - largest);
    });
}

void log_softmax(const float* row, int count, double largest, double log_sum, float* out) {
    for (int i = 0; i < count; i++)
        out[i] = static_cast<float>(static_cast<double>(row[i]) - largest - log_sum);
}

int count_from(const float* row, int count, float floor) {
    int found = 0;
    for (int i = 0; i < count; i++) found += row[i] >= floor ? 1 : 0;
    return found;
}

}  // namespace
}  // namespace weft
