// One panel of weights times some rows, in vector registers.
#pragma once

#include "kernels/product.h"

namespace weft {
namespace {

// Depth processed at once: a tile of activations this deep stays in the first cache.
template <class E>
constexpr int kBlockDepth = 2048 / sizeof(typename E::Activation);

template <class E>
inline const typename E::Stored* panel_of(const GemmTask& task, int panel) {
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(task.depth) * kPanelColumns;
    return static_cast<const typename E::Stored*>(task.panels) + panel * size;
}

// One row: several panels side by side, for enough independent sums and several streams from memory.
template <class E, int kPanels>
inline void add_steps(const GemmTask& task, int panel, int begin, int end, std::ptrdiff_t ahead,
                      typename E::Sum (&sum)[kPanels][2]) {
    const auto* x = static_cast<const typename E::Activation*>(task.x);
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(task.depth) * kPanelColumns;
    const typename E::Stored* w = panel_of<E>(task, panel);
    for (int s = begin; s < end; s++) {
#pragma GCC unroll 8
        for (int i = 0; i < kPanels; i++) {
            const typename E::Stored* p = w + i * size + 2 * s * kCell<E>;
            prefetch(p, ahead);
            prefetch(p, ahead + kCellBytes);
            sum[i][0] = E::dot(sum[i][0], E::load_cell(p), x + s * E::kStep);
            sum[i][1] = E::dot(sum[i][1], E::load_cell(p + kCell<E>), x + s * E::kStep);
        }
    }
}

template <class E, int kPanels>
inline void sum_row(const GemmTask& task, int panel, typename E::Sum (&sum)[kPanels][2]) {
    for (auto& pair : sum) pair[0] = pair[1] = E::zero();
    const int num_steps = task.depth / E::kStep;
    constexpr int kStepsAhead = kAhead / (2 * kCellBytes);
    const int turn = num_steps > kStepsAhead ? num_steps - kStepsAhead : 0;
    add_steps<E, kPanels>(task, panel, 0, turn, kAhead, sum);
    // The panel that follows in memory belongs to these panels: prefetch the panel that follows all of them.
    const std::ptrdiff_t panel_bytes = static_cast<std::ptrdiff_t>(num_steps) * 2 * kCellBytes;
    add_steps<E, kPanels>(task, panel, turn, num_steps, kAhead + (kPanels - 1) * panel_bytes, sum);
}

// Cells of one panel, as deep as is processed at once; the same number follows in memory.
struct Cells {
    bool is_prefetched;  // an earlier tile of rows has prefetched these cells
    bool has_next;
};

// The columns of cells at `w` from `column` on, and what a tile of rows prefetches while it reads them. All tiles
// read all cells; the first tile reads them from memory, and waits for cells that were not prefetched. Later, the
// first two passes over cells prefetch the next cells, line by line and half of them each, so that memory is always
// busy. If a step prefetches two lines, each line is prefetched twice, at no measurable cost.
template <class E>
inline PanelColumns<E, kWide> columns_of(const typename E::Stored* w, int column, int steps, const Cells& cells,
                                         int tile, int count) {
    constexpr std::ptrdiff_t kStepBytes = 2 * kCellBytes;
    const typename E::Stored* first = w + column * kCell<E>;
    const auto* at_hand = reinterpret_cast<const char*>(first);
    const char* next = reinterpret_cast<const char*>(w) + steps * kStepBytes;
    const int pass = column / kWide * count + tile;
    if (tile == 0 && (count == 1 || !cells.is_prefetched)) return {first, at_hand + kAheadAlone, kStepBytes};
    if (cells.has_next && cells.is_prefetched && pass < 2) return {first, next + pass * steps * kCellBytes, kCellBytes};
    if (cells.has_next && !cells.is_prefetched && tile == 1) return {first, next + column * kCellBytes, kStepBytes};
    return {first, at_hand, kStepBytes};
}

// Not inlined where it fills the registers: inlined into its caller, gcc would keep some sums in memory.
template <class E, int kRows>
[[gnu::noinline]] void product_alone(const typename E::Activation* x, std::ptrdiff_t x_stride,
                                     const PanelColumns<E, kWide>& columns, int steps, typename E::Number* y,
                                     bool accumulate) {
    product<E, kRows, kWide>(x, x_stride, columns, steps, y, kPanelColumns, accumulate);
}

// `y` is [rows][kPanelColumns].
template <class E>
inline void multiply_cells(int rows, const typename E::Activation* x, std::ptrdiff_t x_stride,
                           const typename E::Stored* w, int steps, const Cells& cells,
                           typename E::Number* y, bool accumulate) {
    const int count = num_tiles<E>(rows);
    for (int column = 0; column < 2; column += kWide)
        for_tiles<E>(rows, [&](int first, auto height, int tile) {
            constexpr int kRows = decltype(height)::value;
            const PanelColumns<E, kWide> columns = columns_of<E>(w, column, steps, cells, tile, count);
            const typename E::Activation* of_tile = x + first * x_stride;
            typename E::Number* to = y + first * kPanelColumns + column * kLanes;
            if constexpr (kWide > 1) product_alone<E, kRows>(of_tile, x_stride, columns, steps, to, accumulate);
            else product<E, kRows, kWide>(of_tile, x_stride, columns, steps, to, kPanelColumns, accumulate);
        });
}

// Sums [rows][kPanelColumns] of some rows times one panel, block by block of depth; blocks have one size, so that
// each prefetches all of the next one.
template <class E>
inline void multiply_panel(const GemmTask& task, int panel, int first_row, int rows, typename E::Number* y) {
    const auto* x = static_cast<const typename E::Activation*>(task.x) + first_row * task.x_stride;
    const typename E::Stored* w = panel_of<E>(task, panel);
    const int num_blocks = (task.depth - 1) / kBlockDepth<E> + 1;
    const int block_depth = round_up((task.depth - 1) / num_blocks + 1, kLanes);
    for (int depth = 0; depth < task.depth; depth += block_depth) {
        const int left = task.depth - depth;
        const bool is_last = left <= block_depth;
        const int steps = (is_last ? left : block_depth) / E::kStep;
        const bool is_first_pass = first_row == task.first_row;
        const Cells cells{!is_first_pass || depth > 0 || panel > task.first_panel,
                          is_first_pass && !(is_last && panel + 1 == task.last_panel)};
        multiply_cells<E>(rows, x + depth, task.x_stride, w + static_cast<std::ptrdiff_t>(depth) * kPanelColumns,
                          steps, cells, y, depth > 0);
    }
}

}  // namespace
}  // namespace weft
