// Processing of one row between two products: norms of heads, rope, the write into the KV cache.
#pragma once

#include "kernels/elements.h"
#include "kernels/exact.h"
#include "kernels/int8_cache.h"
#include "kernels/norms.h"

namespace weft {
namespace {

template <class E>
void to_activations(const float* from, void* to, int count) {
    auto* out = static_cast<typename E::Activation*>(to);
    for (int i = 0; i < count; i += kLanes) E::store_activation(out + i, load(from + i));
}

inline float widened(float activation) { return activation; }
inline float widened(std::uint16_t activation) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(activation) << 16U);
}

// A null weight stands for ones.
inline void scale_row(float* x, int padded, float factor, const float* weight) {
    for (int i = 0; i < padded; i += kLanes) {
        const Lanes value = mul(load(x + i), splat(factor));
        store(x + i, weight == nullptr ? value : mul(value, load(weight + i)));
    }
}

inline void norm_each_head(const HeadsTask& task, float* x, int num_heads, const float* weight) {
    for (int head = 0; head < num_heads; head++) {
        float* p = x + head * task.padded_dim;
        scale_row(p, task.padded_dim, inverse_rms(p, task.head_dim, task.padded_dim, task.eps), weight);
    }
}

// Each head has weights of its own.
inline void layer_norm_each_head(const HeadsTask& task, float* x, int num_heads, const float* weight) {
    for (int head = 0; head < num_heads; head++) {
        float* p = x + head * task.padded_dim;
        const NormVectors by{weight + head * task.padded_dim, nullptr};
        const LayerNorm norm = LayerNorm::of(p, task.head_dim, task.padded_dim, task.eps);
        for (int i = 0; i < task.padded_dim; i += kLanes) store(p + i, norm.at(p, i, task.head_dim, by));
    }
}

inline void norm_heads(const HeadsTask& task, float* x, int num_heads, const float* weight) {
    if (task.norm == QkNorm::kFull) {
        const int padded = num_heads * task.padded_dim;
        scale_row(x, padded, inverse_rms(x, num_heads * task.head_dim, padded, task.eps), weight);
    } else if (task.norm == QkNorm::kHeadLayer) {
        layer_norm_each_head(task, x, num_heads, weight);
    } else if (task.norm != QkNorm::kNone) {
        norm_each_head(task, x, num_heads, weight);
    }
}

inline void norm_queries_and_keys(const HeadsTask& task, float* q, float* k) {
    norm_heads(task, q, task.num_heads, task.q_norm);
    if (task.keys != nullptr) norm_heads(task, k, task.num_kv_heads, task.k_norm);
}

// Rotates element i with element i + half.
inline void rotate(const HeadsTask& task, float* x, int num_heads) {
    const int half = task.half;
    for (int head = 0; head < num_heads; head++) {
        float* first = x + head * task.padded_dim;
        float* second = first + half;
        for (int i = 0; i < half; i++) {
            const float a = first[i];
            const float b = second[i];
            first[i] = a * task.cosine[i] - b * task.sine[i];
            second[i] = b * task.cosine[i] + a * task.sine[i];
        }
    }
}

template <class E>
inline void write_cache(const HeadsTask& task, const float* keys, const float* values) {
    using Stored = typename E::Stored;
    const std::ptrdiff_t head_size = static_cast<std::ptrdiff_t>(task.padded_dim) * kLanes;
    auto* key_tile = static_cast<Stored*>(task.keys);
    auto* value_tile = static_cast<Stored*>(task.values);
    const std::ptrdiff_t value_cell = task.lane / E::kStep * kCell<E>;
    for (int head = 0; head < task.num_kv_heads; head++) {
        for (int i = 0; i < task.padded_dim; i += kLanes) {
            const std::ptrdiff_t at = head * head_size + i * kLanes;
            const Lanes key = load(keys + head * task.padded_dim + i);
            const Lanes value = load(values + head * task.padded_dim + i);
            E::store_depth(key_tile + at, task.lane, key);
            E::store_columns(value_tile + at + value_cell, task.lane % E::kStep, value);
        }
    }
}

template <class E>
void heads(const HeadsTask& task) {
    float* q = task.qkv;
    float* k = q + static_cast<std::ptrdiff_t>(task.num_heads) * task.padded_dim;
    float* v = k + static_cast<std::ptrdiff_t>(task.num_kv_heads) * task.padded_dim;
    const bool is_after = task.norm == QkNorm::kHeadAfterRope;
    if (!is_after) norm_queries_and_keys(task, q, k);
    if (task.cosine != nullptr) {
        rotate(task, q, task.num_heads);
        if (task.keys != nullptr) rotate(task, k, task.num_kv_heads);
    }
    if (is_after) norm_queries_and_keys(task, q, k);
    auto* query = static_cast<typename E::Activation*>(task.query);
    for (int i = 0; i < task.num_heads * task.padded_dim; i += kLanes)
        E::store_activation(query + i, load(q + i));
    if (task.keys == nullptr) return;
    if (task.norms_values) norm_each_head(task, v, task.num_kv_heads, nullptr);
    if constexpr (E::kScaleBytes > 0) write_int8_cache<E>(task, k, v);
    else write_cache<E>(task, k, v);
}

template <class E>
void gate_outputs(const float* gates, void* row, int count) {
    auto* outputs = static_cast<typename E::Activation*>(row);
    for (int i = 0; i < count; i += kLanes) {
        float gated[kLanes];
        for (int lane = 0; lane < kLanes; lane++)
            gated[lane] = widened(outputs[i + lane]) * exact::sigmoid(gates[i + lane]);
        E::store_activation(outputs + i, load(gated));
    }
}

}  // namespace
}  // namespace weft
