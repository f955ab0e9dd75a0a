// exp and related functions, from sums and products that are rounded one by one: without contraction the bits are the
// same under any instruction set, and the same as in `weft.compute.arithmetic.exact`. A NaN stays a NaN.
#pragma once

#include <cstdint>

namespace weft {
namespace {
namespace exact {

// e^x within 2 units in the last place; saturates where the result is not a normal number.
inline float exp(float x) {
    x = x < -87.33F ? -87.33F : x;
    x = x > 88.37F ? 88.37F : x;
    constexpr float kWhole = 12582912.0F;  // adding it leaves a whole number in the lowest bits
    const float shifted = x * 1.44269504F + kWhole;
    const float whole = shifted - kWhole;
    // ln 2 in two parts, so that a whole number of the first is exact.
    const float rest = (x - whole * 0.693359375F) - whole * -2.12194440e-4F;
    float value = 1.9875691500e-4F;
    value = value * rest + 1.3981999507e-3F;
    value = value * rest + 8.3334519073e-3F;
    value = value * rest + 4.1665795894e-2F;
    value = value * rest + 1.6666665459e-1F;
    value = value * rest + 5.0000001201e-1F;
    value = (value * (rest * rest) + rest) + 1.0F;
    const std::uint32_t power = (__builtin_bit_cast(std::uint32_t, shifted) + 127U) << 23U;
    return value * __builtin_bit_cast(float, power);
}

inline float sigmoid(float x) { return 1.0F / (1.0F + exp(-x)); }

inline float silu(float x) { return x / (1.0F + exp(-x)); }

// log(1 + e^x), the logarithm as a series in doubles.
inline float softplus(float x) {
    // Number of terms, for an argument of at most 1/9: later terms are below the precision of a double.
    constexpr int kTerms = 12;
    const double raised = static_cast<double>(exp(x < 0 ? x : -x));
    const double part = raised / (2.0 + raised);
    const double square = part * part;
    double series = 1.0 / (2 * kTerms + 1);
    for (int term = kTerms - 1; term >= 0; term--) series = series * square + 1.0 / (2 * term + 1);
    const double whole = x > 0 ? static_cast<double>(x) : 0.0;
    return static_cast<float>(whole + 2.0 * part * series);
}

}  // namespace exact
}  // namespace
}  // namespace weft
