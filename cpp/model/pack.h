// Packing of rows of a checkpoint's tensor into columns of panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "int8/grouped.h"
#include "kernels/kernels.h"

namespace weft {

// Numbers of four bits in a file's blocks: each `run` bytes hold the low halves first, and then the high halves.
struct Halves {
    std::int64_t run;  // bytes of a run; a block has a multiple
    std::int64_t block_bytes;
    std::int64_t block_step;  // bytes from one block of a row to the next
    std::int64_t row_step;
};

// kGrouped: unsigned numbers in the sense of `GroupFormat`, one byte each or in `Halves`.
enum class Stored { kFloat32, kBfloat16, kFloat16, kInt8, kGrouped };

constexpr std::size_t stored_bytes(Stored stored) {
    return stored == Stored::kFloat32 ? 4 : stored == Stored::kInt8 || stored == Stored::kGrouped ? 1 : 2;
}

// A tensor of the checkpoint, row by row; a vector has one column. A file may place both arrays anywhere.
struct Source {
    const void* data = nullptr;
    Stored stored = Stored::kFloat32;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    const void* scales = nullptr;  // for int8: a float per row, the factor of its whole numbers
    // The data is a file's read-only map, whose pages may be dropped: they are read again on access.
    bool is_mapped = false;
    // For groups: their number per row, their zeros (16 bits) or minimums, and the bytes per value of both arrays.
    std::int64_t groups = 0;
    const void* offsets = nullptr;
    std::size_t scale_size = sizeof(float);
    std::size_t offset_size = 0;
    std::optional<Halves> halves = std::nullopt;
};

// A packed matrix: `columns` output rows in panels of 32, each `depth` deep. Both are padded.
struct Matrix {
    std::byte* panels = nullptr;
    int depth = 0;
    int columns = 0;
    std::vector<float> bias;    // by packed column, or empty
    std::vector<float> scales;  // by packed column for int8 weights, else empty
    std::optional<GroupFormat> groups;  // set if each panel has scales by group
    bool is_float32 = false;  // float32, even if the model's other matrices are not

    bool is_int8() const { return !scales.empty(); }
    int num_groups() const { return groups ? weft::num_groups(*groups, depth) : 1; }
    int group_depth() const { return groups ? weft::group_depth(*groups, depth) : depth; }
    int num_panels() const { return columns / kPanelColumns; }
};

inline float widen_bfloat16(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}
float widen_float16(std::uint16_t bits);
// Rounds to nearest, ties to even.
inline std::uint16_t narrow_bfloat16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40);  // stays a NaN
    return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// The scale of a row of int8.
float scale_of(const Source& source, std::int64_t row);

// Widens up to 256 elements of one row, from `start` on.
void widen_elements(const Source& source, std::int64_t start, int count, float* out);

// Returns an element of the tensor, widened. `index` counts row by row.
float element_of(const Source& source, std::int64_t index);

// True if elements [first, last) are all finite. `first` and `last` count row by row.
bool is_finite(const Source& source, std::int64_t first, std::int64_t last);

// Copies elements [first, last), counted row by row, to the same places of `to`, converted to `element`.
void copy_elements(const Source& source, std::int64_t first, std::int64_t last, Element element, std::byte* to);

// Packs elements [first, last) of a source row to depths from `depth` on of one packed column.
void pack_run(const Source& source, std::int64_t row, int first, int last, const Matrix& matrix,
              Element element, int column, int depth);

// The largest magnitude of a source row; NaN if it holds NaN or infinity.
float largest_of(const Source& source, std::int64_t row);

// Like `pack_run`, for a matrix of int8: each element times `inverse`, rounded; an int8 source keeps its whole
// numbers.
void pack_int8_run(const Source& source, std::int64_t row, int first, int last, const Matrix& matrix,
                   float inverse, int column, int depth);

// Widens one packed column into `out[0 .. count)`.
void unpack_column(const Matrix& matrix, Element element, int column, int count, float* out);

}  // namespace weft
