// The micro-kernel: a few rows of activations times one or two columns of cells, in registers.
#pragma once

#include <cstddef>

#include "kernels/elements.h"

namespace weft {
namespace {

// How far ahead of its use, in bytes, a cell is asked for while weights stream from memory: from one of
// several panels side by side, and from one alone.
constexpr int kAhead = 2048;
constexpr int kAheadAlone = 6144;

// Columns of cells side by side: where each begins, and how far ahead of each to ask memory for more (0:
// there is nothing to ask for, and asking for what is at hand costs nothing that shows).
template <class E, int kWide>
struct Columns {
    const typename E::Stored* cells[kWide];
    std::ptrdiff_t ahead[kWide];  // in bytes
    std::ptrdiff_t step;          // from one cell of a column to the next, in elements
};

// The same, and what lies `beside` each cell, in bytes, is asked for too.
template <class E, int kWide>
struct TwoColumns : Columns<E, kWide> {
    std::ptrdiff_t beside[kWide];
};

inline void ask(const void* p, std::ptrdiff_t ahead) { prefetch(static_cast<const char*>(p) + ahead); }

template <class E, int kRows, int kWide, class W>
inline void product(const typename E::Activation* x, std::ptrdiff_t x_stride, const W& w,
                    int num_steps, typename E::Number* y, std::ptrdiff_t y_stride, bool accumulate) {
    typename E::Sum sum[kRows][kWide];
    for (int m = 0; m < kRows; m++)
        for (int j = 0; j < kWide; j++)
            sum[m][j] = accumulate ? load(y + m * y_stride + j * kLanes) : E::zero();
    for (int s = 0; s < num_steps; s++) {
        typename E::Cell cell[kWide];
#pragma GCC unroll 8
        for (int j = 0; j < kWide; j++) {
            const typename E::Stored* p = w.cells[j] + s * w.step;
            ask(p, w.ahead[j]);
            if constexpr (requires { w.beside; }) ask(p, w.beside[j]);
            cell[j] = E::load_cell(p);
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++)
#pragma GCC unroll 8
            for (int j = 0; j < kWide; j++)
                sum[m][j] = E::dot(sum[m][j], cell[j], x + m * x_stride + s * E::kStep);
    }
    for (int m = 0; m < kRows; m++)
        for (int j = 0; j < kWide; j++) store(y + m * y_stride + j * kLanes, sum[m][j]);
}

// A number as a type, so that a body can be made for each.
template <int kNumber>
struct Constant {
    static constexpr int value = kNumber;
};

template <int kMost, class Body>
inline void with_height(int height, const Body& body) {
    if constexpr (kMost > 1) {
        if (height < kMost) return with_height<kMost - 1>(height, body);
    }
    body(Constant<kMost>{});
}

template <class E>
inline int num_tiles(int rows) {
    return (rows + kMaxRows<E> - 1) / kMaxRows<E>;
}

// Any number of rows in tiles of nearly equal height: `body(first row, height, tile)`.
template <class E, class Body>
inline void for_tiles(int rows, const Body& body) {
    const int count = num_tiles<E>(rows);
    for (int tile = 0; tile < count; tile++) {
        const int first = rows * tile / count;
        const int height = rows * (tile + 1) / count - first;
        with_height<kMaxRows<E>>(height, [&](auto kRows) { body(first, kRows, tile); });
    }
}

// Any number of columns, as many at a time as `kMost` and then fewer: `body(first column, width)`.
template <int kMost, class Body>
inline void for_columns(int count, const Body& body) {
    int at = 0;
    for (; at + kMost <= count; at += kMost) body(at, Constant<kMost>{});
    if constexpr (kMost > 1) {
        if (at < count)
            for_columns<kMost / 2>(count - at, [&](int first, auto kWide) { body(at + first, kWide); });
    }
}

}  // namespace
}  // namespace weft
