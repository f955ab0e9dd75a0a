// A product's panels, shared out to threads.
#pragma once

#include <algorithm>

#include "model/pack.h"
#include "model/thread_pool.h"

namespace weft {

// Up to so many rows, reading weights takes about as long as multiplying them.
constexpr int kRowsThatWait = 64;

// `gemm(task)` for ranges of panels that cover the matrix.
template <class Task, class Gemm>
void share_panels(ThreadPool& pool, const Matrix& matrix, const Task& task, Gemm gemm) {
    // Whole runs of panels for one row, which is done several panels at a time, and longer runs for a few,
    // which ask memory for the next panel; otherwise small enough that threads end together even when
    // one of them was interrupted.
    const int chunks = pool.size() * (task.rows > 1 && task.rows <= kRowsThatWait ? 3 : 8);
    const int chunk = matrix.num_panels() / chunks;
    const int size = task.rows == 1 ? round_up(std::max(chunk, 4), 4) : std::max(chunk, 1);
    pool.share(matrix.num_panels(), size, [&](int, int begin, int end) {
        Task part = task;
        part.first_panel = begin;
        part.last_panel = end;
        gemm(part);
    });
}

}  // namespace weft
