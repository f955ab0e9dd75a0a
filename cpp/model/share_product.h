// A product: its task, and its distribution to threads: by panels, or by rows if there are many rows.
#pragma once

#include <algorithm>

#include "kernels/kernels.h"
#include "model/pack.h"
#include "model/row_buffer.h"
#include "model/thread_pool.h"

namespace weft {

// Up to this many rows, reading weights takes about as long as multiplying them.
constexpr int kRowsThatWait = 64;
// With at least this many rows per thread, each thread takes its own rows and all weights, and finds its rows'
// results of the previous part in its caches.
constexpr int kRowsOfThread = 96;
// Minimum number of rows in a piece, because each piece reads all weights again.
constexpr int kRowsOfPiece = 64;

// The task of `rows` rows times the whole matrix; the caller adds other fields that the finish needs besides `out`.
inline GemmTask gemm_task(const Matrix& matrix, const RowsAt& x, int rows, Finish finish, const RowsAt& out) {
    GemmTask task{};
    task.x = x.first;
    task.x_stride = x.stride;
    task.last_row = rows;
    task.panels = matrix.panels;
    task.depth = matrix.depth;
    task.last_panel = matrix.num_panels();
    task.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
    task.finish = finish;
    task.out = out.first;
    task.out_stride = out.stride;
    return task;
}

// Calls `work(thread, task)` for ranges of panels that cover the matrix.
template <class Task, class Work>
void share_panels(ThreadPool& pool, const Matrix& matrix, const Task& task, const Work& work) {
    // A few rows use long runs of panels, each of which prefetches the next; otherwise runs are short, so that
    // threads finish together even if one was interrupted.
    const int chunks = pool.size() * (task.last_row <= kRowsThatWait ? 3 : 8);
    const int size = std::max(matrix.num_panels() / chunks, 1);
    pool.share(matrix.num_panels(), size, [&](int thread, int begin, int end) {
        Task part = task;
        part.first_panel = begin;
        part.last_panel = end;
        work(thread, part);
    });
}

// Number of rows of `count` that a thread takes at once, the same in every part of a step; many rows are split into
// up to `pieces` pieces per thread.
inline int rows_at_once(const ThreadPool& pool, int count, int pieces) {
    if (count <= kRowsThatWait) return 1;
    const int wanted = std::clamp(count / (pool.size() * kRowsOfPiece), 1, pieces);
    return round_up((count - 1) / (pool.size() * wanted) + 1, kLanes);
}

// For encoders: bytes of activations that are multiplied with every panel before the next rows, so that they stay in
// the second cache and only weights are streamed. With 32 texts, the time per token was 1.09 times that of one text
// alone, and is 1.01 times with slabs (MiniLM, 60 tokens each, processor time).
constexpr int kSlabBytes = 512 << 10;
constexpr int kSlabRows = 96;  // the number of rows in a slab is a multiple

// Calls `work(thread, task)` for ranges of panels that cover the product, slab after slab.
template <class Task, class Work>
void share_slabs(ThreadPool& pool, const Matrix& matrix, const Task& task, int row_bytes, const Work& work) {
    const int size = std::max(kSlabBytes / row_bytes / kSlabRows, 1) * kSlabRows;
    for (int first = 0; first < task.last_row; first += size) {
        Task slab = task;
        slab.first_row = first;
        slab.last_row = std::min(task.last_row, first + size);
        share_panels(pool, matrix, slab, work);
    }
}

// Calls `work(thread, task)` for ranges of rows or of panels that cover the product.
template <class Task, class Work>
void share_product(ThreadPool& pool, const Matrix& matrix, const Task& task, int pieces, const Work& work) {
    if (task.last_row < pool.size() * kRowsOfThread) return share_panels(pool, matrix, task, work);
    pool.share(task.last_row, rows_at_once(pool, task.last_row, pieces), [&](int thread, int begin, int end) {
        Task part = task;
        part.first_row = begin;
        part.last_row = end;
        work(thread, part);
    });
}

}  // namespace weft
