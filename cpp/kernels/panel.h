// One panel of weights times some rows, in vector registers.
#pragma once

#include "kernels/product.h"

namespace weft {
namespace {

// Depth handled at once: a tile of activations this deep stays in the first cache.
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
            ask(p, ahead);
            ask(p, ahead + kCellBytes);
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
    // What follows in memory is another panel of these; ask for the panel that comes after them.
    const std::ptrdiff_t panel_bytes = static_cast<std::ptrdiff_t>(num_steps) * 2 * kCellBytes;
    add_steps<E, kPanels>(task, panel, turn, num_steps, kAhead + (kPanels - 1) * panel_bytes, sum);
}

// Cells of one panel, as deep as is handled at once; the next ones lie right behind.
struct Cells {
    bool is_asked;  // some tile of the cells before has asked for these
    bool has_next;
};

// How far ahead a tile of rows asks. Every tile reads all cells, the first takes them from memory: alone
// it would wait for them, so where there are several the others ask for what comes next, one cell of
// each pair at a time.
inline std::ptrdiff_t ahead_of_tile(const Cells& cells, int tile, int count, int column, int steps) {
    if (tile == 0 && (count == 1 || !cells.is_asked)) return kAheadAlone;
    const bool is_asking = tile == (count == 2 ? 1 : 1 + column);
    return is_asking && cells.has_next ? steps * 2 * kCellBytes : 0;
}

template <class E>
inline void multiply_cells(int rows, const typename E::Activation* x, std::ptrdiff_t x_stride,
                           const typename E::Stored* w, int steps, const Cells& cells,
                           typename E::Number* y, std::ptrdiff_t y_stride, bool accumulate) {
    const int count = num_tiles<E>(rows);
    for (int j = 0; j < 2; j += kWide)
        for_tiles<E>(rows, [&](int first, auto height, int tile) {
            Columns<E, kWide> columns;
            columns.step = 2 * kCell<E>;
            for (int i = 0; i < kWide; i++) {
                columns.cells[i] = w + (i + j) * kCell<E>;
                columns.ahead[i] = ahead_of_tile(cells, tile, count, i + j, steps);
            }
            product<E, decltype(height)::value, kWide>(x + first * x_stride, x_stride, columns, steps,
                                                       y + first * y_stride + j * kLanes, y_stride, accumulate);
        });
}

// Sums of some rows times one panel, block by block of depth.
template <class E>
inline void multiply_panel(const GemmTask& task, int panel, int first_row, int rows,
                           typename E::Number* y, std::ptrdiff_t y_stride) {
    const auto* x = static_cast<const typename E::Activation*>(task.x) + first_row * task.x_stride;
    const typename E::Stored* w = panel_of<E>(task, panel);
    for (int depth = 0; depth < task.depth; depth += kBlockDepth<E>) {
        const int left = task.depth - depth;
        const bool is_last = left <= kBlockDepth<E>;
        const int steps = (is_last ? left : kBlockDepth<E>) / E::kStep;
        const bool is_first_pass = first_row == task.first_row;
        const Cells cells{!is_first_pass || depth > 0 || panel > task.first_panel,
                          is_first_pass && !(is_last && panel + 1 == task.last_panel)};
        multiply_cells<E>(rows, x + depth, task.x_stride, w + static_cast<std::ptrdiff_t>(depth) * kPanelColumns,
                          steps, cells, y, y_stride, depth > 0);
    }
}

}  // namespace
}  // namespace weft
