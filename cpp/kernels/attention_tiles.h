// The products of attention in tile registers.
#pragma once

#include "kernels/attention.h"
#include "kernels/tiles.h"

namespace weft {
namespace {

template <class E>
class AttentionInTiles : public Attention<E, AttentionInTiles<E>> {
    using Base = Attention<E, AttentionInTiles<E>>;
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
    static constexpr int kTilesPerTurn = 4;  // also the number of streams from memory
    // With more rows the data is already in a cache, because another task has just read it.
    static constexpr int kRowsThatWait = kTileRows;

    TileShapes shapes;
    alignas(64) std::byte widened[kTileSteps * kTileRowBytes];

    // `body(first row, rows)`, up to as many as two tiles hold.
    template <class Body>
    void for_rows(const Body& body) const {
        constexpr int kMost = 2 * kTileRows;
        for (int row = 0; row < span.num_rows; row += kMost)
            body(span.first_row + row, span.num_rows - row < kMost ? span.num_rows - row : kMost);
    }

    // Prefetches the data that a few rows read after `count` cells of a tile.
    void prefetch_after(const Stored* cells, int count, int index, const Later& later) const {
        if (span.num_rows > kRowsThatWait) return;
        const std::ptrdiff_t distance = this->ahead(index, later);
        if (distance == 0) return;
        for (int s = 0; s < count; s++) prefetch(cells + s * kCell<E>, distance);
    }

    void score_turn(int begin, int end, int head, const Later& later) {
        for_rows([&](int first, int height) {
            const Range seen = this->seen_of({begin, end}, first, height);
            for_columns<2>(seen.end - seen.begin, [&](int tile, auto count) {
                score_tiles<decltype(count)::value>(seen.begin + tile, head, first, height, later);
            });
        });
    }

    template <int kColumns>
    void score_tiles(int index, int head, int first, int height, const Later& later) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + first;
        const auto cells = [&](int step, int column) {
            const Stored* p = this->keys(index + column, head) + step * kCell<E>;
            const int left = task.padded_dim / E::kStep - step;
            const int count = left < kTileSteps ? left : kTileSteps;
            prefetch_after(p, count, index + column, later);
            return cells_at(p, count);
        };
        multiply_in_tiles<E, kColumns, Passing::kNone>(
            shapes, height, {queries + at * task.padded_dim, task.padded_dim}, cells, kCellBytes,
            task.padded_dim / E::kStep, {}, {scores + at * width + (index - turn.begin) * kLanes, width});
    }

    void combine_turn(int begin, int end, int head, const Later& later) {
        for_rows([&](int first, int height) {
            const Range seen = this->seen_of({begin, end}, first, height);
            if (seen.begin >= seen.end) return;
            for_columns<2>(columns.end - columns.begin, [&](int at, auto count) {
                const int column = (columns.begin + at) * kLanes;
                if (height > kTileRows)
                    combine_tiles<2, decltype(count)::value>(seen.begin, seen.end, head, column, first, height, later);
                else
                    combine_tiles<1, decltype(count)::value>(seen.begin, seen.end, head, column, first, height, later);
            });
        });
    }

    // Multiplies weights of a few rows by the values of tiles [begin, end), and adds the result to that of earlier
    // tiles.
    template <int kHigh, int kColumns>
    void combine_tiles(int begin, int end, int head, int column, int first, int height, const Later& later) {
        constexpr int kSteps = kLanes / E::kStep;  // steps of the tokens in a tile
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + first;
        const auto cells = [&](int tile, int j) {
            const Stored* p = this->values(begin + tile, head) + (column + j * kLanes) * kLanes;
            prefetch_after(p, kSteps, begin + tile, later);
            return cells_at(p, kSteps);
        };
        float* out = outputs + at * task.padded_dim + column;
        shapes.set(height, kSteps);
        product_in_tiles<E, kHigh, kColumns, Passing::kNone>(
            {weights + at * width + (begin - turn.begin) * kLanes, width}, kLanes, cells, kCellBytes, end - begin,
            {out, task.padded_dim}, {out, task.padded_dim});
    }

    // For an int8 cache the cells are widened, one column of a tile at a time, and loaded at once.
    const void* cells_at(const Stored* p, int count) {
        if constexpr (!Base::kIsScaled) return p;
        for (int s = 0; s < count; s++) E::store_cell(widened + s * kTileRowBytes, E::load_cell(p + s * kCell<E>));
        return widened;
    }
};

}  // namespace
}  // namespace weft
