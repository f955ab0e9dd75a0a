// A product's panels, shared out to threads.
#pragma once

#include <algorithm>

#include "model/pack.h"
#include "model/thread_pool.h"

namespace weft {

// Up to so many rows, reading weights takes about as long as multiplying them.
constexpr int kRowsThatWait = 64;

// `work(thread, task)` for ranges of panels that cover the matrix.
template <class Task, class Work>
void share_panels(ThreadPool& pool, const Matrix& matrix, const Task& task, const Work& work) {
    // Long runs of panels for a few rows, which ask memory for the next one; otherwise small enough that
    // threads end together even when one of them was interrupted.
    const int chunks = pool.size() * (task.rows <= kRowsThatWait ? 3 : 8);
    const int size = std::max(matrix.num_panels() / chunks, 1);
    pool.share(matrix.num_panels(), size, [&](int thread, int begin, int end) {
        Task part = task;
        part.first_panel = begin;
        part.last_panel = end;
        work(thread, part);
    });
}

}  // namespace weft
