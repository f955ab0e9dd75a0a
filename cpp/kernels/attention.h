// Attention of a few rows of one sequence over its tiles of the KV cache.
//
// Scores of all visible keys first, then the exact maximum, then weights and their sum, lane by lane
// in order of position, then values in order of position. Hidden keys weigh exactly 0, so which tiles
// a task reads beyond a row's own changes no bit of that row. The two products are left to `Self`.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/math.h"
#include "kernels/product.h"

namespace weft {
namespace {

// How far ahead, in bytes of what is read, keys and values are asked for.
constexpr std::ptrdiff_t kLead = 8192;

// Rows of several sequences share the tiles that all begin with: they are read once for all, and then each
// sequence's own. To a row that is the same order.
//
// `Self` has score_turn(begin, end, head, later) and combine_turn(begin, end, head, later), for the rows of the
// span, a head and tiles [begin, end): scores from queries and keys, `columns` of outputs from weights and values.
// It takes `kTilesPerTurn` of one head before the next head.
//
// Threads that share a task divide what no sum runs over: tiles of scores, rows of weights, columns of outputs.
template <class E, class Self>
struct Attention {
    using Stored = typename E::Stored;
    using Act = typename E::Activation;
    static constexpr bool kIsScaled = E::kScaleBytes > 0;
    static constexpr std::ptrdiff_t kColumnSize = kLanes * kLanes;  // of a tile of values

    explicit Attention(const AttentionTask& t) : task(t) {
        tokens = t.last_row - t.first_row;
        rows = tokens * t.group;
        int lowest = position_of(0);
        int highest = lowest;
        for (int token = 1; token < tokens; token++) {
            const int position = position_of(token);
            lowest = position < lowest ? position : lowest;
            highest = position > highest ? position : highest;
        }
        all = span_of(tiles_of(0), first_key_of(lowest), end_key_of(highest), 0, tokens);
        first_tile = made_from = all.first_tile;
        // Odd, or rows would lie where they push each other out of the first cache.
        width = static_cast<std::ptrdiff_t>((all.end_tile - first_tile) | 1) * kLanes;
        head_size = static_cast<std::ptrdiff_t>(t.padded_dim) * kLanes;
        columns = share_of(t.padded_dim / kLanes);
        divide_scratch();
    }

    void run() {
        const bool is_whole = task.stage == AttentionStage::kWhole;
        if (is_whole || task.stage == AttentionStage::kScore) {
            gather_queries();
            for_spans([&] { score(); });
        }
        if (is_whole || task.stage == AttentionStage::kWeigh) {
            const Range share = share_of(num_heads() * rows);
            for (int row = share.begin; row < share.end; row++) weigh(row / rows, row % rows);
        }
        if (is_whole || task.stage == AttentionStage::kCombine) {
            for_spans([&] {
                clean_edges();
                combine();
            });
            for (int head = 0; head < num_heads(); head++)
                for (int row = 0; row < rows; row++) emit(head, row);
        }
    }

protected:
    // Rows and the keys that any of them sees, in tiles of one sequence.
    struct Span {
        const std::int32_t* tiles;
        int first_key, end_key;
        int first_tile, end_tile;
        int first_row, num_rows;
        bool is_continued;  // tiles before these have given sums
    };
    struct Range {
        int begin, end;
    };

    const AttentionTask& task;
    int tokens, rows;
    Span all, span;  // of the task, and what is worked on
    int first_tile;  // that scores and weights begin with
    std::ptrdiff_t width, head_size;
    Range columns;  // of outputs, this share's, each of `kLanes`
    Act* queries;           // [heads][rows][padded_dim]
    float* scores;          // [heads][rows][width]
    Act* weights;           // [heads][rows][width]
    float* outputs;         // [heads][rows][padded_dim]
    float* inverse_totals;  // [heads][rows]
    Stored* edges[2];       // values of the first and of the last tile, [heads][head_size]
    Stored* made;           // values of tiles from `made_from` on, where they are made of keys
    int made_from;

    // From a tile of a head to another: so many tiles on, and from one head to the other in bytes.
    struct Later {
        int tiles;
        std::ptrdiff_t bytes;
    };

    Self& self() { return static_cast<Self&>(*this); }

    int num_heads() const { return task.last_head - task.first_head; }

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
                first_token * task.group, num_tokens * task.group, false};
    }

    // The whole task, or what its sequences share and then what is each one's own.
    template <class Body>
    void for_spans(const Body& body) {
        span = all;
        if (task.order == nullptr) return body();
        const int shared_keys = task.shared_tiles * kLanes;
        const bool is_any = all.first_key < shared_keys;
        if (is_any) {
            span = span_of(all.tiles, all.first_key, shared_keys, 0, tokens);
            body();
        }
        for (int token = 0; token < tokens; token++) {
            const int first_key = first_key_of(position_of(token));
            span = span_of(tiles_of(token), first_key < shared_keys ? shared_keys : first_key,
                           end_key_of(position_of(token)), token, 1);
            span.is_continued = is_any;
            body();
        }
    }

    // Keys that a row at `position` sees; both rise with it.
    int first_key_of(int position) const { return position > task.before ? position - task.before : 0; }
    int end_key_of(int position) const {
        return task.after < task.end - position ? position + task.after + 1 : task.end;
    }

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
        inverse_totals = take<float>(at, all_rows);
        for (Stored*& edge : edges) edge = take<Stored>(at, num_heads() * head_size);
        if (task.values == nullptr) made = take<Stored>(at, Self::kTilesPerTurn * head_size);
    }

    // Where this head's part of a tile begins, in the layer's keys or values.
    std::ptrdiff_t place(int index, int head) const {
        return span.tiles[index] * tile_size() + (task.first_head + head) * head_size;
    }
    std::ptrdiff_t tile_size() const { return task.num_kv_heads * (head_size + scale_size()); }
    // Elements that the scales of a head of a tile take.
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

    // What is read kLead bytes after a tile of this head: a later head's, or the same of a later turn. The
    // hardware does not see where a sequence's next tile is.
    Later later_of(int head, int turn) const {
        const std::ptrdiff_t head_bytes = head_size * static_cast<std::ptrdiff_t>(sizeof(Stored));
        const int later = head + static_cast<int>((kLead - 1) / (turn * head_bytes)) + 1;
        return {later / num_heads() * turn, (later % num_heads() - head) * head_bytes};
    }

    // The distance to that, in bytes; 0 where there is nothing more.
    std::ptrdiff_t ahead(int index, const Later& later) const {
        const int to = index + later.tiles;
        if (to >= span.end_tile) return 0;
        const std::ptrdiff_t tile_bytes = tile_size() * static_cast<std::ptrdiff_t>(sizeof(Stored));
        return (span.tiles[to] - span.tiles[index]) * tile_bytes + later.bytes;
    }

    // Scores of one row become weights: exp(score - highest), 0 for what the row does not see.
    void weigh(int head, int row) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + row;
        float* s = scores + at * width;
        Act* w = weights + at * width;
        const int position = position_of(row / task.group);
        const std::int32_t* tiles = tiles_of(row / task.group) + first_tile;
        const int base = first_tile * kLanes;
        const int low = first_key_of(position) - base;
        const int high = end_key_of(position) - base;
        const int begin = (low > 0 ? low : 0) / kLanes * kLanes;
        const int end = (high + kLanes - 1) / kLanes * kLanes;
        // Only the first and the last few keys can be hidden: the rest need no mask.
        const auto seen = [&](Lanes value, int t, float fill) {
            return t < low || t + kLanes > high ? keep(value, low - t, high - t, fill) : value;
        };
        if constexpr (kIsScaled)
            for (int t = begin; t < end; t += kLanes)
                store(s + t, mul(load(s + t), scales(task.keys, tiles[t / kLanes], head)));
        if (task.cap != 0.0F)
            for (int t = begin; t < end; t += kLanes)
                store(s + t, soft_cap(mul(load(s + t), splat(task.scale)), task.cap));
        Lanes highest = splat(-INFINITY);
        for (int t = begin; t < end; t += kLanes) highest = max(highest, seen(load(s + t), t, -INFINITY));
        // A power of 2 of (score - highest) * scale * log2(e), in one multiplication and addition.
        const float factor = (task.cap != 0.0F ? 1.0F : task.scale) * kLog2E;
        const Lanes by = splat(factor);
        float largest = max_of(highest) * factor;
        const float sink = sink_of(head, row) * kLog2E;
        if (task.sinks != nullptr && sink > largest) largest = sink;
        const Lanes top = splat(-largest);
        const Lanes none = splat(0.0F);
        for (int t = 0; t < begin; t += kLanes) E::store_activation(w + t, none);
        Lanes total = none;
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
        for (int t = end; t < width; t += kLanes) E::store_activation(w + t, none);
        const float taken = task.sinks == nullptr ? 0.0F : max_of(exp2(splat(sink - largest)));
        inverse_totals[at] = 1.0F / (sum_of(total) + taken);
    }

    float sink_of(int head, int row) const {
        return task.sinks == nullptr ? 0.0F : task.sinks[query_head(head, row)];
    }
    int query_head(int head, int row) const { return (task.first_head + head) * task.group + row % task.group; }

    // Where a tile holds tokens that no row sees, its values are copied without them: whatever was
    // left there by another sequence may be NaN, and NaN times 0 is NaN. No int8 is.
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

    void combine() {
        if (task.values == nullptr) return combine_keys();
        const int turn = num_heads() == 1 ? span.end_tile - span.first_tile : Self::kTilesPerTurn;
        for (int index = span.first_tile; index < span.end_tile; index += turn)
            for (int head = 0; head < num_heads(); head++) {
                const int end = index + turn < span.end_tile ? index + turn : span.end_tile;
                self().combine_turn(index, end, head, later_of(head, num_heads() == 1 ? 1 : turn));
            }
    }

    // Keys of one head are its values. A few tiles at a time lie as values do, to be multiplied at once.
    void combine_keys() {
        static_assert(Self::kTilesPerTurn <= kMostTilesPerTurn);
        for (int index = span.first_tile; index < span.end_tile; index += Self::kTilesPerTurn) {
            const int end = index + Self::kTilesPerTurn < span.end_tile ? index + Self::kTilesPerTurn : span.end_tile;
            made_from = index;
            for (int tile = index; tile < end; tile++) make_values(tile);
            self().combine_turn(index, end, 0, {0, 0});
        }
    }

    // From cells of tokens by depth to cells of columns by token; what no row sees becomes 0, as in `clean`.
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

    void emit(int head, int row) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + row;
        const float* from = outputs + at * task.padded_dim;
        const int token = row_of(row / task.group);
        Act* to = static_cast<Act*>(task.out) + token * task.stride +
                  static_cast<std::ptrdiff_t>(query_head(head, row)) * task.padded_dim;
        const Lanes factor = splat(inverse_totals[at]);
        for (int i = columns.begin * kLanes; i < columns.end * kLanes; i += kLanes)
            E::store_activation(to + i, mul(load(from + i), factor));
    }
};

}  // namespace
}  // namespace weft
