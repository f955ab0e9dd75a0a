// Processing of one row of latent attention between products: norms, rope, the write into the KV cache.
#pragma once

#include "kernels/rows.h"

namespace weft {
namespace {

inline void turn_pairs(const LatentTask& task, float* x) {
    const int apart = task.is_interleaved ? 1 : task.half;
    const int step = task.is_interleaved ? 2 : 1;
    for (int i = 0; i < task.half; i++) {
        float& first = x[i * step];
        float& second = x[i * step + apart];
        const float a = first;
        const float b = second;
        first = a * task.cosine[i] - b * task.sine[i];
        second = b * task.cosine[i] + a * task.sine[i];
    }
}

template <class E>
void latent(const LatentTask& task) {
    using Act = typename E::Activation;
    if (task.low != nullptr) {
        const float inverse = inverse_rms(task.low, task.low_size, task.low_padded, task.eps);
        scale_row(task.low, task.low_padded, inverse, task.low_norm);
        to_activations<E>(task.low, task.low_out, task.low_padded);
    }
    if (task.kept != nullptr) {
        scale_row(task.kept, task.rank, inverse_rms(task.kept, task.rank, task.rank, task.eps), task.norm);
        turn_pairs(task, task.kept + task.rank);
        auto* tile = static_cast<typename E::Stored*>(task.keys);
        for (int i = 0; i < task.padded_dim; i += kLanes)
            E::store_depth(tile + static_cast<std::ptrdiff_t>(i) * kLanes, task.lane, load(task.kept + i));
    }
    if (task.queries == nullptr) return;
    for (int head = 0; head < task.num_heads; head++) {
        float* q = task.queries + static_cast<std::ptrdiff_t>(head) * task.query_size;
        turn_pairs(task, q + task.key_size);
        to_activations<E>(q, static_cast<Act*>(task.own) + static_cast<std::ptrdiff_t>(head) * task.key_size,
                          task.key_size);
        auto* whole = static_cast<Act*>(task.query) + static_cast<std::ptrdiff_t>(head) * task.padded_dim;
        to_activations<E>(q + task.key_size, whole + task.rank, task.padded_dim - task.rank);
    }
}

}  // namespace
}  // namespace weft
