// The micro-kernel: a few rows of activations times one or two columns of cells, in registers.
#pragma once

#include <cstddef>

#include "kernels/elements.h"

namespace weft {
namespace {

// How far ahead of its use a cell is asked for while weights stream from memory.
constexpr int kAhead = 2048;

// Where cells lie: `step` elements apart, from `cells[0]` and, for two columns, from `cells[1]`.
template <class E>
struct Columns {
    const typename E::Stored* cells[2];
    std::ptrdiff_t step;
};

template <class E, int kRows, int kWide, bool kPrefetch>
inline void product(const typename E::Activation* x, std::ptrdiff_t x_stride, const Columns<E>& w,
                    int num_steps, float* y, std::ptrdiff_t y_stride, bool accumulate) {
    Lanes sum[kRows][kWide];
    for (int m = 0; m < kRows; m++)
        for (int j = 0; j < kWide; j++)
            sum[m][j] = accumulate ? load(y + m * y_stride + j * kLanes) : splat(0.0F);
    for (int s = 0; s < num_steps; s++) {
        typename E::Cell cell[kWide];
        for (int j = 0; j < kWide; j++) {
            const typename E::Stored* p = w.cells[j] + s * w.step;
            if (kPrefetch) prefetch(reinterpret_cast<const char*>(p) + kAhead);
            cell[j] = E::load_cell(p);
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++)
#pragma GCC unroll 2
            for (int j = 0; j < kWide; j++)
                sum[m][j] = E::dot(sum[m][j], cell[j], x + m * x_stride + s * E::kStep);
    }
    for (int m = 0; m < kRows; m++)
        for (int j = 0; j < kWide; j++) store(y + m * y_stride + j * kLanes, sum[m][j]);
}

// The same for a number of rows known at run time, from 1 to kMaxRows<E>.
template <class E, int kWide, bool kPrefetch, int kRows = kMaxRows<E>>
inline void product_rows(int rows, const typename E::Activation* x, std::ptrdiff_t x_stride,
                         const Columns<E>& w, int num_steps, float* y, std::ptrdiff_t y_stride,
                         bool accumulate) {
    if constexpr (kRows > 1) {
        if (rows < kRows)
            return product_rows<E, kWide, kPrefetch, kRows - 1>(rows, x, x_stride, w, num_steps, y,
                                                                y_stride, accumulate);
    }
    product<E, kRows, kWide, kPrefetch>(x, x_stride, w, num_steps, y, y_stride, accumulate);
}

// Any number of rows, in tiles of nearly equal height.
template <class E, int kWide>
inline void product_tiles(int rows, const typename E::Activation* x, std::ptrdiff_t x_stride,
                          const Columns<E>& w, int num_steps, float* y, std::ptrdiff_t y_stride,
                          bool accumulate) {
    const int num_tiles = (rows + kMaxRows<E> - 1) / kMaxRows<E>;
    for (int tile = 0; tile < num_tiles; tile++) {
        const int first = rows * tile / num_tiles;
        const int height = rows * (tile + 1) / num_tiles - first;
        const typename E::Activation* xs = x + first * x_stride;
        float* ys = y + first * y_stride;
        // The first pass over the cells takes them from memory, later ones from the cache.
        if (tile == 0)
            product_rows<E, kWide, true>(height, xs, x_stride, w, num_steps, ys, y_stride, accumulate);
        else
            product_rows<E, kWide, false>(height, xs, x_stride, w, num_steps, ys, y_stride, accumulate);
    }
}

}  // namespace
}  // namespace weft
