// One panel of weights times some rows, in tile registers.
#pragma once

#include "kernels/panel.h"
#include "kernels/tiles.h"

namespace weft {
namespace {

constexpr int kTiledBlockRows = 256;  // rows processed before the next panel
constexpr int kTilesRows = 2 * kTileRows;  // rows multiplied together
// This many steps of a panel, 36 KB, stay in the first cache while rows are streamed.
constexpr int kStepsAtOnce = 18 * kTileSteps;
// Lines of the next panel that are prefetched with each tile of depth, for many rows: fewer lines arrive too late,
// and more lines delay the loads of this panel.
constexpr int kLinesAhead = 3;
// Panels, or activations, of this many bytes stay in the second cache while the other operand is streamed.
constexpr std::ptrdiff_t kPanelsAtOnce = 768 << 10;
constexpr std::ptrdiff_t kRowsAtOnce = 256 << 10;

// The number of pieces of `bytes` that fit into `most`, but at least `fewest`.
inline int how_many(std::ptrdiff_t most, std::ptrdiff_t bytes, int fewest) {
    const int count = static_cast<int>(most / bytes);
    return count > fewest ? count : fewest;
}

// Calls `block(panel, first row, rows)` for all rows and panels of a task.
template <class E, class Block>
inline void for_blocks_in_tiles(const GemmTask& task, const Block& block) {
    const std::ptrdiff_t row_bytes = task.depth * static_cast<std::ptrdiff_t>(sizeof(typename E::Activation));
    const std::ptrdiff_t panel_bytes = task.depth / E::kStep * 2 * kCellBytes;
    const int panels = how_many(kPanelsAtOnce, panel_bytes, 1);
    const int rows = how_many(kRowsAtOnce, kTiledBlockRows * row_bytes, 1) * kTiledBlockRows;
    for (int panel = task.first_panel; panel < task.last_panel; panel += panels)
        for (int row = task.first_row; row < task.last_row; row += rows)
            for_blocks<kTiledBlockRows>(
                panel, task.last_panel - panel < panels ? task.last_panel : panel + panels, row,
                task.last_row - row < rows ? task.last_row : row + rows, block);
}

// Prefetches the panel after the current one, a few lines at a time.
template <class E>
class NextPanel {
public:
    NextPanel(const GemmTask& task, int panel)
        : at_(reinterpret_cast<const char*>(panel_of<E>(task, panel + 1))),
          end_(panel + 1 < task.last_panel ? reinterpret_cast<const char*>(panel_of<E>(task, panel + 2)) : at_) {}

    void prefetch_more() {
        if (at_ >= end_) return;
        for (int line = 0; line < kLinesAhead; line++) prefetch(at_, line * kCellBytes);
        at_ += kLinesAhead * kCellBytes;
    }

private:
    const char* at_;
    const char* const end_;
};

// One panel and its sums with some rows; the sums are passed from one range of steps to the next.
template <class E>
struct PanelInTiles {
    TileShapes& shapes;
    const GemmTask& task;
    int panel;
    int first_row;
    int rows;

    // Computes the sums of steps [begin, end), one tile of rows after the other. Calls `prefetches(cells)` before
    // each tile of depth.
    template <Passing kPassing, class Prefetches>
    void multiply(int begin, int end, const Prefetches& prefetches, const TileRowsAt<const typename E::Number>& from,
                  const TileRowsAt<typename E::Number>& to) const {
        const auto* x = static_cast<const typename E::Activation*>(task.x) + first_row * task.x_stride + begin * E::kStep;
        const typename E::Stored* w = panel_of<E>(task, panel) + 2 * begin * kCell<E>;
        const auto cells = [&](int step, int column) {
            if (column == 0) prefetches(w + 2 * step * kCell<E>);
            return w + (2 * step + column) * kCell<E>;
        };
        for (int row = 0; row < rows; row += kTilesRows) {
            TileRowsAt<const typename E::Number> sums = from;
            if (from.rows != nullptr) sums.rows += row * from.stride;
            multiply_in_tiles<E, 2, kPassing>(shapes, rows - row < kTilesRows ? rows - row : kTilesRows,
                                              {x + row * task.x_stride, task.x_stride}, cells, 2 * kCellBytes,
                                              end - begin, sums, {to.rows + row * to.stride, to.stride});
        }
    }

    // With few rows, memory is the bottleneck: they prefetch what they need next.
    void multiply_few(const TileRowsAt<typename E::Number>& y) const {
        const auto prefetches = [](const typename E::Stored* cells) {
            for (int cell = 0; cell < 2 * kTileSteps; cell++) prefetch(cells + cell * kCell<E>, kAheadAlone);
        };
        multiply<Passing::kCells>(0, task.depth / E::kStep, prefetches, {}, y);
    }

    // Sums of many rows wait in one contiguous buffer until their last steps, because rows of `y` may be far apart.
    void multiply_many(const TileRowsAt<typename E::Number>& y) const {
        alignas(64) typename E::Number waiting[kTiledBlockRows * kPanelColumns];
        NextPanel<E> next(task, panel);
        const auto prefetches = [&](const typename E::Stored*) { next.prefetch_more(); };
        const int steps = task.depth / E::kStep;
        const int times = (steps - 1) / kStepsAtOnce + 1;
        // Parts of about equal size.
        const int at_once = round_up((steps - 1) / times + 1, kTileSteps);
        for (int begin = 0; begin < steps; begin += at_once) {
            const TileRowsAt<const typename E::Number> from{begin == 0 ? nullptr : waiting, kPanelColumns};
            const bool is_last = begin + at_once >= steps;
            if (is_last) multiply<Passing::kActivations>(begin, steps, prefetches, from, y);
            else multiply<Passing::kActivations>(begin, begin + at_once, prefetches, from, {waiting, kPanelColumns});
        }
    }
};

// Computes the same as `multiply_panel`, in tile registers.
template <class E>
inline void multiply_panel_in_tiles(TileShapes& shapes, const GemmTask& task, int panel, int first_row, int rows,
                                    typename E::Number* y, std::ptrdiff_t y_stride) {
    const PanelInTiles<E> product{shapes, task, panel, first_row, rows};
    if (task.last_row - task.first_row <= kTilesRows) product.multiply_few({y, y_stride});
    else product.multiply_many({y, y_stride});
}

}  // namespace
}  // namespace weft
