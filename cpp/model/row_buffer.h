// The values of a step by row: their address, and memory for them.
#pragma once

#include <cstddef>

#include "model/region.h"

namespace weft {

// Rows of elements of one size.
struct RowsAt {
    std::byte* first;
    std::ptrdiff_t stride;  // elements between successive rows
    int element_bytes;

    std::byte* row(std::ptrdiff_t index) const { return first + index * stride * element_bytes; }
    float* floats(std::ptrdiff_t index) const { return reinterpret_cast<float*>(row(index)); }
    RowsAt from(std::ptrdiff_t index) const { return {row(index), stride, element_bytes}; }
};

// Kept between steps, and enlarged when a step needs more.
class RowBuffer {
public:
    // Makes room for `rows` of up to `width` elements; the contents are lost. Rows begin an odd number of cache lines
    // apart: at powers of two, rows that are read together would share a few sets of the first cache.
    void make_room(std::size_t rows, int width, int element_bytes) {
        constexpr int kLine = 64;
        const int lines = (width * element_bytes + kLine - 1) / kLine;
        const int row_bytes = (lines % 2 == 0 ? lines + 1 : lines) * kLine;
        grow(region_, rows * static_cast<std::size_t>(row_bytes));
        rows_ = {region_.data(), row_bytes / element_bytes, element_bytes};
    }

    const RowsAt& rows() const { return rows_; }

private:
    Region region_;
    RowsAt rows_{};
};

// The rows that a part of a layer processes: all rows of the step, or in the last layer only the wanted ones.
struct LayerRows {
    int count;
    RowsAt hidden;
    RowsAt attended;
};

}  // namespace weft
