// A file in memory for the packed weights of a model, shared by several processes: one packs and publishes them, the
// others map them.
#pragma once

#include <cstddef>
#include <optional>

#include "model/region.h"
#include "model/thread_pool.h"

namespace weft {

struct SharedFile {
    int descriptor;
    bool is_published;
    // Published weights are copied into this process's memory instead of mapped.
    bool is_copied = false;
};

// The first `bytes` of the file: with its full size, to be packed, or as it was published; without a file, memory of
// this process. Throws std::invalid_argument if the file is too short or cannot be read.
Region region_of(std::size_t bytes, const std::optional<SharedFile>& file, ThreadPool& pool);

}  // namespace weft
