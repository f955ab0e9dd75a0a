// Mamba-2 layers, to the bits of `weft.compute.arithmetic.mamba`; see recurrent.h.
#pragma once

#include "kernels/recurrent.h"

namespace weft {
namespace {

// Processes one row for `count` columns of the matrix.
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

}  // namespace
}  // namespace weft
