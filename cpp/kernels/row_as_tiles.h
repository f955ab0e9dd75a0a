// One row of bfloat16 times panels, in AVX-512 registers, with the same bits as tile registers.
#pragma once

#include <cstring>

#include "kernels/panel.h"
#include "kernels/tiles.h"

namespace weft {
namespace {

// Tile registers treat subnormal inputs as zeros, and flush subnormal results to zero.
class FlushSubnormals {
public:
    FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlush | kTakeAsZeros); }
    FlushSubnormals(const FlushSubnormals&) = delete;
    FlushSubnormals& operator=(const FlushSubnormals&) = delete;
    ~FlushSubnormals() { _mm_setcsr(before_); }

private:
    static constexpr unsigned kFlush = 0x8000;
    static constexpr unsigned kTakeAsZeros = 0x0040;
    const unsigned before_;
};

// Adds the result of one tile of depth, or of a partial one: sums of first and of second elements separately.
template <int kPanels>
inline void add_tile(const std::uint16_t* x, const std::uint16_t* w, std::ptrdiff_t panel_size, int steps,
                     std::ptrdiff_t ahead, Lanes (&sum)[kPanels][2]) {
    Lanes first[kPanels][2];
    Lanes second[kPanels][2];
    for (int i = 0; i < kPanels; i++)
        for (int j = 0; j < 2; j++) first[i][j] = second[i][j] = splat(0.0F);
    for (int s = 0; s < steps; s++) {
        std::uint32_t pair;
        std::memcpy(&pair, x + 2 * s, sizeof pair);
        const Lanes x_first = splat(__builtin_bit_cast(float, pair << 16));
        const Lanes x_second = splat(__builtin_bit_cast(float, pair & 0xFFFF0000U));
#pragma GCC unroll 8
        for (int i = 0; i < kPanels; i++)
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                const std::uint16_t* p = w + i * panel_size + (2 * s + j) * 2 * kLanes;
                prefetch(p, ahead);
                Lanes w_first;
                Lanes w_second;
                split_pairs(p, w_first, w_second);
                first[i][j] = fma(x_first, w_first, first[i][j]);
                second[i][j] = fma(x_second, w_second, second[i][j]);
            }
    }
    for (int i = 0; i < kPanels; i++)
        for (int j = 0; j < 2; j++) sum[i][j] = add(sum[i][j], add(first[i][j], second[i][j]));
}

// Computes the same as `sum_row`, in AVX-512 registers.
template <int kPanels>
inline void sum_row_as_tiles(const GemmTask& task, int panel, Lanes (&sum)[kPanels][2]) {
    const FlushSubnormals flush;
    const auto* x = static_cast<const std::uint16_t*>(task.x);
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(task.depth) * kPanelColumns;
    const std::uint16_t* w = static_cast<const std::uint16_t*>(task.panels) + panel * size;
    const int all_steps = task.depth / 2;
    constexpr int kStepsAhead = kAhead / (2 * kCellBytes);
    for (auto& pair : sum) pair[0] = pair[1] = splat(0.0F);
    for (int step = 0; step < all_steps; step += kTileSteps) {
        const int left = all_steps - step;
        // The panel that follows in memory belongs to these panels: prefetch the panel that follows all of them.
        const std::ptrdiff_t others = left > kStepsAhead ? 0 : (kPanels - 1) * size * 2;
        add_tile<kPanels>(x + 2 * step, w + step * 2 * kPanelColumns, size, left < kTileSteps ? left : kTileSteps,
                          kAhead + others, sum);
    }
}

}  // namespace
}  // namespace weft
