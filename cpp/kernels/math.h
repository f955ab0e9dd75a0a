// exp and related functions, sixteen at a time. A NaN stays a NaN.
#pragma once

#include "kernels/kernels.h"

namespace weft {
namespace {

constexpr float kLog2E = 1.44269504F;

// e^x within 2 units in the last place where the result is a normal number; saturates outside.
inline Lanes exp(Lanes x) {
    x = min(splat(88.37F), max(splat(-87.33F), x));
    const Lanes n = round_even(mul(x, splat(kLog2E)));
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

// 2^x within 2 units in the last place, for x up to 127; smaller results than 2^-126 become 2^-126.
inline Lanes exp2(Lanes x) {
    x = max(splat(-126.0F), x);
    const Lanes n = round_even(x);
    const Lanes r = sub(x, n);
    // (2^r - 1) / r for |r| <= 0.5, fitted for the least relative error of 2^r: 2e-9.
    Lanes p = splat(1.535336181e-4F);
    p = fma(p, r, splat(1.339887445e-3F));
    p = fma(p, r, splat(9.618437358e-3F));
    p = fma(p, r, splat(5.550332471e-2F));
    p = fma(p, r, splat(2.402264791e-1F));
    p = fma(p, r, splat(6.931472029e-1F));
    return scale_by_power(fma(p, r, splat(1.0F)), n);
}

inline Lanes negate(Lanes x) { return mul(x, splat(-1.0F)); }

inline Lanes logistic(Lanes x) { return div(splat(1.0F), add(splat(1.0F), exp(negate(x)))); }

// tanh(x / cap) * cap, by the logistic function of twice the argument.
inline Lanes soft_cap(Lanes x, float cap) {
    const Lanes doubled = mul(x, splat(2.0F / cap));
    return mul(sub(mul(logistic(doubled), splat(2.0F)), splat(1.0F)), splat(cap));
}

// The error function, as x P(x^2) / Q(x^2): the fit of `weft.compute.arithmetic.activations`, within 4e-7.
inline Lanes erf(Lanes x) {
    x = min(splat(3.92F), max(splat(-3.92F), x));
    const Lanes square = mul(x, x);
    Lanes p = splat(2.03474161e-06F);
    p = fma(p, square, splat(0.000287477558F));
    p = fma(p, square, splat(0.00386826398F));
    p = fma(p, square, splat(0.0530602906F));
    p = fma(p, square, splat(0.192762631F));
    p = fma(p, square, splat(1.12837902F));
    Lanes q = splat(3.8070612e-05F);
    q = fma(q, square, splat(0.00118809886F));
    q = fma(q, square, splat(0.0151721718F));
    q = fma(q, square, splat(0.115084027F));
    q = fma(q, square, splat(0.504163102F));
    q = fma(q, square, splat(1.0F));
    return div(mul(x, p), q);
}

inline Lanes activate(const GemmTask& task, Lanes x) {
    const Activation activation = task.activation;
    if (activation == Activation::kSilu) return div(x, add(splat(1.0F), exp(negate(x))));
    if (activation == Activation::kRelu) return max(splat(0.0F), x);
    if (activation == Activation::kReluSquared) {
        const Lanes positive = max(splat(0.0F), x);
        return mul(positive, positive);
    }
    if (activation == Activation::kGelu)
        return mul(mul(x, splat(0.5F)), add(splat(1.0F), erf(mul(x, splat(0.70710678F)))));
    if (activation == Activation::kTanh)
        return sub(mul(logistic(mul(x, splat(2.0F))), splat(2.0F)), splat(1.0F));
    if (activation == Activation::kXielu) {
        const Lanes positive = max(splat(0.0F), x);
        const Lanes negative = min(splat(0.0F), x);
        const Lanes curve = mul(sub(sub(exp(negative), splat(1.0F)), negative), splat(task.xielu.negative));
        const Lanes square = mul(mul(positive, positive), splat(task.xielu.positive));
        return add(mul(x, splat(task.xielu.linear)), add(square, curve));
    }
    // 0.5 x (1 + tanh(u)) is x times the logistic function of 2u.
    const Lanes cubic = mul(mul(x, x), mul(x, splat(0.044715F)));
    const Lanes twice = mul(add(x, cubic), splat(2 * 0.7978845608F));
    return mul(x, logistic(twice));
}

}  // namespace
}  // namespace weft
