// Gated delta nets, to the bits of `weft.compute.arithmetic.delta`; see recurrent.h.
#pragma once

#include "kernels/recurrent.h"

namespace weft {
namespace {

constexpr float kLengthEps = 1e-6F;  // added to the squared length of queries and keys

inline void bring_to_length(float* __restrict head, int size, float factor) {
    const float length = __builtin_sqrtf(sum_of_squares(head, size) + kLengthEps);
    for (int i = 0; i < size; i++) head[i] = head[i] / length * factor;
}

void delta_row(const DeltaRowTask& task) {
    const float root = 1.0F / __builtin_sqrtf(static_cast<float>(task.key_size));
    for (int head = 0; head < 2 * task.num_key_heads; head++)
        bring_to_length(task.queries + static_cast<std::ptrdiff_t>(head) * task.key_size, task.key_size,
                        head < task.num_key_heads ? root : 1.0F);
    for (int i = 0; i < task.num_value_heads; i++) {
        task.b[i] = exact::sigmoid(task.b[i]);
        task.a[i] = exact::exp(-exact::exp(task.a_log[i]) * exact::softplus(task.a[i] + task.step_bias[i]));
    }
}

// Processes one row for `count` columns of the matrix: reads the value stored for the key, then updates the matrix.
inline void delta_scan_columns(const DeltaScanTask& task, int row, int first, int count) {
    const float* __restrict query = task.query + row * task.stride;
    const float* __restrict key = task.key + row * task.stride;
    float* __restrict value = task.value + row * task.stride + first;
    const float beta = task.betas[row * task.step_stride];
    const float decay = task.decays[row * task.step_stride];
    float sums[kScanColumns] = {};
    const float* __restrict before = task.matrix + first;
    for (int i = 0; i < task.key_size; i++, before += task.value_size)
        for (int j = 0; j < count; j++) sums[j] += before[j] * decay * key[i];
    float deltas[kScanColumns];
    for (int j = 0; j < count; j++) {
        deltas[j] = (value[j] - sums[j]) * beta;
        sums[j] = 0;
    }
    float* __restrict matrix = task.matrix + first;
    for (int i = 0; i < task.key_size; i++, matrix += task.value_size)
        for (int j = 0; j < count; j++) {
            matrix[j] = matrix[j] * decay + key[i] * deltas[j];
            sums[j] += matrix[j] * query[i];
        }
    for (int j = 0; j < count; j++) value[j] = sums[j];
}

void delta_scan(const DeltaScanTask& task) {
    for (int first = 0; first < task.value_size; first += kScanColumns) {
        const int count = task.value_size - first < kScanColumns ? task.value_size - first : kScanColumns;
        for (int row = 0; row < task.num_rows; row++) {
            if (count == kScanColumns) delta_scan_columns(task, row, first, kScanColumns);
            else delta_scan_columns(task, row, first, count);
        }
    }
}

}  // namespace
}  // namespace weft
