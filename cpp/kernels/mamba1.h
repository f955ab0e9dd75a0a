// Layers of the first Mamba, to the bits of `weft.compute.arithmetic.mamba1`; see recurrent.h.
#pragma once

#include "kernels/recurrent.h"

namespace weft {
namespace {

// A sum of products in sixteen partial sums, which are added in the end.
inline float dot_in_lanes(const float* __restrict row, const float* __restrict weights, int size) {
    float lanes[kLanes] = {};
    int i = 0;
    for (; i + kLanes <= size; i += kLanes)
        for (int lane = 0; lane < kLanes; lane++) lanes[lane] += row[i + lane] * weights[i + lane];
    for (; i < size; i++) lanes[i % kLanes] += row[i] * weights[i];
    float sum = 0;
    for (const float lane : lanes) sum += lane;
    return sum;
}

inline void norm_in_place(float* row, int size, float eps) {
    const float scale = __builtin_sqrtf(sum_of_squares(row, size) / static_cast<float>(size) + eps);
    for (int i = 0; i < size; i++) row[i] = row[i] / scale;
}

void mamba1_row(const Mamba1RowTask& task) {
    const int made = task.step_rank + 2 * task.state_dim;
    for (int j = 0; j < made; j++)
        task.made[j] = dot_in_lanes(task.x, task.step_in + static_cast<std::ptrdiff_t>(j) * task.inner_size, task.inner_size);
    if (task.has_norms) {
        norm_in_place(task.made, task.step_rank, task.eps);
        norm_in_place(task.made + task.step_rank, task.state_dim, task.eps);
        norm_in_place(task.made + task.step_rank + task.state_dim, task.state_dim, task.eps);
    }
    for (int i = 0; i < task.inner_size; i++)
        task.steps[i] =
            dot_in_lanes(task.made, task.step_out + static_cast<std::ptrdiff_t>(i) * task.step_rank, task.step_rank);
    for (int i = 0; i < task.inner_size; i++) task.steps[i] = exact::softplus(task.steps[i] + task.step_bias[i]);
}

// Processes one row for all channels of the block.
inline void mamba1_scan_row(const Mamba1ScanTask& task, int row, int count) {
    float* __restrict x = task.x + row * task.stride;
    const float* __restrict steps = task.steps + row * task.stride;
    const float* __restrict b = task.b + row * task.stride;
    const float* __restrict c = task.c + row * task.stride;
    const float* __restrict rates = task.rates;
    float* __restrict matrix = task.matrix;
    float sums[kScanColumns] = {};
    for (int i = 0; i < task.state_dim; i++) {
        for (int j = 0; j < count; j++) {
            const float value = matrix[j] * exact::exp(rates[j] * steps[j]) + steps[j] * b[i] * x[j];
            matrix[j] = value;
            sums[j] += value * c[i];
        }
        matrix += count;
        rates += count;
    }
    for (int j = 0; j < count; j++) x[j] = sums[j] + x[j] * task.skip[j];
}

void mamba1_scan(const Mamba1ScanTask& task) {
    for (int j = 0; j < task.head_dim; j++)
        for (int i = 0; i < task.state_dim; i++)
            task.rates[i * task.head_dim + j] = -exact::exp(task.a_log[j * task.state_dim + i]);
    for (int row = 0; row < task.num_rows; row++) {
        if (task.head_dim == kScanColumns) mamba1_scan_row(task, row, kScanColumns);
        else mamba1_scan_row(task, row, task.head_dim);
    }
}

}  // namespace
}  // namespace weft
