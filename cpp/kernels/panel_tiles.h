// One panel of weights times some rows, in tile registers.
#pragma once

#include "kernels/panel.h"
#include "kernels/tiles.h"

namespace weft {
namespace {

constexpr int kTilesRows = 2 * kTileRows;  // multiplied together
// Activations of so many bytes stay in the second cache while all panels of a task pass by.
constexpr std::ptrdiff_t kTilesBytes = 512 << 10;

// As `for_blocks`, for all rows of a task.
template <class E, class Block>
inline void for_blocks_in_tiles(const GemmTask& task, const Block& block) {
    const std::ptrdiff_t row_bytes = task.depth * static_cast<std::ptrdiff_t>(sizeof(typename E::Activation));
    const int fitting = static_cast<int>(kTilesBytes / row_bytes) / kBlockRows * kBlockRows;
    const int size = fitting > kBlockRows ? fitting : kBlockRows;
    for (int row = 0; row < task.rows; row += size)
        for_blocks(task, row, task.rows - row < size ? task.rows : row + size, block);
}

// As `multiply_panel`.
template <class E>
inline void multiply_panel_in_tiles(TileShapes& shapes, const GemmTask& task, int panel, int first_row, int rows,
                                    typename E::Number* y, std::ptrdiff_t y_stride) {
    const auto* x = static_cast<const typename E::Activation*>(task.x) + first_row * task.x_stride;
    const int steps = task.depth / E::kStep;
    const int count = (rows + kTilesRows - 1) / kTilesRows;
    const bool is_first_pass = first_row == 0;
    const Cells cells{!is_first_pass || panel > task.first_panel,
                      is_first_pass && panel + 1 < task.last_panel};
    const typename E::Stored* w = panel_of<E>(task, panel);
    for (int tile = 0; tile < count; tile++) {
        const int row = tile * kTilesRows;
        const std::ptrdiff_t ahead[] = {ahead_of_tile(cells, tile, count, 0, steps),
                                        ahead_of_tile(cells, tile, count, 1, steps)};
        const auto at = [&](int step, int column) {
            const typename E::Stored* p = w + (2 * step + column) * kCell<E>;
            if (ahead[column] != 0)
                for (int s = 0; s < kTileSteps; s++) ask(p + 2 * s * kCell<E>, ahead[column]);
            return p;
        };
        multiply_in_tiles<E, 2>(shapes, rows - row < kTilesRows ? rows - row : kTilesRows,
                                {x + row * task.x_stride, task.x_stride}, at, 2 * kCellBytes, steps,
                                {y + row * y_stride, y_stride});
    }
}

}  // namespace
}  // namespace weft
