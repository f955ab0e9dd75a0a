#include "model/shared_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <stdexcept>

namespace weft {
namespace {

// A copy of the first bytes of a file, in huge pages where a file's map has none.
Region copy_of_file(int file, std::size_t bytes, ThreadPool& pool) {
    constexpr std::size_t kPiece = std::size_t{4} << 20;
    Region region(bytes);
    std::atomic<bool> is_whole = true;
    pool.share(static_cast<int>((bytes + kPiece - 1) / kPiece), 1, [&](int, int begin, int end) {
        std::size_t at = static_cast<std::size_t>(begin) * kPiece;
        const std::size_t last = std::min(static_cast<std::size_t>(end) * kPiece, bytes);
        while (at < last) {
            const ssize_t got = pread(file, region.data() + at, last - at, static_cast<off_t>(at));
            if (got <= 0) {
                is_whole = false;
                return;
            }
            at += static_cast<std::size_t>(got);
        }
    });
    if (!is_whole) throw std::invalid_argument("the file of the weights cannot be read");
    return region;
}

}  // namespace

Region region_of(std::size_t bytes, const std::optional<SharedFile>& file, ThreadPool& pool) {
    if (!file) return Region(bytes);
    const auto length = static_cast<off_t>(bytes);
    if (!file->is_published) {
        // Truncate first: this removes weights that another process packed and did not publish.
        if (ftruncate(file->descriptor, 0) != 0 || ftruncate(file->descriptor, length) != 0) throw std::bad_alloc();
        return Region::of_file(file->descriptor, bytes, true);
    }
    struct stat found;
    if (fstat(file->descriptor, &found) != 0 || found.st_size < length)
        throw std::invalid_argument("the file is shorter than the weights of this model");
    const auto size = static_cast<std::size_t>(found.st_size);
    if (file->is_copied) return copy_of_file(file->descriptor, size, pool);
    return Region::of_file(file->descriptor, size, false);
}

}  // namespace weft
