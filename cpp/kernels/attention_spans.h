// Which rows of a task of attention see which keys: in tiles of one sequence, and in turns of as many blocks as are
// kept at a time. Nothing here depends on the type of elements.
#pragma once

#include "kernels/kernels.h"

namespace weft {
namespace {

struct AttentionSpans {
    explicit AttentionSpans(const AttentionTask& t) : task(t) {
        tokens = t.last_row - t.first_row;
        rows = tokens * t.group;
        const Range keys = keys_of(0, tokens);
        all = span_of(tiles_of(0), keys.begin, keys.end, 0, tokens);
        blocks_at_once = attention_blocks_at_once(num_heads() * rows, t.num_shares);
        begin_turn(all.first_tile);
    }

protected:
    // Rows and the keys that any of them sees, in tiles of one sequence.
    struct Span {
        const std::int32_t* tiles;
        int first_key, end_key;
        int first_tile, end_tile;
        int first_row, num_rows;
        int whole_end;  // the end after the last tile, over all turns
    };
    struct Range {
        int begin, end;
    };

    const AttentionTask& task;
    int tokens, rows;
    Span all, span;  // the whole task, and the part being processed
    Range turn;  // range of tiles whose scores and weights are kept
    int blocks_at_once;

    static int lesser(int a, int b) { return a < b ? a : b; }

    int num_heads() const { return task.last_head - task.first_head; }

    int most_tiles() const { return blocks_at_once * kTilesPerBlock; }

    // Begins a turn: as many blocks as are processed at once, from the block of this tile on.
    void begin_turn(int tile) {
        turn = {tile, lesser(all.end_tile, tile / kTilesPerBlock * kTilesPerBlock + most_tiles())};
    }

    Range share_of(int count) const {
        return {count * task.share / task.num_shares, count * (task.share + 1) / task.num_shares};
    }

    int row_of(int token) const {
        return task.order == nullptr ? task.first_row + token : task.order[task.first_row + token];
    }
    int position_of(int token) const { return task.positions[row_of(token)]; }
    const std::int32_t* tiles_of(int token) const {
        return task.order == nullptr ? task.tiles : task.tiles + task.row_tiles[row_of(token)];
    }

    Span span_of(const std::int32_t* tiles, int first_key, int end_key, int first_token, int num_tokens) const {
        return {tiles, first_key, end_key, first_key / kLanes, (end_key - 1) / kLanes + 1,
                first_token * task.group, num_tokens * task.group, (end_key - 1) / kLanes + 1};
    }

    // Calls `body` for this turn's part of the task: the whole part, or first the shared tiles and then each
    // sequence's own.
    template <class Body>
    void for_spans(const Body& body) {
        const auto with = [&](const std::int32_t* tiles, int first_key, int end_key, int first_token, int num_tokens) {
            const int from = turn.begin * kLanes;
            const int whole_end = (end_key - 1) / kLanes + 1;
            first_key = first_key > from ? first_key : from;
            end_key = lesser(end_key, turn.end * kLanes);
            if (first_key >= end_key) return;
            span = span_of(tiles, first_key, end_key, first_token, num_tokens);
            span.whole_end = whole_end;
            body();
        };
        if (task.order == nullptr) return with(all.tiles, all.first_key, all.end_key, 0, tokens);
        const int shared_keys = task.shared_tiles * kLanes;
        with(all.tiles, all.first_key, lesser(shared_keys, all.end_key), 0, tokens);
        for (int token = 0; token < tokens; token++) {
            const int first_key = first_key_of(position_of(token));
            with(tiles_of(token), first_key < shared_keys ? shared_keys : first_key, end_key_of(token), token, 1);
        }
    }

    // The first of the keys that a row at `position` sees, and the end of those that a token's row sees.
    int first_key_of(int position) const { return first_key(task, position); }
    int end_key_of(int token) const {
        if (task.ends != nullptr) return task.ends[row_of(token)] + 1;
        const int position = position_of(token);
        return task.after < task.end - position ? position + task.after + 1 : task.end;
    }

    // The keys that at least one of these tokens attends to.
    Range keys_of(int first_token, int last_token) const {
        int lowest = position_of(first_token);
        int highest = end_key_of(first_token);
        for (int token = first_token + 1; token < last_token; token++) {
            const int position = position_of(token);
            const int end = end_key_of(token);
            lowest = position < lowest ? position : lowest;
            highest = end > highest ? end : highest;
        }
        return {first_key_of(lowest), highest};
    }

    // The tiles with keys that at least one of these rows sees: other tiles add nothing.
    Range seen_of(Range tiles, int first_row, int num_rows) const {
        if (task.order != nullptr) return tiles;
        const Range keys = keys_of(first_row / task.group, (first_row + num_rows - 1) / task.group + 1);
        const int begin = keys.begin / kLanes;
        return {begin > tiles.begin ? begin : tiles.begin, lesser((keys.end - 1) / kLanes + 1, tiles.end)};
    }

    // The maximum number of blocks in a turn, also if the turn begins within a block.
    int num_blocks() const {
        const int all_blocks = (all.end_tile - 1) / kTilesPerBlock - all.first_tile / kTilesPerBlock + 1;
        return lesser(all_blocks, blocks_at_once);
    }

    // Tiles of a turn, block by block: `body(first, end)`.
    template <class Body>
    static void for_tiles_of_blocks(int begin, int last, const Body& body) {
        while (begin < last) {
            const int end = lesser(last, (begin / kTilesPerBlock + 1) * kTilesPerBlock);
            body(begin, end);
            begin = end;
        }
    }
};

}  // namespace
}  // namespace weft
