// One panel of weights times some rows, in tile registers.
#pragma once

#include "kernels/panel.h"
#include "kernels/tiles.h"

namespace weft {
namespace {

constexpr int kTiledBlockRows = 192;       // handled before the next panel
constexpr int kTilesRows = 2 * kTileRows;  // multiplied together
// So many steps of a panel, 36 KB of it, stay in the first cache while rows pass by.
constexpr int kStepsAtOnce = 18 * kTileSteps;
// Panels and activations of so many bytes stay in the second cache while the others pass by.
constexpr std::ptrdiff_t kPanelsAtOnce = 768 << 10;
constexpr std::ptrdiff_t kRowsAtOnce = 256 << 10;

// How many pieces of `bytes` make up no more than `most`, but at least `fewest`.
inline int how_many(std::ptrdiff_t most, std::ptrdiff_t bytes, int fewest) {
    const int count = static_cast<int>(most / bytes);
    return count > fewest ? count : fewest;
}

// All rows and panels of a task: `block(panel, first row, rows)`.
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

// Sums of some rows times one panel, from `begin` to `end` of its steps, for one tile of rows after the other.
template <class E, Passing kPassing>
inline void multiply_steps_in_tiles(TileShapes& shapes, const GemmTask& task, int panel, int first_row, int rows,
                                    int begin, int end, typename E::Number* y, std::ptrdiff_t y_stride) {
    const auto* x = static_cast<const typename E::Activation*>(task.x) + first_row * task.x_stride + begin * E::kStep;
    const typename E::Stored* w = panel_of<E>(task, panel) + 2 * begin * kCell<E>;
    const auto cells = [&](int step, int column) {
        const typename E::Stored* p = w + (2 * step + column) * kCell<E>;
        // Few rows wait for memory; more are better off when their own loads come first.
        if constexpr (kPassing == Passing::kCells)
            for (int s = 0; s < kTileSteps; s++) ask(p + 2 * s * kCell<E>, kAheadAlone);
        return p;
    };
    for (int row = 0; row < rows; row += kTilesRows)
        multiply_in_tiles<E, 2, kPassing>(shapes, rows - row < kTilesRows ? rows - row : kTilesRows,
                                          {x + row * task.x_stride, task.x_stride}, cells, 2 * kCellBytes,
                                          end - begin, {y + row * y_stride, y_stride}, begin > 0);
}

// As `multiply_panel`.
template <class E>
inline void multiply_panel_in_tiles(TileShapes& shapes, const GemmTask& task, int panel, int first_row, int rows,
                                    typename E::Number* y, std::ptrdiff_t y_stride) {
    const int steps = task.depth / E::kStep;
    if (task.last_row - task.first_row <= kTilesRows)
        return multiply_steps_in_tiles<E, Passing::kCells>(shapes, task, panel, first_row, rows, 0, steps, y, y_stride);
    for (int begin = 0; begin < steps; begin += kStepsAtOnce)
        multiply_steps_in_tiles<E, Passing::kActivations>(
            shapes, task, panel, first_row, rows, begin,
            steps - begin < kStepsAtOnce ? steps : begin + kStepsAtOnce, y, y_stride);
}

}  // namespace
}  // namespace weft
