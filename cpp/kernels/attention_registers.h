// The products of attention in vector registers.
#pragma once

#include <type_traits>

#include "kernels/attention.h"

namespace weft {
namespace {

// Up to this many rows, a tile must be prefetched, because multiplying the previous tile takes too little time.
constexpr int kFewRows = 4;
// Values of up to this many bytes are prefetched together with the keys: they wait in the second cache.
constexpr std::ptrdiff_t kWaiting = 256 << 10;

// Columns that fit the registers beside `kRows` rows: few rows alone would wait for each other's sums.
template <class E, int kRows>
constexpr int kColumnsBeside = kRows * 8 <= kMaxRows<E> * kWide   ? 8
                               : kRows * 4 <= kMaxRows<E> * kWide ? 4
                               : kRows * 2 <= kMaxRows<E> * kWide ? 2
                                                                  : 1;

template <class E>
class AttentionInRegisters : public Attention<E, AttentionInRegisters<E>> {
    using Base = Attention<E, AttentionInRegisters<E>>;
    friend Base;
    using typename Base::Act;
    using typename Base::Later;
    using typename Base::Range;
    using typename Base::Stored;
    using Base::columns;
    using Base::outputs;
    using Base::queries;
    using Base::rows;
    using Base::scores;
    using Base::span;
    using Base::task;
    using Base::turn;
    using Base::weights;
    using Base::width;

public:
    using Base::Base;

private:
    static constexpr int kTilesPerTurn = 8;  // columns that fit the registers with a few rows
    // Copying does not help if columns are processed one by one.
    static constexpr bool kCopies = kWide > 1;
    // Number of tiles of rows from which a copy saves time: with two tiles it did not.
    static constexpr int kTilesThatCopy = 3;

    alignas(64) Stored copies[kCopies ? kTilesPerBlock * kWide * Base::kColumnSize : 1];

    void score_turn(int begin, int end, int head, const Later& later) {
        for_tiles<E>(span.num_rows, [&](int row, auto height, int) {
            const int first = span.first_row + row;
            constexpr int kRows = decltype(height)::value;
            const Range seen = this->seen_of({begin, end}, first, kRows);
            for_columns<kColumnsBeside<E, kRows>>(seen.end - seen.begin, [&](int tile, auto count) {
                score_rows<kRows, decltype(count)::value>(seen.begin + tile, head, first, later, row == 0);
            });
        });
    }

    // The distance in bytes from a key to the value at the same place, if the value can wait in the second cache.
    std::ptrdiff_t to_values(int index) const {
        const auto head_bytes = this->head_size * static_cast<std::ptrdiff_t>(sizeof(Stored));
        if (task.values == nullptr || task.num_shares > 1) return 0;
        if ((index - span.first_tile) * this->num_heads() * head_bytes >= kWaiting) return 0;
        return static_cast<const char*>(task.values) - static_cast<const char*>(task.keys);
    }

    // Prefetches all values of a tile at once, if there are many rows.
    void prefetch_values(int index, int head) const {
        const std::ptrdiff_t distance = to_values(index);
        if (distance == 0) return;
        constexpr std::ptrdiff_t kLine = kCellBytes / sizeof(Stored);
        for (std::ptrdiff_t at = 0; at < this->head_size; at += kLine) prefetch(this->keys(index, head) + at, distance);
    }

    template <int kRows, int kColumns>
    void score_rows(int index, int head, int first, const Later& later, bool is_prefetching) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + first;
        std::conditional_t<(kRows <= kFewRows), TwoColumns<E, kColumns>, Columns<E, kColumns>> tiles;
        tiles.step = kCell<E>;
        for (int j = 0; j < kColumns; j++) {
            tiles.cells[j] = this->keys(index + j, head);
            tiles.ahead[j] = is_prefetching ? this->ahead(index + j, later) : 0;
            if constexpr (kRows <= kFewRows) tiles.beside[j] = is_prefetching ? to_values(index + j) : 0;
            else if (is_prefetching) prefetch_values(index + j, head);
        }
        product<E, kRows, kColumns>(queries + at * task.padded_dim, task.padded_dim, tiles,
                                    task.padded_dim / E::kStep,
                                    scores + at * width + (index - turn.begin) * kLanes, width, false);
    }

    void combine_turn(int begin, int end, int head, const Later& later) {
        if constexpr (kCopies) {
            if (num_tiles<E>(span.num_rows) >= kTilesThatCopy) return combine_copies(begin, end, head);
        }
        for_tiles<E>(span.num_rows, [&](int row, auto height, int) {
            const int first = span.first_row + row;
            constexpr int kRows = decltype(height)::value;
            const Range seen = this->seen_of({begin, end}, first, kRows);
            if (seen.begin >= seen.end) return;
            for_columns<kColumnsBeside<E, kRows>>(columns.end - columns.begin, [&](int at, auto count) {
                const int column = (columns.begin + at) * kLanes;
                combine_rows<kRows, decltype(count)::value>(seen.begin, seen.end, head, column, first, later);
            });
        });
    }

    // Many rows read a few columns of all tiles repeatedly, so they read a copy whose cells are contiguous.
    void combine_copies(int begin, int end, int head) {
        for_columns<kWide>(columns.end - columns.begin, [&](int at, auto count) {
            constexpr int kColumns = decltype(count)::value;
            const int column = (columns.begin + at) * kLanes;
            copy_columns<kColumns>(begin, end, head, column);
            for_tiles<E>(span.num_rows, [&](int row, auto height, int) {
                constexpr int kRows = decltype(height)::value;
                const int first = span.first_row + row;
                const Range seen = this->seen_of({begin, end}, first, kRows);
                if (seen.begin >= seen.end) return;
                const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(head) * rows + first;
                Columns<E, kColumns> cells{};
                cells.step = kColumns * kCell<E>;
                for (int j = 0; j < kColumns; j++)
                    cells.cells[j] = copies + (seen.begin - begin) * kColumns * Base::kColumnSize + j * kCell<E>;
                product<E, kRows, kColumns>(weights + place * width + (seen.begin - turn.begin) * kLanes, width, cells,
                                            (seen.end - seen.begin) * kLanes / E::kStep,
                                            outputs + place * task.padded_dim + column, task.padded_dim, true);
            });
        });
    }

    template <int kColumns>
    void copy_columns(int begin, int end, int head, int column) {
        Stored* to = copies;
        for (int index = begin; index < end; index++) {
            const Stored* from = this->values(index, head) + column * kLanes;
            for (int s = 0; s < kLanes / E::kStep; s++)
                for (int j = 0; j < kColumns; j++, to += kCell<E>)
                    std::memcpy(to, from + j * Base::kColumnSize + s * kCell<E>, kCell<E> * sizeof(Stored));
        }
    }

    // Multiplies weights of a few rows by the values of tiles [begin, end), and adds the result to that of earlier
    // tiles.
    template <int kRows, int kColumns>
    void combine_rows(int begin, int end, int head, int column, int first, const Later& later) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + first;
        float* out = outputs + at * task.padded_dim + column;
        Lanes sum[kRows][kColumns];
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++)
#pragma GCC unroll 8
            for (int j = 0; j < kColumns; j++)
                sum[m][j] = load(out + m * task.padded_dim + j * kLanes);
        for (int index = begin; index < end; index++) {
            const Stored* v = this->values(index, head) + column * kLanes;
            const Act* w = weights + at * width + (index - turn.begin) * kLanes;
            const std::ptrdiff_t distance = this->ahead(index, later);
            for (int s = 0; s < kLanes / E::kStep; s++) {
                typename E::Cell cell[kColumns];
#pragma GCC unroll 8
                for (int j = 0; j < kColumns; j++) {
                    const Stored* p = v + j * kLanes * kLanes + s * kCell<E>;
                    if (kRows <= kFewRows) prefetch(p, distance);
                    cell[j] = E::load_cell(p);
                }
#pragma GCC unroll 16
                for (int m = 0; m < kRows; m++)
#pragma GCC unroll 8
                    for (int j = 0; j < kColumns; j++)
                        sum[m][j] = E::dot(sum[m][j], cell[j], w + m * width + s * E::kStep);
            }
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++)
#pragma GCC unroll 8
            for (int j = 0; j < kColumns; j++) store(out + m * task.padded_dim + j * kLanes, sum[m][j]);
    }
};

template <class E>
void attend(const AttentionTask& task) {
    AttentionInRegisters<E>(task).run();
}

}  // namespace
}  // namespace weft
