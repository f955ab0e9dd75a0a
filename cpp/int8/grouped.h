// Weights of four or eight bits in groups along a row's depth: their layout in memory, and the tasks of the kernels.
//
// A weight is its unsigned number minus its group's zero, times the group's scale; or its number times the scale,
// plus the group's minimum; or its number is the code of a small float (E2M1), and twice the float's value, a whole
// number, is multiplied by the scale. Activations are quantized to int8 in the same groups. Sums within a group are
// whole numbers, exact in any order; then, group after group, each becomes a float that is multiplied by the scale of
// the row and by that of the weights, and is added. Every instruction set gives the same bits, and so does
// `weft.compute.arithmetic.grouped` in numpy.
//
// A panel has 32 output rows and, group after group: scales [32]; zeros [32] or minimums [32]; numbers. Numbers of
// four bits are stored eight of depth at a time, in two cells of 64 bytes: byte 4 * i + k of a cell is column i, with
// depth k in its low half and depth 4 + k in its high half. Numbers of eight bits are stored in cells of depth four,
// like int8. The last group of a row may be shorter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace weft {

// Offset of the numbers of a group: half of their range (symmetric), a zero per group, or a minimum per group. E2M1
// codes have four bits, and carry their own sign.
enum class Offset { kSymmetric, kZeros, kMinimums, kE2m1 };
enum class ScaleType { kFloat32, kBfloat16, kFloat16 };

struct GroupFormat {
    int bits = 4;  // 4 or 8
    // Size of a group in depth: 16, 32, 64 or 128; with four bits also 0, for the whole row.
    int group = 32;
    Offset offset = Offset::kSymmetric;
    ScaleType scales = ScaleType::kFloat16;  // also the type of minimums

    bool operator==(const GroupFormat&) const = default;
};

// Twice the value of each E2M1 code (1 bit sign, 2 exponent, 1 mantissa), plus kE2m1Zero so that it is unsigned.
constexpr int kE2m1Zero = 12;
alignas(16) constexpr std::uint8_t kE2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// Static: each kernel file must keep the copy that is compiled for its own instructions.
static inline bool has_offsets(const GroupFormat& format) {
    return format.offset == Offset::kZeros || format.offset == Offset::kMinimums;
}
static inline std::ptrdiff_t bytes_of(ScaleType type) { return type == ScaleType::kFloat32 ? 4 : 2; }
static inline std::ptrdiff_t scale_bytes(const GroupFormat& format) { return kPanelColumns * bytes_of(format.scales); }
// Bytes before a group's numbers; zeros are 16 bits wide.
static inline std::ptrdiff_t header_bytes(const GroupFormat& format) {
    const std::ptrdiff_t others[] = {0, kPanelColumns * 2, scale_bytes(format), 0};
    return scale_bytes(format) + others[static_cast<int>(format.offset)];
}
static inline std::ptrdiff_t number_bytes(const GroupFormat& format, int depth) {
    return static_cast<std::ptrdiff_t>(depth) * kPanelColumns * format.bits / 8;
}
static inline int group_depth(const GroupFormat& format, int depth) { return format.group == 0 ? depth : format.group; }
static inline int num_groups(const GroupFormat& format, int depth) {
    const int each = group_depth(format, depth);
    return (depth + each - 1) / each;
}
static inline std::ptrdiff_t group_bytes(const GroupFormat& format, int depth) {
    return header_bytes(format) + number_bytes(format, group_depth(format, depth));
}
static inline std::ptrdiff_t panel_bytes(const GroupFormat& format, int depth) {
    return num_groups(format, depth) * header_bytes(format) + number_bytes(format, depth);
}

// Results of quantizing rows of activations besides the numbers, [groups][stride]: a kernel reads a group's values of
// several rows at once.
struct RowGroups {
    float* scales;       // NaN if the group holds NaN or infinity
    std::int32_t* sums;  // sums of the group's numbers
    float* scaled_sums;  // the sums times the scale, as floats: factors of the weights' minimums
    std::ptrdiff_t stride;

    // Always inline: each kernel file must have its own copy.
    [[gnu::always_inline]] RowGroups from(std::ptrdiff_t row) const {
        return {scales + row, sums + row, scaled_sums + row, stride};
    }
    [[gnu::always_inline]] RowGroups next() const { return from(stride); }  // of the next group
};

// `x` is int8 [rows][x_stride].
struct GroupedTask : GemmTask {
    GroupFormat format;
    RowGroups rounded;
};

}  // namespace weft
