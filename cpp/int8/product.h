// Rows of int8 times panels of int8. Included after the lanes and the `Int8` of an instruction set.
#pragma once

#include "kernels/gemm.h"
#include "kernels/probes.h"
#include "int8/int8.h"

namespace weft {
namespace {

// Sums of one row and one panel become floats: without the shift of the weights, times both scales.
inline void scale_sums(const Int8Task& task, int panel, int row, const std::int32_t* sums, float* y) {
    const std::int32_t shifted = Int8::kShift * task.row_sums[row];
    const Lanes row_scale = splat(task.row_scales[row]);
    for (int j = 0; j < kPanelColumns; j += kLanes) {
        const Lanes whole = to_floats(load(sums + j), shifted);
        const Lanes column_scale = load(task.column_scales + panel * kPanelColumns + j);
        store(y + j, mul(mul(whole, row_scale), column_scale));
    }
}

// Of up to `kRows` rows. `multiply(sums)` gives the sums of a few rows and one panel.
template <int kRows, class Multiply>
inline void int8_block(const Int8Task& task, int panel, int first_row, int rows, const Multiply& multiply) {
    alignas(64) std::int32_t sums[kRows * kPanelColumns];
    alignas(64) float waiting[kRows * kPanelColumns];
    float* y = waiting;
    std::ptrdiff_t y_stride = kPanelColumns;
    if (task.finish == Finish::kStore) {
        y = static_cast<float*>(task.out) + first_row * task.out_stride + panel * kPanelColumns;
        y_stride = task.out_stride;
    }
    multiply(sums);
    for (int m = 0; m < rows; m++)
        scale_sums(task, panel, first_row + m, sums + m * kPanelColumns, y + m * y_stride);
    finish<Float32>(task, panel, first_row, rows, y, y_stride);
}

template <int kPanels>
inline void int8_row(const Int8Task& task, int panel) {
    Int8::Sum sum[kPanels][2];
    sum_row<Int8, kPanels>(task, panel, sum);
    for (int i = 0; i < kPanels; i++) {
        alignas(64) std::int32_t sums[kPanelColumns];
        alignas(64) float y[kPanelColumns];
        store(sums, sum[i][0]);
        store(sums + kLanes, sum[i][1]);
        scale_sums(task, panel + i, 0, sums, y);
        finish<Float32>(task, panel + i, 0, 1, y, kPanelColumns);
        if (task.finish != Finish::kStore) continue;
        float* out = static_cast<float*>(task.out) + (panel + i) * kPanelColumns;
        store(out, load(y));
        store(out + kLanes, load(y + kLanes));
    }
}

void int8_gemm(const Int8Task& task) {
    if (task.last_row == 1)
        return for_columns<kRowPanels>(task.last_panel - task.first_panel, [&](int at, auto panels) {
            int8_row<decltype(panels)::value>(task, task.first_panel + at);
        });
    const auto block = [&](int panel, int first_row, int rows) {
        int8_block<kBlockRows>(task, panel, first_row, rows, [&](std::int32_t* sums) {
            multiply_panel<Int8>(task, panel, first_row, rows, sums, kPanelColumns);
        });
    };
    for_blocks<kBlockRows>(task.first_panel, task.last_panel, task.first_row, task.last_row, block);
}

inline Lanes load_activations(const QuantizeTask& task, int i) {
    if (task.is_bfloat16) return widen_bfloat16(static_cast<const std::uint16_t*>(task.x) + i);
    return load(static_cast<const float*>(task.x) + i);
}

void quantize(const QuantizeTask& task) {
    Lanes highest = splat(0.0F);
    Lanes trace = splat(0.0F);  // becomes NaN with any NaN or infinity
    for (int i = 0; i < task.depth; i += kLanes) {
        const Lanes x = load_activations(task, i);
        highest = max(highest, max(x, mul(x, splat(-1.0F))));
        trace = fma(x, splat(0.0F), trace);
    }
    const float found = sum_of(trace);
    const Int8Rounding rounding = int8_rounding(found != found ? found : max_of(highest));
    const bool is_zero = rounding.inverse == 0.0F;
    std::int32_t total = 0;
    for (int i = 0; i < task.depth; i += kLanes) {
        const Lanes x = is_zero ? splat(0.0F) : load_activations(task, i);
        total += narrow_to_int8(task.out + i, round_even(mul(x, splat(rounding.inverse))));
    }
    *task.sum = total;
    *task.scale = rounding.scale;
}

constexpr Int8Kernels kInt8Table = {int8_gemm, quantize, probe_arithmetic<Int8>};

}  // namespace
}  // namespace weft
