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

// A height as a type, so that a body can be made for each.
template <int kRows>
struct Height {
    static constexpr int value = kRows;
};

template <int kMost, class Body>
inline void with_height(int height, const Body& body) {
    if constexpr (kMost > 1) {
        if (height < kMost) return with_height<kMost - 1>(height, body);
    }
    body(Height<kMost>{});
}

// Any number of rows in tiles of nearly equal height: `body(first row, height, is first tile)`.
template <class E, class Body>
inline void for_tiles(int rows, const Body& body) {
    const int num_tiles = (rows + kMaxRows<E> - 1) / kMaxRows<E>;
    for (int tile = 0; tile < num_tiles; tile++) {
        const int first = rows * tile / num_tiles;
        const int height = rows * (tile + 1) / num_tiles - first;
        with_height<kMaxRows<E>>(height, [&](auto kRows) { body(first, kRows, tile == 0); });
    }
}

template <class E, int kWide>
inline void product_tiles(int rows, const typename E::Activation* x, std::ptrdiff_t x_stride,
                          const Columns<E>& w, int num_steps, float* y, std::ptrdiff_t y_stride,
                          bool accumulate) {
    for_tiles<E>(rows, [&](int first, auto height, bool is_first) {
        constexpr int kRows = decltype(height)::value;
        const typename E::Activation* xs = x + first * x_stride;
        float* ys = y + first * y_stride;
        // The first pass over the cells takes them from memory, later ones from the cache.
        if (is_first)
            product<E, kRows, kWide, true>(xs, x_stride, w, num_steps, ys, y_stride, accumulate);
        else
            product<E, kRows, kWide, false>(xs, x_stride, w, num_steps, ys, y_stride, accumulate);
    });
}

}  // namespace
}  // namespace weft
