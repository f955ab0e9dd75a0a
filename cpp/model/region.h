// Large zeroed memory straight from the operating system, in huge pages where it has them.
#pragma once

#include <cstddef>

namespace weft {

// Pages are taken when first touched, so a large region costs nothing until it is used.
class Region {
public:
    Region() = default;
    // Throws std::bad_alloc when the address space or the commit limit does not allow it. `is_huge` requests huge
    // pages: otherwise pages are small, except in the ranges of `use_huge_pages`.
    explicit Region(std::size_t bytes, bool is_huge = true);
    // Maps the first bytes of a file in memory, which other processes map too. Throws std::bad_alloc in the same
    // cases.
    static Region of_file(int file, std::size_t bytes, bool is_writable);
    ~Region();
    Region(Region&& other) noexcept;
    Region& operator=(Region&& other) noexcept;
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    // Requests huge pages within [begin, end), before these are first touched.
    void use_huge_pages(std::size_t begin, std::size_t end);

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }

private:
    void* mapping_ = nullptr;
    std::size_t mapped_ = 0;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Drops the pages of a file's read-only map that contain [first, first + bytes). They no longer count as this
// process's memory, and are mapped again on access.
void forget_pages(const void* first, std::size_t bytes);

// Returns unused memory of the C library's heap to the operating system.
void trim_heap();

// Enlarges a region that is too small, by half of its size at least, so that steps of slowly rising size do not map
// memory each time. The contents are lost.
void grow(Region& region, std::size_t bytes);

}  // namespace weft
