// The common part of recurrences. Sums and products of two numbers are rounded one by one, and each sum has one
// order: so the bits are the same on every path, and in `weft.compute.arithmetic.convolution`, `mamba` and `delta`.
// The compiler vectorizes the loops.
#pragma once

#include "kernels/exact.h"
#include "kernels/kernels.h"

namespace weft {
namespace {

// Columns of a head's matrix that all rows go through before the next columns.
constexpr int kScanColumns = 32;

// A sum in sixteen partial sums, which are added in the end.
inline float sum_of_squares(const float* row, int size) {
    float lanes[kLanes] = {};
    int i = 0;
    for (; i + kLanes <= size; i += kLanes)
        for (int lane = 0; lane < kLanes; lane++) lanes[lane] += row[i + lane] * row[i + lane];
    for (; i < size; i++) lanes[i % kLanes] += row[i] * row[i];
    float sum = 0;
    for (const float lane : lanes) sum += lane;
    return sum;
}

void convolve_channels(const ChannelsTask& task) {
    float* __restrict out = task.out;
    for (int i = 0; i < task.channels; i++) out[i] = task.bias == nullptr ? 0.0F : 0.0F + task.bias[i];
    for (int place = 0; place < task.width; place++) {
        const float* __restrict row = task.rows[place];
        const float* __restrict weights = task.weights + static_cast<std::ptrdiff_t>(place) * task.channels;
        for (int i = 0; i < task.channels; i++) out[i] += row[i] * weights[i];
    }
    for (int i = 0; i < task.channels; i++) out[i] = exact::silu(out[i]);
}

inline void multiply_by_gate(const GatedNormTask& task) {
    float* __restrict row = task.row;
    const float* __restrict gate = task.gate;
    for (int i = 0; i < task.size; i++) row[i] *= exact::silu(gate[i]);
}

void gated_norm(const GatedNormTask& task) {
    const int size = task.size / task.num_groups;
    if (task.is_gated_first) multiply_by_gate(task);
    if (task.weight == nullptr) return;
    for (int group = 0; group < task.num_groups; group++) {
        float* __restrict row = task.row + static_cast<std::ptrdiff_t>(group) * size;
        const float* __restrict weight = task.weight + group * task.weight_stride;
        const float scale = __builtin_sqrtf(sum_of_squares(row, size) / static_cast<float>(size) + task.eps);
        for (int i = 0; i < size; i++) row[i] = row[i] / scale * weight[i];
    }
    if (!task.is_gated_first) multiply_by_gate(task);
}

}  // namespace
}  // namespace weft
