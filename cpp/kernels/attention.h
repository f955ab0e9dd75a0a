// Attention of a few rows of one sequence over its tiles of the KV cache.
//
// Scores of all visible keys first, then the exact maximum, then weights and their sum, lane by lane
// in order of position, then values in order of position. Hidden keys weigh exactly 0, so which tiles
// a task reads beyond a row's own changes no bit of that row.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/math.h"
#include "kernels/product.h"

namespace weft {
namespace {

// Tiles of values taken per head before the next head when several heads are done together: they lie
// side by side in memory, and one long stream is what the hardware prefetches.
constexpr int kTilesPerTurn = 2;

template <class E>
struct Attention {
    using Stored = typename E::Stored;
    using Act = typename E::Activation;

    explicit Attention(const AttentionTask& t) : task(t) {
        tokens = t.last_row - t.first_row;
        rows = tokens * t.group;
        int lowest = t.positions[t.first_row];
        int highest = lowest;
        for (int row = t.first_row + 1; row < t.last_row; row++) {
            const int position = t.positions[row];
            lowest = position < lowest ? position : lowest;
            highest = position > highest ? position : highest;
        }
        first_key = t.window > 0 && lowest - t.window + 1 > 0 ? lowest - t.window + 1 : 0;
        end_key = highest + 1;
        first_tile = first_key / kLanes;
        end_tile = highest / kLanes + 1;
        width = static_cast<std::ptrdiff_t>(end_tile - first_tile) * kLanes;
        head_size = static_cast<std::ptrdiff_t>(t.padded_dim) * kLanes;
        divide_scratch();
    }

    void run() {
        gather_queries();
        score();
        for (int head = 0; head < num_heads(); head++)
            for (int row = 0; row < rows; row++) weigh(head, row);
        clean_edges();
        combine();
        for (int head = 0; head < num_heads(); head++)
            for (int row = 0; row < rows; row++) emit(head, row);
    }

private:
    const AttentionTask& task;
    int tokens, rows;
    int first_key, end_key;  // keys that any row sees
    int first_tile, end_tile;
    std::ptrdiff_t width, head_size;
    Act* queries;           // [heads][rows][padded_dim]
    float* scores;          // [heads][rows][width]
    Act* weights;           // [heads][rows][width]
    float* outputs;         // [heads][rows][padded_dim]
    float* inverse_totals;  // [heads][rows]
    Stored* edges[2];       // values of the first and of the last tile, [heads][head_size]

    int num_heads() const { return task.last_head - task.first_head; }

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
        queries = take<Act>(at, all_rows * task.padded_dim);
        scores = take<float>(at, all_rows * width);
        weights = take<Act>(at, all_rows * width);
        outputs = take<float>(at, all_rows * task.padded_dim);
        inverse_totals = take<float>(at, all_rows);
        for (Stored*& edge : edges) edge = take<Stored>(at, num_heads() * head_size);
    }

    const Stored* tile(int index) const {
        const std::ptrdiff_t size = 2 * task.num_kv_heads * head_size;
        return static_cast<const Stored*>(task.pool) + task.tiles[index] * size;
    }
    const Stored* keys(int index, int head) const {
        return tile(index) + (task.first_head + head) * head_size;
    }
    const Stored* values(int index, int head) const {
        if (index == first_tile && first_key % kLanes != 0) return edges[0] + head * head_size;
        if (index == end_tile - 1 && end_key % kLanes != 0) return edges[1] + head * head_size;
        return tile(index) + (task.num_kv_heads + task.first_head + head) * head_size;
    }

    // Rows of a product: query heads of the first token, then of the next.
    void gather_queries() {
        const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(task.group) * task.padded_dim;
        for (int head = 0; head < num_heads(); head++)
            for (int token = 0; token < tokens; token++) {
                const Act* from = static_cast<const Act*>(task.query) +
                                  (task.first_row + token) * task.stride +
                                  (task.first_head + head) * size;
                std::memcpy(queries + (head * tokens + token) * size, from,
                            static_cast<std::size_t>(size) * sizeof(Act));
            }
    }

    void score() {
        const int steps = task.padded_dim / E::kStep;
        for (int index = first_tile; index < end_tile; index += kWide)
            for (int head = 0; head < num_heads(); head++) {
                const Act* q = queries + static_cast<std::ptrdiff_t>(head) * rows * task.padded_dim;
                float* to = scores + head * rows * width + (index - first_tile) * kLanes;
                const bool pair = kWide == 2 && index + 1 < end_tile;
                const Columns<E> columns{{keys(index, head), keys(pair ? index + 1 : index, head)},
                                         kCell<E>};
                if (pair)
                    product_tiles<E, kWide>(rows, q, task.padded_dim, columns, steps, to, width, false);
                else
                    product_tiles<E, 1>(rows, q, task.padded_dim, columns, steps, to, width, false);
            }
    }

    // Scores of one row become weights: exp(score - highest), 0 for what the row does not see.
    void weigh(int head, int row) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + row;
        float* s = scores + at * width;
        Act* w = weights + at * width;
        const int position = task.positions[task.first_row + row / task.group];
        const int base = first_tile * kLanes;
        const int low = (task.window > 0 && position >= task.window ? position - task.window + 1 : 0) - base;
        const int high = position + 1 - base;
        const int begin = (low > 0 ? low : 0) / kLanes * kLanes;
        const int end = (high + kLanes - 1) / kLanes * kLanes;
        const Lanes scale = splat(task.scale);
        Lanes highest = splat(-INFINITY);
        for (int t = begin; t < end; t += kLanes) {
            Lanes value = mul(load(s + t), scale);
            if (task.cap != 0.0F) value = soft_cap(value, task.cap);
            value = keep(value, low - t, high - t, -INFINITY);
            store(s + t, value);
            highest = max(highest, value);
        }
        const Lanes top = splat(max_of(highest));
        const Lanes none = splat(0.0F);
        for (int t = 0; t < begin; t += kLanes) E::store_activation(w + t, none);
        Lanes total = none;
        for (int t = begin; t < end; t += kLanes) {
            const Lanes weight = keep(exp(sub(load(s + t), top)), low - t, high - t, 0.0F);
            total = add(total, weight);
            E::store_activation(w + t, weight);
        }
        for (int t = end; t < width; t += kLanes) E::store_activation(w + t, none);
        inverse_totals[at] = 1.0F / sum_of(total);
    }

    // Where a tile holds tokens that no row sees, its values are copied without them: whatever was
    // left there by another sequence may be NaN, and NaN times 0 is NaN.
    void clean_edges() {
        if (first_key % kLanes != 0) clean(0, first_tile);
        if (end_key % kLanes != 0) clean(1, end_tile - 1);
    }

    void clean(int edge, int index) {
        const Stored* from = tile(index) + (task.num_kv_heads + task.first_head) * head_size;
        Stored* to = edges[edge];
        const int low = first_key - index * kLanes;
        const int high = end_key - index * kLanes;
        const int row = kLanes * E::kStep;  // elements of a cell, which holds kStep tokens
        for (std::ptrdiff_t at = 0; at < num_heads() * head_size; at += row) {
            const int token = static_cast<int>(at % (kLanes * kLanes)) / kLanes;
            for (int i = 0; i < row; i++) {
                const int lane = token + i % E::kStep;
                to[at + i] = lane >= low && lane < high ? from[at + i] : Stored{0};
            }
        }
    }

    void combine() {
        const int turn = num_heads() == 1 ? end_tile - first_tile : kTilesPerTurn;
        for (int index = first_tile; index < end_tile; index += turn)
            for (int head = 0; head < num_heads(); head++) {
                const int end = index + turn < end_tile ? index + turn : end_tile;
                int column = 0;
                for (; column + kWide * kLanes <= task.padded_dim; column += kWide * kLanes)
                    combine_columns<kWide>(index, end, head, column);
                for (; column < task.padded_dim; column += kLanes)
                    combine_columns<1>(index, end, head, column);
            }
    }

    template <int kColumns>
    void combine_columns(int begin, int end, int head, int column) {
        for_tiles<E>(rows, [&](int first, auto height, bool) {
            combine_rows<decltype(height)::value, kColumns>(begin, end, head, column, first);
        });
    }

    // Weights of a few rows times the values of tiles [begin, end), added to what earlier tiles gave.
    template <int kRows, int kColumns>
    void combine_rows(int begin, int end, int head, int column, int first) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + first;
        float* out = outputs + at * task.padded_dim + column;
        Lanes sum[kRows][kColumns];
        for (int m = 0; m < kRows; m++)
            for (int j = 0; j < kColumns; j++)
                sum[m][j] = begin == first_tile ? splat(0.0F) : load(out + m * task.padded_dim + j * kLanes);
        for (int index = begin; index < end; index++) {
            const Stored* v = values(index, head) + column * kLanes;
            const Act* w = weights + at * width + (index - first_tile) * kLanes;
            for (int s = 0; s < kLanes / E::kStep; s++) {
                typename E::Cell cell[kColumns];
                for (int j = 0; j < kColumns; j++)
                    cell[j] = E::load_cell(v + j * kLanes * kLanes + s * kCell<E>);
#pragma GCC unroll 16
                for (int m = 0; m < kRows; m++)
#pragma GCC unroll 2
                    for (int j = 0; j < kColumns; j++)
                        sum[m][j] = E::dot(sum[m][j], cell[j], w + m * width + s * E::kStep);
            }
        }
        for (int m = 0; m < kRows; m++)
            for (int j = 0; j < kColumns; j++) store(out + m * task.padded_dim + j * kLanes, sum[m][j]);
    }

    void emit(int head, int row) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * rows + row;
        const float* from = outputs + at * task.padded_dim;
        const int token = task.first_row + row / task.group;
        const int query_head = (task.first_head + head) * task.group + row % task.group;
        Act* to = static_cast<Act*>(task.out) + token * task.stride +
                  static_cast<std::ptrdiff_t>(query_head) * task.padded_dim;
        const Lanes factor = splat(inverse_totals[at]);
        for (int i = 0; i < task.padded_dim; i += kLanes)
            E::store_activation(to + i, mul(load(from + i), factor));
    }
};

template <class E>
void attend(const AttentionTask& task) {
    Attention<E>(task).run();
}

}  // namespace
}  // namespace weft
