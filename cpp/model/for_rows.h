// Distributes the rows of a checkpoint's tensor to threads.
#pragma once

#include <algorithm>

#include "model/pack.h"
#include "model/region.h"
#include "model/thread_pool.h"

namespace weft {

// Packs or copies rows in parallel, a panel's worth at a time. Pages of a file's map are dropped after reading:
// otherwise a checkpoint would be in memory twice when its last tensor is packed.
template <class Work>
void for_rows(ThreadPool& pool, const Source& source, int rows, const Work& work) {
    constexpr int kChunk = 4 * kPanelColumns;
    const std::size_t row_bytes = static_cast<std::size_t>(source.columns) * stored_bytes(source.stored);
    const auto forget = [&](int first, int last) {
        if (source.is_mapped)
            forget_pages(static_cast<const std::byte*>(source.data) + static_cast<std::size_t>(first) * row_bytes,
                         static_cast<std::size_t>(last - first) * row_bytes);
    };
    pool.share(rows, kChunk, [&](int, int begin, int end) {
        for (int row = begin; row < end; row += kPanelColumns) {
            const int last = std::min(end, row + kPanelColumns);
            work(row, last);
            if (last % kChunk == 0 || last == end) forget((last - 1) / kChunk * kChunk, last);
        }
    });
    // Linux maps pages around an accessed page, including pages that were dropped already.
    forget(0, rows);
}

}  // namespace weft
