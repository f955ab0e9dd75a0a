// Weights in groups: which formats there are, and from a source's rows to columns of panels.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "int8/grouped.h"
#include "model/pack.h"

namespace weft {

// Throws std::invalid_argument that names `field` for a format that no kernel has.
void check_format(const GroupFormat& format, const std::string& field);

// Throws std::invalid_argument, naming the tensor, for a source whose groups are not those of `format`.
void check_groups(const std::string& name, const GroupFormat& format, const Source& source);

// What floats are rounded to as they are packed. A minimum is nearer than a symmetric scale, for half a bit a weight
// more: relative L2 0.075 of normal numbers, and 0.081 of those after a search for the best scale.
constexpr GroupFormat kRoundedFormat = {4, 32, Offset::kMinimums, ScaleType::kBfloat16};

// Rows of a source of floats, [rows][columns], in that format.
struct RoundedGroups {
    std::uint8_t* numbers;    // [rows][columns]
    std::uint16_t* scales;    // [rows][groups]
    std::uint16_t* minimums;  // the same
};

// Rows [first, last) of the source, to rows from 0 on. What is not finite shows in its group's scale.
void round_to_groups(const Source& source, std::int64_t first, std::int64_t last, const RoundedGroups& out);

// Rows from `first` on of a source that `check_groups` has passed, each to its packed column. False if a scale or an
// offset is no number.
bool pack_groups(const Source& source, std::int64_t first, std::span<const int> columns, const Matrix& matrix);

}  // namespace weft
