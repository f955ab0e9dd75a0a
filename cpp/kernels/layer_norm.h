// The norm of encoders, around which their layers add up.
#pragma once

#include <cmath>

#include "kernels/elements.h"

namespace weft {
namespace {

// Elements from `size` on are no part of the row; they are left out, and must be zeros.
struct Moments {
    Lanes mean;
    Lanes inverse;  // 1 / sqrt(variance + eps)
};

inline Lanes centred(const float* x, int i, int size, Lanes mean) {
    const Lanes value = sub(load(x + i), mean);
    return size - i >= kLanes ? value : keep(value, 0, size - i, 0.0F);
}

inline Moments moments(const float* x, int size, int padded, float eps) {
    Lanes sum = splat(0.0F);
    for (int i = 0; i < padded; i += kLanes) sum = add(sum, load(x + i));
    const Lanes mean = splat(sum_of(sum) / static_cast<float>(size));
    Lanes squares = splat(0.0F);
    for (int i = 0; i < padded; i += kLanes) {
        const Lanes value = centred(x, i, size, mean);
        squares = fma(value, value, squares);
    }
    return {mean, splat(1.0F / std::sqrt(sum_of(squares) / static_cast<float>(size) + eps))};
}

// 16 elements of the normed row; weight and bias hold zeros where the row is padded.
inline Lanes normed(const Moments& moments, const float* x, int i, int size, const float* weight,
                    const float* bias) {
    const Lanes value = mul(mul(centred(x, i, size, moments.mean), moments.inverse), load(weight + i));
    return bias == nullptr ? value : add(value, load(bias + i));
}

template <class E>
void layer_norm(const LayerNormTask& task) {
    float* x = task.x;
    if (task.y != nullptr)
        for (int i = 0; i < task.padded; i += kLanes) store(x + i, add(load(x + i), load(task.y + i)));
    if (task.after != nullptr) {
        const Moments kept = moments(x, task.size, task.padded, task.eps);
        for (int i = 0; i < task.padded; i += kLanes)
            store(x + i, normed(kept, x, i, task.size, task.after, task.after_bias));
    }
    if (task.out == nullptr) return;
    auto* out = static_cast<typename E::Activation*>(task.out);
    if (task.before == nullptr) {
        for (int i = 0; i < task.padded; i += kLanes) E::store_activation(out + i, load(x + i));
        return;
    }
    const Moments given = moments(x, task.size, task.padded, task.eps);
    for (int i = 0; i < task.padded; i += kLanes)
        E::store_activation(out + i, normed(given, x, i, task.size, task.before, task.before_bias));
}

}  // namespace
}  // namespace weft
