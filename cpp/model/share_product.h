// A product: its task, and how that is shared out to threads: by panels, or where rows are many by those.
#pragma once

#include <algorithm>

#include "kernels/kernels.h"
#include "model/pack.h"
#include "model/row_buffer.h"
#include "model/thread_pool.h"

namespace weft {

// Up to so many rows, reading weights takes about as long as multiplying them.
constexpr int kRowsThatWait = 64;
// With so many rows for each thread, it takes rows of its own and all weights, and finds in its caches what it
// made of them in the part before.
constexpr int kRowsOfThread = 96;
// Each piece of its rows reads all weights again: a piece has at least so many.
constexpr int kRowsOfPiece = 64;

// `rows` rows times the whole matrix; what the finish asks beside `out` is the caller's to add.
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

// `work(thread, task)` for ranges of panels that cover the matrix.
template <class Task, class Work>
void share_panels(ThreadPool& pool, const Matrix& matrix, const Task& task, const Work& work) {
    // Long runs of panels for a few rows, which ask memory for the next one; otherwise small enough that
    // threads end together even when one of them was interrupted.
    const int chunks = pool.size() * (task.last_row <= kRowsThatWait ? 3 : 8);
    const int size = std::max(matrix.num_panels() / chunks, 1);
    pool.share(matrix.num_panels(), size, [&](int thread, int begin, int end) {
        Task part = task;
        part.first_panel = begin;
        part.last_panel = end;
        work(thread, part);
    });
}

// Rows that a thread takes at once of `count`, in every part of a step the same: up to `pieces` of many.
inline int rows_at_once(const ThreadPool& pool, int count, int pieces) {
    if (count <= kRowsThatWait) return 1;
    const int wanted = std::clamp(count / (pool.size() * kRowsOfPiece), 1, pieces);
    return round_up((count - 1) / (pool.size() * wanted) + 1, kLanes);
}

// Of whole texts, activations that are multiplied with every panel before the next rows: they stay in the second
// cache, and only weights pass. Of 32 texts a token took 1.09 times what it takes alone, and takes 1.01 with this
// (MiniLM, 60 tokens each, processor time).
constexpr int kSlabBytes = 512 << 10;
constexpr int kSlabRows = 96;  // a slab has a multiple of so many

// `work(thread, task)` for ranges of panels that cover the product, slab after slab.
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

// `work(thread, task)` for ranges of rows or of panels that cover the product.
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
