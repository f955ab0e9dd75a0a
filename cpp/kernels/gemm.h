// Rows times panels of weights, and the processing of the result while it is in the first cache.
#pragma once

#include "kernels/math.h"
#include "kernels/panel.h"

namespace weft {
namespace {

// Rows processed before the next panel: their results wait in a buffer in the first cache.
constexpr int kBlockRows = 96;
inline void add_bias(const GemmTask& task, int panel, int rows, float* y, std::ptrdiff_t y_stride) {
    if (task.bias == nullptr) return;
    for (int j = 0; j < kPanelColumns; j += kLanes) {
        const Lanes bias = load(task.bias + panel * kPanelColumns + j);
        for (int m = 0; m < rows; m++) {
            float* p = y + m * y_stride + j;
            store(p, add(load(p), bias));
        }
    }
}

// A row without an adapter keeps its bits.
inline void add_adapters(const GemmTask& task, int panel, int first_row, int rows, float* y,
                         std::ptrdiff_t y_stride) {
    if (task.added == nullptr) return;
    for (int m = 0; m < rows; m++) {
        const std::int32_t place = task.added_places[first_row + m];
        if (place == 0) continue;
        const float* added =
            task.added + (place - 1) * task.added_stride + (panel - task.first_panel) * kPanelColumns;
        float* p = y + m * y_stride;
        for (int j = 0; j < kPanelColumns; j += kLanes) store(p + j, add(load(p + j), load(added + j)));
    }
}

inline Lanes join_gate(const GemmTask& task, Lanes gate, Lanes up) {
    if (task.swiglu_limit == 0.0F) return mul(activate(task, gate), up);
    const Lanes most = splat(task.swiglu_limit);
    gate = min(most, gate);
    up = min(most, max(splat(-task.swiglu_limit), up));
    return mul(mul(gate, logistic(mul(gate, splat(task.swiglu_alpha)))), add(up, splat(1.0F)));
}

template <class E>
inline void finish_gate(const GemmTask& task, int panel, int first_row, int rows, const float* y) {
    auto* out = static_cast<typename E::Activation*>(task.out) + panel * kLanes;
    for (int m = 0; m < rows; m++) {
        const float* p = y + m * kPanelColumns;
        E::store_activation(out + (first_row + m) * task.out_stride, join_gate(task, load(p), load(p + kLanes)));
    }
}

template <class E>
inline void finish_all(const GemmTask& task, int panel, int first_row, int rows, const float* y) {
    auto* out = static_cast<typename E::Activation*>(task.out) + panel * kPanelColumns;
    for (int m = 0; m < rows; m++)
        for (int j = 0; j < kPanelColumns; j += kLanes)
            E::store_activation(out + (first_row + m) * task.out_stride + j,
                                activate(task, load(y + m * kPanelColumns + j)));
}

inline void finish_logits(const GemmTask& task, int panel, int first_row, int rows, float* y) {
    const int first_column = panel * kPanelColumns;
    const int left = task.columns - first_column;
    const int columns = left < kPanelColumns ? left : kPanelColumns;
    for (int m = 0; m < rows; m++) {
        float* from = y + m * kPanelColumns;
        for (int j = 0; j < kPanelColumns; j += kLanes) {
            Lanes value = load(from + j);
            if (task.divisor != 1.0F) value = div(value, splat(task.divisor));
            if (task.cap != 0.0F) value = soft_cap(value, task.cap);
            store(from + j, value);
        }
        float* to = static_cast<float*>(task.out) + (first_row + m) * task.out_stride + first_column;
        for (int j = 0; j < columns; j++) to[j] = from[j];
    }
}

// Writes `rows` finished products of one panel to their destination.
template <class E>
inline void finish(const GemmTask& task, int panel, int first_row, int rows, float* y,
                   std::ptrdiff_t y_stride) {
    add_bias(task, panel, rows, y, y_stride);
    add_adapters(task, panel, first_row, rows, y, y_stride);
    if (task.finish == Finish::kActivate) finish_gate<E>(task, panel, first_row, rows, y);
    if (task.finish == Finish::kActivateAll) finish_all<E>(task, panel, first_row, rows, y);
    if (task.finish == Finish::kLogits) finish_logits(task, panel, first_row, rows, y);
}

template <class E, int kPanels>
inline void finish_row(const GemmTask& task, int panel, const Lanes (&sum)[kPanels][2]) {
    for (int i = 0; i < kPanels; i++) {
        alignas(64) float y[kPanelColumns];
        store(y, sum[i][0]);
        store(y + kLanes, sum[i][1]);
        finish<E>(task, panel + i, 0, 1, y, kPanelColumns);
        if (task.finish == Finish::kStore) {
            float* out = static_cast<float*>(task.out) + (panel + i) * kPanelColumns;
            store(out, load(y));
            store(out + kLanes, load(y + kLanes));
        }
    }
}

template <class E>
inline void gemm_one_row(const GemmTask& task) {
    for_columns<kRowPanels>(task.last_panel - task.first_panel, [&](int at, auto panels) {
        constexpr int kPanels = decltype(panels)::value;
        Lanes sum[kPanels][2];
        sum_row<E, kPanels>(task, task.first_panel + at, sum);
        finish_row<E, kPanels>(task, task.first_panel + at, sum);
    });
}

// Computes up to `kRows` rows. `multiply(y, y_stride)` gives the sums of a few rows and one panel.
template <class E, int kRows, class Multiply>
inline void gemm_block(const GemmTask& task, int panel, int first_row, int rows, const Multiply& multiply) {
    alignas(64) float waiting[kRows * kPanelColumns];
    float* y = waiting;
    std::ptrdiff_t y_stride = kPanelColumns;
    if (task.finish == Finish::kStore) {
        y = static_cast<float*>(task.out) + first_row * task.out_stride + panel * kPanelColumns;
        y_stride = task.out_stride;
    }
    multiply(y, y_stride);
    finish<E>(task, panel, first_row, rows, y, y_stride);
}

// Like `gemm_block`, for sums that are updated many times: all of them wait in one contiguous buffer.
template <class E, int kRows, class Multiply>
inline void waiting_block(const GemmTask& task, int panel, int first_row, int rows, const Multiply& multiply) {
    alignas(64) float y[kRows * kPanelColumns];
    multiply(y);
    finish<E>(task, panel, first_row, rows, y, kPanelColumns);
    if (task.finish != Finish::kStore) return;
    float* out = static_cast<float*>(task.out) + first_row * task.out_stride + panel * kPanelColumns;
    for (int m = 0; m < rows; m++)
        for (int j = 0; j < kPanelColumns; j += kLanes)
            store(out + m * task.out_stride + j, load(y + m * kPanelColumns + j));
}

// Some panels and rows of a task, `kRows` at a time: `block(panel, first row, rows)`.
template <int kRows, class Block>
inline void for_blocks(int first_panel, int last_panel, int first_row, int last_row, const Block& block) {
    for (int panel = first_panel; panel < last_panel; panel++)
        for (int row = first_row; row < last_row; row += kRows) {
            const int left = last_row - row;
            block(panel, row, left < kRows ? left : kRows);
        }
}

template <class E>
void gemm(const GemmTask& task) {
    if (task.last_row == 1) return gemm_one_row<E>(task);
    const auto block = [&](int panel, int first_row, int rows) {
        waiting_block<E, kBlockRows>(task, panel, first_row, rows,
                                     [&](float* y) { multiply_panel<E>(task, panel, first_row, rows, y); });
    };
    for_blocks<kBlockRows>(task.first_panel, task.last_panel, task.first_row, task.last_row, block);
}

}  // namespace
}  // namespace weft
