// The micro-kernel: a few rows of activations times one or two columns of cells, in registers.
#pragma once

#include <cstddef>

#include "kernels/elements.h"

namespace weft {
namespace {

// Prefetch distance of cells in bytes, while weights stream from memory: for one of several panels side by side, and
// for a single panel.
constexpr int kAhead = 2048;
constexpr int kAheadAlone = 6144;

inline void prefetch(const void* p, std::ptrdiff_t ahead) { prefetch(static_cast<const char*>(p) + ahead); }

// Columns of cells side by side: where each begins, and the prefetch distance of each (0: nothing to prefetch;
// prefetching data that is in the cache has no measurable cost).
template <class E, int kWide>
struct Columns {
    const typename E::Stored* cells[kWide];
    std::ptrdiff_t ahead[kWide];  // in bytes
    std::ptrdiff_t step;  // elements from one cell of a column to the next

    const typename E::Stored* cell(int s, int j) const { return cells[j] + s * step; }
    void prefetch_beside(int s, int j) const { prefetch(cell(s, j), ahead[j]); }
};

// Also prefetches the data `beside` bytes from each cell.
template <class E, int kWide>
struct TwoColumns : Columns<E, kWide> {
    std::ptrdiff_t beside[kWide];

    void prefetch_beside(int s, int j) const {
        Columns<E, kWide>::prefetch_beside(s, j);
        prefetch(this->cell(s, j), beside[j]);
    }
};

// One or both columns of a panel, whose cells alternate. A step prefetches a line for each column, `prefetched_step`
// bytes after the lines of the previous step.
template <class E, int kWide>
struct PanelColumns {
    const typename E::Stored* first;
    const char* prefetched;
    std::ptrdiff_t prefetched_step;

    const typename E::Stored* cell(int s, int j) const { return first + (2 * s + j) * kCell<E>; }
    void prefetch_beside(int s, int j) const { prefetch(prefetched + s * prefetched_step + j * kCellBytes); }
};

// True if the CPU multiplies two of these rows at once, by two steps of depth.
template <class E, int kRows>
concept InTwos = kRows > 1 && requires { typename E::TwoRows; };

template <class E, int kRows, int kWide, class W>
    requires(!InTwos<E, kRows>)
inline void product(const typename E::Activation* x, std::ptrdiff_t x_stride, const W& w,
                    int num_steps, typename E::Number* y, std::ptrdiff_t y_stride, bool accumulate) {
    typename E::Sum sum[kRows][kWide];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++)
#pragma GCC unroll 8
        for (int j = 0; j < kWide; j++)
            sum[m][j] = accumulate ? load(y + m * y_stride + j * kLanes) : E::zero();
    // Lets gcc avoid a copy of the first sums on the stack.
    if (num_steps <= 0) __builtin_unreachable();
    for (int s = 0; s < num_steps; s++) {
        typename E::Cell cell[kWide];
#pragma GCC unroll 8
        for (int j = 0; j < kWide; j++) {
            w.prefetch_beside(s, j);
            cell[j] = E::load_cell(w.cell(s, j));
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++)
#pragma GCC unroll 8
            for (int j = 0; j < kWide; j++)
                sum[m][j] = E::dot(sum[m][j], cell[j], x + m * x_stride + s * E::kStep);
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++)
#pragma GCC unroll 8
        for (int j = 0; j < kWide; j++) store(y + m * y_stride + j * kLanes, sum[m][j]);
}

// The same for pairs of rows: `num_steps` is even; an odd last row is computed twice.
template <class E, int kRows, int kWide, class W>
    requires InTwos<E, kRows>
inline void product(const typename E::Activation* x, std::ptrdiff_t x_stride, const W& w,
                    int num_steps, typename E::Number* y, std::ptrdiff_t y_stride, bool accumulate) {
    constexpr int kPairs = (kRows + 1) / 2;
    const auto other = [](int pair) { return 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair; };
    typename E::TwoRows sum[kPairs][kWide];
    for (int m = 0; m < kPairs; m++)
        for (int j = 0; j < kWide; j++) {
            typename E::Number* at = y + j * kLanes;
            sum[m][j] = accumulate ? E::join(load(at + 2 * m * y_stride), load(at + other(m) * y_stride))
                                   : E::join(E::zero(), E::zero());
        }
    for (int s = 0; s < num_steps; s += 2)
#pragma GCC unroll 8
        for (int j = 0; j < kWide; j++) {
            for (int step = 0; step < 2; step++) w.prefetch_beside(s + step, j);
            const auto cells = E::two_cells(E::load_cell(w.cell(s, j)), E::load_cell(w.cell(s + 1, j)));
            const typename E::Activation* at = x + s * E::kStep;
#pragma GCC unroll 8
            for (int m = 0; m < kPairs; m++)
                E::multiply(sum[m][j], cells, at + 2 * m * x_stride, at + other(m) * x_stride);
        }
    for (int m = 0; m < kPairs; m++)
        for (int j = 0; j < kWide; j++) {
            typename E::Sum rows[2];
            E::split(sum[m][j], rows[0], rows[1]);
            for (int i = 0; i < 2 && 2 * m + i < kRows; i++) store(y + (2 * m + i) * y_stride + j * kLanes, rows[i]);
        }
}

// A number as a type, so that the compiler makes one copy of a function body for each number.
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

// Calls `body(first row, height, tile)` for any number of rows, in tiles of nearly equal height.
template <class E, class Body>
inline void for_tiles(int rows, const Body& body) {
    const int count = num_tiles<E>(rows);
    for (int tile = 0; tile < count; tile++) {
        const int first = rows * tile / count;
        const int height = rows * (tile + 1) / count - first;
        with_height<kMaxRows<E>>(height, [&](auto kRows) { body(first, kRows, tile); });
    }
}

// Calls `body(first column, width)` for any number of columns, `kMost` at a time and then fewer.
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
