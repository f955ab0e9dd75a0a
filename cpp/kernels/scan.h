// Passes over one row of logits, for choosing from it and scoring it. What is done with the few tokens
// that are left is in cpp/sample.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math.h"

namespace weft {
namespace {

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

// The largest of each `kScanBlock` logits. False if one of them all is NaN.
bool find_maxima(const float* row, int count, float* maxima) {
    float trace = 0.0F;
    for (int first = 0; first < count; first += kScanBlock) {
        const int left = count - first;
        maxima[first / kScanBlock] = block_max(row + first, left < kScanBlock ? left : kScanBlock, trace);
    }
    return trace == trace;
}

// The sum of e^x over numbers that `fill(first, count, x)` gives, a block of them at a time: each pass
// over a block is one loop that the compiler makes vectors of, and no number is lost beside a large sum.
template <class Fill>
inline double sum_of_powers(int count, const Fill& fill) {
    double total = 0.0;
    for (int first = 0; first < count; first += kDrawBlock) {
        alignas(64) double x[kDrawBlock];
        const int size = count - first < kDrawBlock ? count - first : kDrawBlock;
        fill(first, size, x);
        for (int i = size; i < kDrawBlock; i++) x[i] = kFarBelow;
        for (int i = 0; i < kDrawBlock; i++) {
            const double power = exp_of(x[i]);
            x[i] = x[i] > kFarBelow ? power : 0.0;
        }
        for (int width = kDrawBlock / 2; width > 0; width /= 2)
            for (int i = 0; i < width; i++) x[i] += x[i + width];
        total += x[0];
    }
    return total;
}

// The sum of e^(logit - largest), the difference in float32.
double sum_exp(const float* row, int count, float largest) {
    return sum_of_powers(count, [=](int first, int size, double* x) {
        for (int i = 0; i < size; i++) x[i] = static_cast<double>(row[first + i] - largest);
    });
}

// The sum of e^(logit / temperature - best), of scores that are at least `floor`.
double sum_weights(const float* row, int count, double temperature, double best, double floor) {
    return sum_of_powers(count, [=](int first, int size, double* x) {
        for (int i = 0; i < size; i++) {
            const double score = static_cast<double>(row[first + i]) / temperature;
            x[i] = score >= floor ? score - best : kFarBelow;
        }
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
