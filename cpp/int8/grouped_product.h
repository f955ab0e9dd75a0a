// Rows of int8 times panels of weights in groups. Included by product.h, after the lanes, `Int8`, `Int4` and `E2m1` of
// an instruction set.
#pragma once

#include "int8/grouped.h"
#include "kernels/gemm.h"

namespace weft {
namespace {

constexpr int kEight = 8;  // elements of depth that are read at once

// The amount to subtract from each number after the products, if its cells have not subtracted it yet.
template <class E, int kHalf>
struct FourBits {
    using Element = E;
    static constexpr int kZero = kHalf;
    static constexpr std::int32_t kTaken = 0;
    static constexpr int kBytes = 2 * kCellBytes;  // bytes of eight steps of depth in a panel

    static void load_cells(const std::uint8_t* p, int half, typename E::Cell (&cells)[2]) {
        E::load_cells(p + half * kCellBytes, cells);
    }
};

using Nibbles = FourBits<Int4, 8>;
using Codes = FourBits<E2m1, kE2m1Zero>;

struct Bytes {
    using Element = Int8;
    static constexpr int kZero = 128;
    static constexpr std::int32_t kTaken = 128 - Int8::kShift;
    static constexpr int kBytes = 4 * kCellBytes;

    static void load_cells(const std::uint8_t* p, int half, Int8::Cell (&cells)[2]) {
        cells[0] = Int8::load_cell(p + half * kCellBytes);
        cells[1] = Int8::load_cell(p + (half + 2) * kCellBytes);
    }
};

// A task's layout, computed once.
struct Layout {
    explicit Layout(const GroupedTask& of)
        : task(of),
          groups(num_groups(of.format, of.depth)),
          each(group_depth(of.format, of.depth)),
          scales(scale_bytes(of.format)),
          header(header_bytes(of.format)),
          group(group_bytes(of.format, of.depth)),
          panel(panel_bytes(of.format, of.depth)) {}

    const std::uint8_t* panel_at(int index) const {
        return static_cast<const std::uint8_t*>(task.panels) + index * panel;
    }
    int depth_of(int index) const { return index + 1 < groups ? each : task.depth - index * each; }

    const GroupedTask& task;
    int groups;
    int each;  // number of elements of depth
    std::ptrdiff_t scales;  // offset of the scales; the numbers before them are bytes
    std::ptrdiff_t header;
    std::ptrdiff_t group;
    std::ptrdiff_t panel;
};

inline Lanes load_scales(ScaleType type, const std::uint8_t* p, int half) {
    if (type == ScaleType::kFloat32) return load(reinterpret_cast<const float*>(p) + half * kLanes);
    const auto* bits = reinterpret_cast<const std::uint16_t*>(p) + half * kLanes;
    return type == ScaleType::kBfloat16 ? widen_bfloat16(bits) : widen_float16(bits);
}

// Initial sums of one row and half a panel, so that the final sums are those of numbers minus zeros.
template <class W, Offset kOffset>
inline Ints first_sums(const Layout& layout, const std::uint8_t* header, int half, std::int32_t row_sum) {
    if constexpr (kOffset == Offset::kSymmetric) return splat_ints((W::kTaken - W::kZero) * row_sum);
    const Ints taken = splat_ints(W::kTaken * row_sum);
    if constexpr (kOffset == Offset::kMinimums) return taken;
    return take_products(taken, reinterpret_cast<const std::int16_t*>(header + layout.scales) + half * kLanes, row_sum);
}

// Adds a group's sums to those of the groups before it. (No struct of both scales: gcc would keep it in memory.)
template <Offset kOffset>
inline Lanes add_sums(Lanes total, Ints sums, Lanes scale, Lanes minimum, float row_scale, float scaled_sum) {
    total = add(total, mul(mul(to_floats(sums, 0), splat(row_scale)), scale));
    if constexpr (kOffset != Offset::kMinimums) return total;
    return add(total, mul(splat(scaled_sum), minimum));
}

// Minimums of half a panel, if the format has them.
template <Offset kOffset>
inline Lanes load_minimums(const Layout& layout, const std::uint8_t* header, int half) {
    if constexpr (kOffset != Offset::kMinimums) return splat(0.0F);
    return load_scales(layout.task.format.scales, header + layout.scales, half);
}

// True if products of a few steps of eight are added in 16 bits, where a register holds twice as many.
template <class E>
concept Narrow = requires { typename E::NarrowSum; };

// `steps` of eight of depth, for a few rows and halves of a panel.
template <class W, int kRows, int kHalves, class Sum, class Dot>
inline void add_eights(const std::uint8_t* numbers, int first_half, int steps, std::ptrdiff_t ahead,
                       const std::int8_t* x, std::ptrdiff_t stride, Sum (&sum)[kRows][kHalves], const Dot& dot) {
    for (int s = 0; s < steps; s++, numbers += W::kBytes, x += kEight) {
        for (int line = 0; line < W::kBytes; line += kCellBytes) prefetch(numbers + line, ahead);
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++) {
            typename W::Element::Cell cells[kHalves][2];
#pragma GCC unroll 2
            for (int j = 0; j < kHalves; j++) W::load_cells(numbers, first_half + j, cells[j]);
#pragma GCC unroll 16
            for (int m = 0; m < kRows; m++)
#pragma GCC unroll 2
                for (int j = 0; j < kHalves; j++) sum[m][j] = dot(sum[m][j], cells[j][k], x + m * stride + 4 * k);
        }
    }
}

template <class W, int kRows, int kHalves>
    requires(!InTwos<typename W::Element, kRows>)
inline void multiply_group(const std::uint8_t* numbers, int first_half, int steps, std::ptrdiff_t ahead,
                           const std::int8_t* x, std::ptrdiff_t stride, Ints (&sum)[kRows][kHalves]) {
    using E = typename W::Element;
    if constexpr (!Narrow<E>) {
        add_eights<W>(numbers, first_half, steps, ahead, x, stride, sum, E::dot);
    } else {
        for (int s = 0; s < steps; s += E::kNarrowSteps) {
            typename E::NarrowSum narrow[kRows][kHalves] = {};
            const int left = steps - s < E::kNarrowSteps ? steps - s : E::kNarrowSteps;
            add_eights<W>(numbers + s * W::kBytes, first_half, left, ahead, x + s * kEight, stride, narrow,
                          E::dot_narrow);
            for (int m = 0; m < kRows; m++)
                for (int j = 0; j < kHalves; j++) sum[m][j] = E::widen(sum[m][j], narrow[m][j]);
        }
    }
}

// The same for CPUs that multiply two rows at once; an odd last row is computed twice.
template <class W, int kRows, int kHalves>
    requires InTwos<typename W::Element, kRows>
inline void multiply_group(const std::uint8_t* numbers, int first_half, int steps, std::ptrdiff_t ahead,
                           const std::int8_t* x, std::ptrdiff_t stride, Ints (&sum)[kRows][kHalves]) {
    using E = typename W::Element;
    constexpr int kPairs = (kRows + 1) / 2;
    const auto other = [](int pair) { return 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair; };
    typename E::TwoRows pairs[kPairs][kHalves];
    for (int m = 0; m < kPairs; m++)
        for (int j = 0; j < kHalves; j++) pairs[m][j] = E::join(sum[2 * m][j], sum[other(m)][j]);
    for (int s = 0; s < steps; s++, numbers += W::kBytes, x += kEight) {
        for (int line = 0; line < W::kBytes; line += kCellBytes) prefetch(numbers + line, ahead);
#pragma GCC unroll 2
        for (int j = 0; j < kHalves; j++) {
            typename E::Cell cells[2];
            W::load_cells(numbers, first_half + j, cells);
            const auto both = E::two_cells(cells[0], cells[1]);
#pragma GCC unroll 8
            for (int m = 0; m < kPairs; m++)
                E::multiply(pairs[m][j], both, x + 2 * m * stride, x + other(m) * stride);
        }
    }
    for (int m = 0; m < kPairs; m++)
        for (int j = 0; j < kHalves; j++) {
            Ints second;
            E::split(pairs[m][j], sum[2 * m][j], second);
            if (2 * m + 1 < kRows) sum[2 * m + 1][j] = second;
        }
}

// A few rows times one group and `kHalves` halves of a panel, added to `y`.
template <class W, Offset kOffset, int kRows, int kHalves>
// Always inline: a call took 6 % of 96 rows.
[[gnu::always_inline]]
inline void add_group(const Layout& layout, const std::uint8_t* header, int first_half, int steps, const std::int8_t* x,
                      const RowGroups& of_rows, float* y, std::ptrdiff_t ahead) {
    const ScaleType scales = layout.task.format.scales;
    Ints sum[kRows][kHalves];
    for (int m = 0; m < kRows; m++)
        for (int j = 0; j < kHalves; j++)
            sum[m][j] = first_sums<W, kOffset>(layout, header, first_half + j, of_rows.sums[m]);
    const std::ptrdiff_t stride = layout.task.x_stride;
    multiply_group<W, kRows, kHalves>(header + layout.header, first_half, steps, ahead, x, stride, sum);
    Lanes scale[kHalves];
    Lanes minimum[kHalves];
#pragma GCC unroll 2
    for (int j = 0; j < kHalves; j++) {
        scale[j] = load_scales(scales, header, first_half + j);
        minimum[j] = load_minimums<kOffset>(layout, header, first_half + j);
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++)
#pragma GCC unroll 2
        for (int j = 0; j < kHalves; j++) {
            float* to = y + m * kPanelColumns + (first_half + j) * kLanes;
            store(to, add_sums<kOffset>(load(to), sum[m][j], scale[j], minimum[j], of_rows.scales[m],
                                        of_rows.scaled_sums[m]));
        }
}

template <class W, Offset kOffset>
inline void grouped_block(const Layout& layout, int panel, int first_row, int rows) {
    const GroupedTask& task = layout.task;
    const std::uint8_t* from = layout.panel_at(panel);
    waiting_block<Float32, kBlockRows>(task, panel, first_row, rows, [&](float* y) {
        for (int half = 0; half < 2; half += kWide)
            for_tiles<typename W::Element>(rows, [&](int first, auto height, int tile) {
                constexpr int kRows = decltype(height)::value;
                float* tile_y = y + first * kPanelColumns;
                const std::ptrdiff_t ahead = tile == 0 && half == 0 && first_row == task.first_row ? kAheadAlone : 0;
                for (int m = 0; m < kRows; m++)
                    for (int j = half; j < half + kWide; j++)
                        store(tile_y + m * kPanelColumns + j * kLanes, splat(0.0F));
                const auto* x = static_cast<const std::int8_t*>(task.x) + (first_row + first) * task.x_stride;
                const std::uint8_t* header = from;
                RowGroups of_rows = task.rounded.from(first_row + first);
                for (int g = 0; g < layout.groups; g++) {
                    asm volatile("" : "+r"(tile_y));  // prevents gcc from keeping sums in registers and spilling them
                    const int steps = layout.depth_of(g) / kEight;
                    add_group<W, kOffset, kRows, kWide>(layout, header, half, steps, x, of_rows, tile_y, ahead);
                    header += layout.group;
                    x += layout.each;
                    of_rows = of_rows.next();
                }
            });
    });
}

// `steps` of depth eight of one row, for panels that are `size` bytes apart.
template <class W, int kPanels>
inline void add_steps_of_row(const std::uint8_t* numbers, std::ptrdiff_t size, int steps, std::ptrdiff_t ahead,
                             const std::int8_t* x, Ints (&sum)[kPanels][2]) {
    if constexpr (Narrow<typename W::Element>) {
        static_assert(kPanels == 1);
        return multiply_group<W, 1, 2>(numbers, 0, steps, ahead, x, 0, sum);
    } else {
        for (int s = 0; s < steps; s++, numbers += W::kBytes, x += kEight)
#pragma GCC unroll 8
            for (int i = 0; i < kPanels; i++) {
                const std::uint8_t* p = numbers + i * size;
                for (int line = 0; line < W::kBytes; line += kCellBytes) prefetch(p + line, ahead);
#pragma GCC unroll 2
                for (int j = 0; j < 2; j++) {
                    typename W::Element::Cell cells[2];
                    W::load_cells(p, j, cells);
                    sum[i][j] = W::Element::dot(W::Element::dot(sum[i][j], cells[0], x), cells[1], x + 4);
                }
            }
    }
}

// One row: several panels side by side, as `add_steps` has them.
template <class W, Offset kOffset, int kPanels>
inline void grouped_row(const Layout& layout, int panel) {
    const GroupedTask& task = layout.task;
    const std::ptrdiff_t size = layout.panel;
    const auto* x = static_cast<const std::int8_t*>(task.x);
    const std::uint8_t* header = layout.panel_at(panel);
    Lanes total[kPanels][2];
    for (auto& pair : total) pair[0] = pair[1] = splat(0.0F);
    RowGroups of_row = task.rounded;
    for (int g = 0; g < layout.groups; g++, header += layout.group, of_row = of_row.next()) {
        // The panel that follows in memory belongs to these panels: prefetch what follows all of them.
        const bool is_near_end = (g + 1) * layout.group + kAhead > size;
        const std::ptrdiff_t ahead = is_near_end ? kAhead + (kPanels - 1) * size : kAhead;
        const std::uint8_t* numbers = header + layout.header;
        const int steps = layout.depth_of(g) / kEight;
        Ints sum[kPanels][2];
#pragma GCC unroll 8
        for (int i = 0; i < kPanels; i++) {
            sum[i][0] = first_sums<W, kOffset>(layout, header + i * size, 0, *of_row.sums);
            sum[i][1] = first_sums<W, kOffset>(layout, header + i * size, 1, *of_row.sums);
            for (std::ptrdiff_t line = 0; line < layout.header; line += kCellBytes)
                prefetch(header + i * size + line, ahead);
        }
        add_steps_of_row<W>(numbers, size, steps, ahead, x, sum);
        x += steps * kEight;
#pragma GCC unroll 8
        for (int i = 0; i < kPanels; i++)
            for (int j = 0; j < 2; j++)
                total[i][j] = add_sums<kOffset>(total[i][j], sum[i][j],
                                                load_scales(task.format.scales, header + i * size, j),
                                                load_minimums<kOffset>(layout, header + i * size, j),
                                                *of_row.scales, *of_row.scaled_sums);
    }
    finish_row<Float32, kPanels>(task, panel, total);
}

template <class W, Offset kOffset>
inline void multiply_grouped(const GroupedTask& task) {
    const Layout layout(task);
    if (task.last_row == 1)
        return for_columns<kRowPanels>(task.last_panel - task.first_panel, [&](int at, auto panels) {
            grouped_row<W, kOffset, decltype(panels)::value>(layout, task.first_panel + at);
        });
    for_blocks<kBlockRows>(task.first_panel, task.last_panel, task.first_row, task.last_row,
                           [&](int panel, int first_row, int rows) {
                               grouped_block<W, kOffset>(layout, panel, first_row, rows);
                           });
}

template <class W>
inline void multiply_grouped(const GroupedTask& task) {
    switch (task.format.offset) {
        case Offset::kSymmetric:
            return multiply_grouped<W, Offset::kSymmetric>(task);
        case Offset::kZeros:
            return multiply_grouped<W, Offset::kZeros>(task);
        case Offset::kMinimums:
            return multiply_grouped<W, Offset::kMinimums>(task);
        case Offset::kE2m1:
            return multiply_grouped<Codes, Offset::kSymmetric>(task);
    }
}

void grouped_gemm(const GroupedTask& task) {
    if (task.format.bits == 4) multiply_grouped<Nibbles>(task);
    else multiply_grouped<Bytes>(task);
}

}  // namespace
}  // namespace weft
