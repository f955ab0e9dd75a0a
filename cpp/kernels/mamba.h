// Mamba-2 layers. Sums and products of two numbers, each sum in one order: the same bits on every path, and those of
// `weft.compute.mamba`. The compiler makes vectors of the loops.
#pragma once

#include "kernels/exact.h"
#include "kernels/kernels.h"

namespace weft {
namespace {

void mamba_conv(const MambaConvTask& task) {
    float* __restrict out = task.out;
    for (int i = 0; i < task.channels; i++) out[i] = task.bias == nullptr ? 0.0F : 0.0F + task.bias[i];
    for (int place = 0; place < task.width; place++) {
        const float* __restrict row = task.rows[place];
        const float* __restrict weights = task.weights + static_cast<std::ptrdiff_t>(place) * task.channels;
        for (int i = 0; i < task.channels; i++) out[i] += row[i] * weights[i];
    }
    for (int i = 0; i < task.channels; i++) out[i] = exact::silu(out[i]);
}

constexpr int kScanColumns = 32;

// Of one row, `count` columns of the matrix.
inline void mamba_scan_columns(const MambaScanTask& task, int row, int first, int count, float step, float decay) {
    float* __restrict x = task.x + row * task.stride + first;
    const float* __restrict b = task.b + row * task.stride;
    const float* __restrict c = task.c + row * task.stride;
    float* __restrict matrix = task.matrix + first;
    float sums[kScanColumns] = {};
    for (int i = 0; i < task.state_dim; i++) {
        const float step_b = step * b[i];
        for (int j = 0; j < count; j++) {
            const float value = matrix[j] * decay + step_b * x[j];
            matrix[j] = value;
            sums[j] += value * c[i];
        }
        matrix += task.head_dim;
    }
    for (int j = 0; j < count; j++) x[j] = sums[j] + x[j] * task.skip;
}

void mamba_scan(const MambaScanTask& task) {
    const float rate = -exact::exp(task.a_log);
    for (int first = 0; first < task.head_dim; first += kScanColumns) {
        const int count = task.head_dim - first < kScanColumns ? task.head_dim - first : kScanColumns;
        for (int row = 0; row < task.num_rows; row++) {
            float step = exact::softplus(task.steps[row * task.step_stride] + task.step_bias);
            step = step < task.min_step ? task.min_step : step;
            step = step > task.max_step ? task.max_step : step;
            const float decay = exact::exp(rate * step);
            if (count == kScanColumns) mamba_scan_columns(task, row, first, kScanColumns, step, decay);
            else mamba_scan_columns(task, row, first, count, step, decay);
        }
    }
}

void mamba_norm(const MambaNormTask& task) {
    const int size = task.size / task.num_groups;
    for (int i = 0; i < task.size; i++) task.row[i] *= exact::silu(task.gate[i]);
    for (int group = 0; group < task.num_groups; group++) {
        float* __restrict row = task.row + group * size;
        const float* __restrict weight = task.weight + group * size;
        float lanes[kLanes] = {};
        int i = 0;
        for (; i + kLanes <= size; i += kLanes)
            for (int lane = 0; lane < kLanes; lane++) lanes[lane] += row[i + lane] * row[i + lane];
        for (; i < size; i++) lanes[i % kLanes] += row[i] * row[i];
        float sum = 0;
        for (const float lane : lanes) sum += lane;
        const float scale = __builtin_sqrtf(sum / static_cast<float>(size) + task.eps);
        for (int j = 0; j < size; j++) row[j] = row[j] / scale * weight[j];
    }
}

}  // namespace
}  // namespace weft
