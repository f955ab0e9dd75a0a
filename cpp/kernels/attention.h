// Attention of a few rows of one sequence over its tiles of the KV cache.
//
// An online softmax over blocks of keys, which begin at the same positions in every task: scores; the maximum so far,
// with earlier results rescaled where it has grown; weights and their sum, lane by lane in order of position; then
// values in order of position. Hidden keys weigh exactly 0, so which tiles a task reads beyond a row's own changes no
// bit of that row, and neither does the number of blocks whose scores are kept at a time. `Self` implements the two
// products.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/attention_spans.h"
#include "kernels/math.h"
#include "kernels/product.h"

namespace weft {
namespace {

// Prefetch distance of keys and values, in bytes.
constexpr std::ptrdiff_t kLead = 8192;

// Rows of several sequences may share the tiles that all begin with: these are read once for all rows, and then each
// sequence's own tiles. Each row sees the same order as alone.
//
// `Self` has score_turn(begin, end, head, later) and combine_turn(begin, end, head, later), for the rows of the span,
// a head and tiles [begin, end): scores from queries and keys, `columns` of outputs from weights and values. It
// processes `kTilesPerTurn` tiles of one head before the next head.
//
// Threads that share a task divide dimensions over which nothing is summed: tiles of scores, rows of weights, columns
// of outputs.
template <class E, class Self>
struct Attention : AttentionSpans {
    using Stored = typename E::Stored;
    using Act = typename E::Activation;
    static constexpr bool kIsScaled = E::kScaleBytes > 0;
    // Elements of a column of cells in a tile of values.
    static constexpr std::ptrdiff_t kColumnSize = kLanes * kLanes;

    explicit Attention(const AttentionTask& t) : AttentionSpans(t) {
        made_from = all.first_tile;
        // The maximum number of tiles in a turn. It is odd, because rows at even distances would evict each other
        // from the first cache.
        const int num_tiles = all.end_tile - all.first_tile;
        width = static_cast<std::ptrdiff_t>(lesser(num_tiles, most_tiles()) | 1) * kLanes;
        head_size = static_cast<std::ptrdiff_t>(t.padded_dim) * kLanes;
        columns = share_of(t.padded_dim / kLanes);
        divide_scratch();
    }

    void run() {
        if (task.stage == AttentionStage::kWhole) {
            gather_queries();
            for (int row = 0; row < num_heads() * rows; row++) begin_row(row);
            clear_outputs();
            for (; turn.begin < all.end_tile; begin_turn(turn.end)) {
                for_spans([&] { score(); });
                for (int row = 0; row < num_heads() * rows; row++) weigh(row);
                for_spans([&] { combine(); });
            }
            emit();
        }
        if (task.stage == AttentionStage::kScore) {
            gather_queries();
            for_spans([&] { score(); });
        }
        if (task.stage == AttentionStage::kWeigh) {
            const Range share = share_of(num_heads() * rows);
            for (int row = share.begin; row < share.end; row++) {
                begin_row(row);
                weigh(row);
            }
        }
        if (task.stage == AttentionStage::kCombine) {
            clear_outputs();
            for_spans([&] { combine(); });
            emit();
        }
    }

protected:
    std::ptrdiff_t width, head_size;
    Range columns;  // columns of outputs of this share, in units of `kLanes`
    Act* queries;           // [heads][rows][padded_dim]
    float* scores;          // [heads][rows][width]
    Act* weights;           // [heads][rows][width]
    float* outputs;         // [heads][rows][padded_dim]
    float* highest;  // [heads][rows], maximum over all blocks so far; scaled, for powers of 2
    float* totals;  // [heads][rows][kLanes], sums of weights so far
    // [blocks][heads][rows], factors by which a block multiplies all earlier results.
    float* rescales;
    Stored* edges[2];       // values of the first and of the last tile, [heads][head_size]
    Stored* made;  // values of the tiles from `made_from` on, if values are computed from keys
    int made_from;

    // The distance from a tile of a head to another one: in tiles, and from head to head in bytes.
    struct Later {
        int tiles;
        std::ptrdiff_t bytes;
    };

    Self& self() { return static_cast<Self&>(*this); }

    template <class T>
    static T* take(char*& at, std::ptrdiff_t count) {
        T* taken = reinterpret_cast<T*>(at);
        const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
        at += (bytes + 63) / 64 * 64;
        return taken;
    }

    void divide_scratch() {
        char* at = static_cast<char*>(task.scratch);
        const std::ptrdiff_t all_rows = static_cast<std::ptrdiff_t>(num_heads()) * rows;
        for (int share = 0; share < task.num_shares; share++) {
            Act* of_share = take<Act>(at, all_rows * task.padded_dim);
            if (share == task.share) queries = of_share;
        }
        scores = take<float>(at, all_rows * width);
        weights = take<Act>(at, all_rows * width);
        outputs = take<float>(at, all_rows * task.padded_dim);
        highest = take<float>(at, all_rows);
        totals = take<float>(at, all_rows * kLanes);
        rescales = take<float>(at, all_rows * num_blocks());
        for (Stored*& edge : edges) edge = take<Stored>(at, num_heads() * head_size);
        if (task.values == nullptr) made = take<Stored>(at, Self::kTilesPerTurn * head_size);
    }

    // The offset of this head's part of a tile in the layer's keys or values.
    std::ptrdiff_t place(int index, int head) const {
        return span.tiles[index] * tile_size() + (task.first_head + head) * head_size;
    }
    std::ptrdiff_t tile_size() const { return task.num_kv_heads * (head_size + scale_size()); }
    // Number of elements that the scales of one head of a tile occupy.
    static constexpr std::ptrdiff_t scale_size() {
        return E::kScaleBytes / static_cast<std::ptrdiff_t>(sizeof(Stored));
    }
    Lanes scales(const void* cache, int tile_of_cache, int head) const {
        const Stored* tile = static_cast<const Stored*>(cache) + tile_of_cache * tile_size();
        const Stored* behind = tile + task.num_kv_heads * head_size;
        return load(reinterpret_cast<const float*>(behind + (task.first_head + head) * scale_size()));
    }
    const Stored* keys(int index, int head) const {
        return static_cast<const Stored*>(task.keys) + place(index, head);
    }
    const Stored* values(int index, int head) const {
        if constexpr (kIsScaled) return static_cast<const Stored*>(task.values) + place(index, head);
        if (task.values == nullptr) return made + (index - made_from) * head_size;
        if (index == span.first_tile && span.first_key % kLanes != 0) return edges[0] + head * head_size;
        if (index == span.end_tile - 1 && span.end_key % kLanes != 0) return edges[1] + head * head_size;
        return static_cast<const Stored*>(task.values) + place(index, head);
    }

    // Rows of a product: query heads of the first token, then of the next.
    void gather_queries() {
        const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(task.group) * task.padded_dim;
        for (int head = 0; head < num_heads(); head++)
            for (int token = 0; token < tokens; token++) {
                const Act* from = static_cast<const Act*>(task.query) +
                                  row_of(token) * task.stride +
                                  (task.first_head + head) * size;
                std::memcpy(queries + (head * tokens + token) * size, from,
                            static_cast<std::size_t>(size) * sizeof(Act));
            }
    }

    void score() {
        constexpr int kTurn = Self::kTilesPerTurn;
        const Range turns = share_of((span.end_tile - span.first_tile + kTurn - 1) / kTurn);
        const int last = span.first_tile + turns.end * kTurn;
        for (int index = span.first_tile + turns.begin * kTurn; index < last; index += kTurn)
            for (int head = 0; head < num_heads(); head++) {
                const int end = index + kTurn < span.end_tile ? index + kTurn : span.end_tile;
                self().score_turn(index, end, head, later_of(head, kTurn));
            }
    }

    // The data that is read kLead bytes after a tile of this head: a later head's tile, or a tile of this head in a
    // later turn. The hardware cannot predict where a sequence's next tile is.
    Later later_of(int head, int turn) const {
        const std::ptrdiff_t head_bytes = head_size * static_cast<std::ptrdiff_t>(sizeof(Stored));
        const int later = head + static_cast<int>((kLead - 1) / (turn * head_bytes)) + 1;
        return {later / num_heads() * turn, (later % num_heads() - head) * head_bytes};
    }

    // The distance in bytes from a tile to the data that is prefetched; 0 if there is no further data.
    std::ptrdiff_t ahead(int index, const Later& later) const {
        const int to = index + later.tiles;
        if (to >= span.whole_end) return 0;
        const std::ptrdiff_t tile_bytes = tile_size() * static_cast<std::ptrdiff_t>(sizeof(Stored));
        return (span.tiles[to] - span.tiles[index]) * tile_bytes + later.bytes;
    }

    // Initial values of a row, before any key is added. A sink counts as a score before all others.
    void begin_row(int at) {
        highest[at] = task.sinks == nullptr ? -INFINITY : sink_of(at) * kLog2E;
        store(totals + at * kLanes, splat(0.0F));
    }

    // Rescaling factors by row, for the block that contains this tile.
    float* rescales_of(int tile) const {
        return rescales + (tile / kTilesPerBlock - turn.begin / kTilesPerBlock) * num_heads() * rows;
    }

    void weigh(int at) {
        for_tiles_of_blocks(turn.begin, turn.end, [&](int first, int end) { weigh_block(at, first, end); });
    }

    // Scores of one row and the tiles of a block become weights: exp(score - highest), 0 for what the row does not see.
    void weigh_block(int at, int first_tile, int end_tile) {
        const int head = at / rows;
        const int token = at % rows / task.group;
        float* s = scores + at * width + (first_tile - turn.begin) * kLanes;
        Act* w = weights + at * width + (first_tile - turn.begin) * kLanes;
        const std::int32_t* tiles = tiles_of(token) + first_tile;
        const int position = position_of(token);
        const int num_keys = (end_tile - first_tile) * kLanes;
        const int low = first_key_of(position) - first_tile * kLanes;
        const int high = end_key_of(token) - first_tile * kLanes;
        const int begin = lesser((low > 0 ? low : 0) / kLanes * kLanes, num_keys);
        const int end = lesser((high > 0 ? high + kLanes - 1 : 0) / kLanes * kLanes, num_keys);
        // Only the first and the last few keys can be hidden: the keys between need no mask.
        const auto seen = [&](Lanes value, int t, float fill) {
            return t < low || t + kLanes > high ? keep(value, low - t, high - t, fill) : value;
        };
        if constexpr (kIsScaled)
            for (int t = begin; t < end; t += kLanes)
                store(s + t, mul(load(s + t), scales(task.keys, tiles[t / kLanes], head)));
        if (task.cap != 0.0F)
            for (int t = begin; t < end; t += kLanes)
                store(s + t, soft_cap(mul(load(s + t), splat(task.scale)), task.cap));
        Lanes most = splat(-INFINITY);
        for (int t = begin; t < end; t += kLanes) most = max(most, seen(load(s + t), t, -INFINITY));
        // A power of 2 of (score - highest) * scale * log2(e), in one multiplication and addition.
        const float factor = (task.cap != 0.0F ? 1.0F : task.scale) * kLog2E;
        const Lanes by = splat(factor);
        const float rescale = begin < end ? raise_highest(at, max_of(most) * factor) : 1.0F;
        rescales_of(first_tile)[at] = rescale;
        const Lanes top = splat(-highest[at]);
        const Lanes none = splat(0.0F);
        for (int t = 0; t < begin; t += kLanes) E::store_activation(w + t, none);
        Lanes total = mul(load(totals + at * kLanes), splat(rescale));
        for (int t = begin; t < end; t += kLanes) {
            const Lanes weight = seen(exp2(fma(load(s + t), by, top)), t, 0.0F);
            total = add(total, weight);
            if constexpr (kIsScaled) {
                const Lanes scale = scales(task.values, tiles[t / kLanes], head);
                E::store_activation(w + t, seen(mul(weight, scale), t, 0.0F));
            } else {
                E::store_activation(w + t, weight);
            }
        }
        store(totals + at * kLanes, total);
        for (int t = end; t < num_keys; t += kLanes) E::store_activation(w + t, none);
    }

    // Returns the factor that rescales the weights so far.
    float raise_highest(int at, float found) {
        const float before = highest[at];
        if (found <= before) return 1.0F;
        highest[at] = found;
        return before == -INFINITY ? 1.0F : max_of(exp2(splat(before - found)));
    }

    float sink_of(int at) const { return task.sinks[query_head(at / rows, at % rows)]; }
    int query_head(int head, int row) const { return (task.first_head + head) * task.group + row % task.group; }

    // If a tile holds tokens that no row sees, its values are copied without them: values that another sequence left
    // there may be NaN, and NaN times 0 is NaN. int8 values cannot be NaN.
    void clean_edges() {
        if constexpr (kIsScaled) return;
        if (task.values == nullptr) return;
        if (span.first_key % kLanes != 0) clean(0, span.first_tile);
        if (span.end_key % kLanes != 0) clean(1, span.end_tile - 1);
    }

    void clean(int edge, int index) {
        const Stored* from = static_cast<const Stored*>(task.values) + place(index, 0);
        Stored* to = edges[edge];
        const int low = span.first_key - index * kLanes;
        const int high = span.end_key - index * kLanes;
        const int row = kLanes * E::kStep;  // elements of a cell, which holds kStep tokens
        for (int head = 0; head < num_heads(); head++) {
            const std::ptrdiff_t last = head * head_size + columns.end * kColumnSize;
            for (std::ptrdiff_t at = head * head_size + columns.begin * kColumnSize; at < last; at += row) {
                const int token = static_cast<int>(at % kColumnSize) / kLanes;
                for (int i = 0; i < row; i++) {
                    const int lane = token + i % E::kStep;
                    to[at + i] = lane >= low && lane < high ? from[at + i] : Stored{0};
                }
            }
        }
    }

    void clear_outputs() {
        for (int at = 0; at < num_heads() * rows; at++)
            for (int i = columns.begin * kLanes; i < columns.end * kLanes; i += kLanes)
                store(outputs + at * task.padded_dim + i, splat(0.0F));
    }

    // Earlier results of a row are rescaled only at the beginning of a block of keys.
    void combine() {
        clean_edges();
        for_tiles_of_blocks(span.first_tile, span.end_tile, [&](int first, int end) {
            if (first % kTilesPerBlock == 0) rescale(rescales_of(first));
            if (task.values == nullptr) combine_keys(first, end);
            else combine_block(first, end);
        });
    }

    void rescale(const float* by_row) {
        for (int head = 0; head < num_heads(); head++)
            for (int row = span.first_row; row < span.first_row + span.num_rows; row++) {
                const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + row;
                const float by = by_row[at];
                if (by == 1.0F) continue;
                for (int i = columns.begin * kLanes; i < columns.end * kLanes; i += kLanes) {
                    float* to = outputs + at * task.padded_dim + i;
                    store(to, mul(load(to), splat(by)));
                }
            }
    }

    void combine_block(int first, int last) {
        const int step = num_heads() == 1 ? last - first : Self::kTilesPerTurn;
        for (int index = first; index < last; index += step)
            for (int head = 0; head < num_heads(); head++)
                self().combine_turn(index, lesser(index + step, last), head,
                                    later_of(head, num_heads() == 1 ? 1 : step));
    }

    // For one head whose keys are its values: converts a few tiles at a time to the layout of values, and multiplies
    // them.
    void combine_keys(int first, int last) {
        static_assert(Self::kTilesPerTurn <= kMostTilesPerTurn);
        for (int index = first; index < last; index += Self::kTilesPerTurn) {
            const int end = lesser(index + Self::kTilesPerTurn, last);
            made_from = index;
            for (int tile = index; tile < end; tile++) make_values(tile);
            self().combine_turn(index, end, 0, {0, 0});
        }
    }

    // Converts cells of tokens by depth to cells of columns by token; tokens that no row sees become 0, as in
    // `clean`.
    void make_values(int index) {
        constexpr int kStep = E::kStep;
        const Stored* from = keys(index, 0);
        Stored* to = made + (index - made_from) * head_size;
        const int low = span.first_key - index * kLanes;
        const int high = span.end_key - index * kLanes;
        const bool is_whole = low <= 0 && high >= kLanes;
        for (std::ptrdiff_t part = columns.begin * kColumnSize; part < columns.end * kColumnSize; part += kColumnSize)
            for (int token = 0; token < kLanes; token += kStep)
                for (int column = 0; column < kLanes; column += kStep)
                    for (int i = 0; i < kStep; i++)
                        for (int j = 0; j < kStep; j++) {
                            const bool is_seen = is_whole || (token + j >= low && token + j < high);
                            const Stored value = from[part + column * kLanes + (token + j) * kStep + i];
                            to[part + token * kLanes + (column + i) * kStep + j] = is_seen ? value : Stored{0};
                        }
    }

    void emit() {
        for (int at = 0; at < num_heads() * rows; at++) {
            const float* from = outputs + at * task.padded_dim;
            const int row = at % rows;
            Act* to = static_cast<Act*>(task.out) + row_of(row / task.group) * task.stride +
                      static_cast<std::ptrdiff_t>(query_head(at / rows, row)) * task.padded_dim;
            const float taken = task.sinks == nullptr ? 0.0F : max_of(exp2(splat(sink_of(at) * kLog2E - highest[at])));
            const Lanes factor = splat(1.0F / (sum_of(load(totals + at * kLanes)) + taken));
            for (int i = columns.begin * kLanes; i < columns.end * kLanes; i += kLanes)
                E::store_activation(to + i, mul(load(from + i), factor));
        }
    }
};

}  // namespace
}  // namespace weft
