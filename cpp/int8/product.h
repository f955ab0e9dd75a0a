// Rows of int8 times panels of int8. Included after the lanes and the `Int8` of an instruction set.
#pragma once

#include "int8/grouped_product.h"
#include "int8/int8.h"
#include "kernels/gemm.h"
#include "kernels/probes.h"

namespace weft {
namespace {

// Converts sums of one row and half a panel to floats: subtracts the shift of the weights, multiplies by both scales.
inline Lanes scale_sums(Ints sums, float row_scale, std::int32_t row_sum, Lanes column_scales) {
    return mul(mul(to_floats(sums, Int8::kShift * row_sum), splat(row_scale)), column_scales);
}

// Computes up to `kRows` rows. `multiply(sums)` gives the sums of a few rows and one panel.
template <int kRows, class Multiply>
inline void int8_block(const Int8Task& task, int panel, int first_row, int rows, const Multiply& multiply) {
    gemm_block<Float32, kRows>(task, panel, first_row, rows, [&](float* y, std::ptrdiff_t y_stride) {
        alignas(64) std::int32_t sums[kRows * kPanelColumns];
        multiply(sums);
        const float* row_scales = task.row_scales + first_row;
        const std::int32_t* row_sums = task.row_sums + first_row;
        const Lanes first = load(task.column_scales + panel * kPanelColumns);
        const Lanes second = load(task.column_scales + panel * kPanelColumns + kLanes);
        for (int m = 0; m < rows; m++) {
            const std::int32_t* from = sums + m * kPanelColumns;
            float* to = y + m * y_stride;
            store(to, scale_sums(load(from), row_scales[m], row_sums[m], first));
            store(to + kLanes, scale_sums(load(from + kLanes), row_scales[m], row_sums[m], second));
        }
    });
}

template <int kPanels>
inline void int8_row(const Int8Task& task, int panel) {
    Int8::Sum sum[kPanels][2];
    sum_row<Int8, kPanels>(task, panel, sum);
    Lanes total[kPanels][2];
    for (int i = 0; i < kPanels; i++)
        for (int j = 0; j < 2; j++)
            total[i][j] = scale_sums(sum[i][j], *task.row_scales, *task.row_sums,
                                     load(task.column_scales + (panel + i) * kPanelColumns + j * kLanes));
    finish_row<Float32, kPanels>(task, panel, total);
}

void int8_gemm(const Int8Task& task) {
    if (task.last_row == 1)
        return for_columns<kRowPanels>(task.last_panel - task.first_panel, [&](int at, auto panels) {
            int8_row<decltype(panels)::value>(task, task.first_panel + at);
        });
    const auto block = [&](int panel, int first_row, int rows) {
        int8_block<kBlockRows>(task, panel, first_row, rows, [&](std::int32_t* sums) {
            multiply_panel<Int8>(task, panel, first_row, rows, sums);
        });
    };
    for_blocks<kBlockRows>(task.first_panel, task.last_panel, task.first_row, task.last_row, block);
}

inline Lanes load_activations(const QuantizeTask& task, int i) {
    if (task.is_bfloat16) return widen_bfloat16(static_cast<const std::uint16_t*>(task.x) + i);
    return load(static_cast<const float*>(task.x) + i);
}

inline void quantize_group(const QuantizeTask& task, int first, int last, int group) {
    Lanes highest = splat(0.0F);
    Lanes lowest = splat(0.0F);
    Lanes trace = splat(0.0F);  // becomes NaN with any NaN or infinity
    for (int i = first; i < last; i += kLanes) {
        const Lanes x = load_activations(task, i);
        highest = max(highest, x);
        lowest = min(lowest, x);
        trace = fma(x, splat(0.0F), trace);
    }
    const float found = sum_of(trace);
    const float most = max_of(max(highest, mul(lowest, splat(-1.0F))));
    const Int8Rounding rounding = int8_rounding(found != found ? found : most);
    const bool is_zero = rounding.inverse == 0.0F;
    Ints sums = splat_ints(0);
    for (int i = first; i < last; i += kLanes) {
        const Lanes x = is_zero ? splat(0.0F) : load_activations(task, i);
        sums = add(sums, narrow_to_int8(task.out + i, round_even(mul(x, splat(rounding.inverse)))));
    }
    const std::int32_t total = sum_of(sums);
    const std::ptrdiff_t at = group * task.rounded.stride;
    task.rounded.scales[at] = rounding.scale;
    task.rounded.sums[at] = total;
    task.rounded.scaled_sums[at] = static_cast<float>(total) * rounding.scale;
}

void quantize(const QuantizeTask& task) {
    for (int first = 0, group = 0; first < task.depth; first += task.group, group++) {
        const int left = task.depth - first;
        quantize_group(task, first, first + (left < task.group ? left : task.group), group);
    }
}

constexpr Int8Kernels kInt8Table = {int8_gemm, grouped_gemm, quantize, probe_arithmetic<Int8>};

}  // namespace
}  // namespace weft
