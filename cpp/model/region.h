// Large zeroed memory straight from the operating system, in huge pages where it has them.
#pragma once

#include <cstddef>

namespace weft {

// Pages are taken when first touched, so a large region costs nothing until it is used.
class Region {
public:
    Region() = default;
    // Throws std::bad_alloc when the address space or the commit limit does not allow it. `is_huge`
    // wishes for huge pages: else they are small, but for what `use_huge_pages` names.
    explicit Region(std::size_t bytes, bool is_huge = true);
    // The first bytes of a file in memory, which other processes map too. Throws std::bad_alloc likewise.
    static Region of_file(int file, std::size_t bytes, bool is_writable);
    ~Region();
    Region(Region&& other) noexcept;
    Region& operator=(Region&& other) noexcept;
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    // For the huge pages that lie in [begin, end), before they are first touched.
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

// Forgets the pages of a file's read-only map that [first, first + bytes) lies on. They no longer count
// as this process's memory, and whoever reads them again has them mapped again.
void forget_pages(const void* first, std::size_t bytes);

// Gives what the C library's heap holds and does not use back to the operating system.
void trim_heap();

// Makes a region that is too small larger, by half again: so that steps of slowly rising size do not map
// anew each time. What it held is lost.
void grow(Region& region, std::size_t bytes);

}  // namespace weft
