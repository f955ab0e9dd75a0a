// exp and what is made of it, sixteen at a time. A NaN comes out as a NaN.
#pragma once

#include "kernels/kernels.h"

namespace weft {
namespace {

// Within 2 units in the last place where the result is a normal number; saturates outside.
inline Lanes exp(Lanes x) {
    x = min(splat(88.37F), max(splat(-87.33F), x));
    const Lanes n = round_even(mul(x, splat(1.44269504F)));
    // ln 2 in two parts, so that n * ln 2 is exact in the first.
    const Lanes r = fma(n, splat(2.12194440e-4F), fma(n, splat(-0.693359375F), x));
    Lanes p = splat(1.9875691500e-4F);
    p = fma(p, r, splat(1.3981999507e-3F));
    p = fma(p, r, splat(8.3334519073e-3F));
    p = fma(p, r, splat(4.1665795894e-2F));
    p = fma(p, r, splat(1.6666665459e-1F));
    p = fma(p, r, splat(5.0000001201e-1F));
    p = add(fma(p, mul(r, r), r), splat(1.0F));
    return scale_by_power(p, n);
}

inline Lanes negate(Lanes x) { return mul(x, splat(-1.0F)); }

inline Lanes logistic(Lanes x) { return div(splat(1.0F), add(splat(1.0F), exp(negate(x)))); }

// tanh(x / cap) * cap, by the logistic function of twice the argument.
inline Lanes soft_cap(Lanes x, float cap) {
    const Lanes doubled = mul(x, splat(2.0F / cap));
    return mul(sub(mul(logistic(doubled), splat(2.0F)), splat(1.0F)), splat(cap));
}

inline Lanes activate(Activation activation, Lanes x) {
    if (activation == Activation::kSilu) return div(x, add(splat(1.0F), exp(negate(x))));
    if (activation == Activation::kRelu) return max(splat(0.0F), x);
    // 0.5 x (1 + tanh(u)) is x times the logistic function of 2u.
    const Lanes cubic = mul(mul(x, x), mul(x, splat(0.044715F)));
    const Lanes twice = mul(add(x, cubic), splat(2 * 0.7978845608F));
    return mul(x, logistic(twice));
}

}  // namespace
}  // namespace weft
