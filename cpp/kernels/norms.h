// The residual stream of a row: the addition of a layer part's result, and the norms around it.
#pragma once

#include <cmath>

#include "kernels/elements.h"

namespace weft {
namespace {

// 1 / sqrt(mean of squares + eps). Elements from `size` to `padded` must be zeros; they do not count.
inline float inverse_rms(const float* x, int size, int padded, float eps) {
    Lanes squares = splat(0.0F);
    for (int i = 0; i < padded; i += kLanes) {
        const Lanes value = load(x + i);
        squares = fma(value, value, squares);
    }
    return 1.0F / std::sqrt(sum_of(squares) / static_cast<float>(size) + eps);
}

struct RmsNorm {
    Lanes inverse;

    static RmsNorm of(const float* x, int size, int padded, float eps) {
        return {splat(inverse_rms(x, size, padded, eps))};
    }

    Lanes at(const float* x, int i, int, const NormVectors& by) const {
        return mul(mul(load(x + i), inverse), load(by.weight + i));
    }
};

// Elements from `size` on are padding: they are left out, and must be zeros, as in weight and bias.
struct LayerNorm {
    Lanes mean;
    Lanes inverse;  // 1 / sqrt(variance + eps)

    static Lanes centred(const float* x, int i, int size, Lanes mean) {
        const Lanes value = sub(load(x + i), mean);
        return size - i >= kLanes ? value : keep(value, 0, size - i, 0.0F);
    }

    static LayerNorm of(const float* x, int size, int padded, float eps) {
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

    Lanes at(const float* x, int i, int size, const NormVectors& by) const {
        const Lanes value = mul(mul(centred(x, i, size, mean), inverse), load(by.weight + i));
        return by.bias == nullptr ? value : add(value, load(by.bias + i));
    }
};

// Calls `put(i, value)` for 16 elements at a time, normed if there is a weight.
template <class Norm, class Put>
inline void for_normed(const ResidualTask& task, const float* x, const NormVectors& by, const Put& put) {
    if (by.weight == nullptr) {
        for (int i = 0; i < task.padded; i += kLanes) put(i, load(x + i));
        return;
    }
    const Norm norm = Norm::of(x, task.size, task.padded, task.eps);
    for (int i = 0; i < task.padded; i += kLanes) put(i, norm.at(x, i, task.size, by));
}

template <class E, class Norm>
void residual(const ResidualTask& task) {
    float* x = task.x;
    if (task.y != nullptr) {
        const Lanes scale = splat(task.scale);
        for_normed<Norm>(task, task.y, task.after,
                         [&](int i, Lanes y) { store(x + i, add(load(x + i), mul(y, scale))); });
    }
    if (task.whole != 1.0F)
        for (int i = 0; i < task.padded; i += kLanes) store(x + i, mul(load(x + i), splat(task.whole)));
    if (task.sum.weight != nullptr)
        for_normed<Norm>(task, x, task.sum, [&](int i, Lanes value) { store(x + i, value); });
    if (task.out == nullptr) return;
    auto* out = static_cast<typename E::Activation*>(task.out);
    for_normed<Norm>(task, x, task.before, [&](int i, Lanes value) { E::store_activation(out + i, value); });
}

}  // namespace
}  // namespace weft
