// A KV cache of int8: keys and values of a token and head are quantized by a scale of their own.
//
// A cell holds the same 16 columns and depth as one of the model's own element, a byte each, and is widened to this
// element when it is loaded, which is exact. The scales of a tile, a float per token, follow all its heads; scales of
// keys multiply scores, scales of values multiply weights.
#pragma once

#include "kernels/elements.h"
#include "kernels/int8_rounding.h"

namespace weft {
namespace {

template <class E>
struct Int8Cache : E {
    using Stored = std::int8_t;
    static constexpr int kScaleBytes = kInt8ScaleBytes;

    static typename E::Cell load_cell(const Stored* p) { return E::widen_cell(p); }
};

inline Int8Rounding rounding_of(const float* x, int size) {
    Lanes highest = splat(0.0F);
    Lanes trace = splat(0.0F);  // becomes NaN with any NaN or infinity
    for (int i = 0; i < size; i += kLanes) {
        const Lanes value = load(x + i);
        highest = max(highest, max(value, mul(value, splat(-1.0F))));
        trace = fma(value, splat(0.0F), trace);
    }
    const float found = sum_of(trace);
    return int8_rounding(found != found ? found : max_of(highest));
}

// Quantizes one head of one token; `at(i)` is the index of element i in `to`. Returns the scale.
template <class At>
inline float round_head(const float* x, int size, std::int8_t* to, const At& at) {
    const Int8Rounding rounding = rounding_of(x, size);
    for (int i = 0; i < size; i += kLanes) {
        alignas(64) float whole[kLanes];
        const Lanes value = rounding.inverse == 0.0F ? splat(0.0F) : load(x + i);
        store(whole, round_even(mul(value, splat(rounding.inverse))));
        for (int j = 0; j < kLanes; j++) to[at(i + j)] = static_cast<std::int8_t>(whole[j]);
    }
    return rounding.scale;
}

template <class E>
inline void write_int8_cache(const HeadsTask& task, const float* keys, const float* values) {
    constexpr int kStep = E::kStep;
    const std::ptrdiff_t head_size = static_cast<std::ptrdiff_t>(task.padded_dim) * kLanes;
    auto* key_tile = static_cast<std::int8_t*>(task.keys);
    auto* value_tile = static_cast<std::int8_t*>(task.values);
    auto* key_scales = reinterpret_cast<float*>(key_tile + task.num_kv_heads * head_size);
    auto* value_scales = reinterpret_cast<float*>(value_tile + task.num_kv_heads * head_size);
    const int lane = task.lane;
    for (int head = 0; head < task.num_kv_heads; head++) {
        const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(head) * task.padded_dim;
        key_scales[head * kLanes + lane] =
            round_head(keys + from, task.padded_dim, key_tile + head * head_size,
                       [&](int i) { return (i / kStep * kLanes + lane) * kStep + i % kStep; });
        value_scales[head * kLanes + lane] =
            round_head(values + from, task.padded_dim, value_tile + head * head_size, [&](int i) {
                const int part = i / kLanes * kLanes * kLanes;
                return part + (lane / kStep * kLanes + i % kLanes) * kStep + lane % kStep;
            });
    }
}

}  // namespace
}  // namespace weft
