#include "model/groups.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace weft {
namespace {

constexpr int kEight = 8;  // of depth, in one or two cells

void need(bool holds, const std::string& field, const std::string& allowed) {
    if (!holds) throw std::invalid_argument(field + " must " + allowed);
}

// Where a value of a column lies among 32 of them.
void put(std::uint8_t* to, int lane, const void* from, std::int64_t index, std::size_t bytes) {
    std::memcpy(to + static_cast<std::size_t>(lane) * bytes,
                static_cast<const char*>(from) + static_cast<std::size_t>(index) * bytes, bytes);
}

Source values_of(const void* data, ScaleType type) {
    const Stored stored[] = {Stored::kFloat32, Stored::kBfloat16, Stored::kFloat16};
    Source source;
    source.data = data;
    source.stored = stored[static_cast<int>(type)];
    return source;
}

bool are_finite(const GroupFormat& format, const Source& source, std::int64_t first, std::int64_t last) {
    if (!is_finite(values_of(source.scales, format.scales), first, last)) return false;
    return format.offset != Offset::kMinimums || is_finite(values_of(source.offsets, format.scales), first, last);
}

// The nearest number of four bits; zero of what is no number.
void round_numbers(const float* values, int count, float scale, float minimum, std::uint8_t* numbers) {
    const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
    for (int i = 0; i < count; i++) {
        const float number = (values[i] - minimum) * inverse;
        const float inside = number > 0.0F ? std::min(number, 15.0F) : 0.0F;
        numbers[i] = static_cast<std::uint8_t>(static_cast<int>(inside + 12582912.0F - 12582912.0F));
    }
}

// Least squares for the numbers that the lowest and the highest value give, and then their nearest numbers.
void round_group(const float* values, int count, std::uint8_t* numbers, std::uint16_t& scale_bits,
                 std::uint16_t& minimum_bits) {
    float low = values[0];
    float high = values[0];
    float sum = 0.0F;
    for (int i = 0; i < count; i++) {
        low = std::min(low, values[i]);
        high = std::max(high, values[i]);
        sum += values[i];
    }
    round_numbers(values, count, (high - low) / 15.0F, low, numbers);
    int total = 0;
    for (int i = 0; i < count; i++) total += numbers[i];
    const float mean_number = static_cast<float>(total) / static_cast<float>(count);
    const float mean = sum / static_cast<float>(count);
    float products = 0.0F;
    float squares = 0.0F;
    for (int i = 0; i < count; i++) {
        const float spread = static_cast<float>(numbers[i]) - mean_number;
        products += spread * values[i];
        squares += spread * spread;
    }
    const bool is_spread = high > low && squares > 0.0F;
    scale_bits = narrow_bfloat16(is_spread ? products / squares : sum * 0.0F);  // NaN stays one
    const float scale = widen_bfloat16(scale_bits);
    minimum_bits = narrow_bfloat16(mean - scale * mean_number);
    round_numbers(values, count, scale, widen_bfloat16(minimum_bits), numbers);
}

// Numbers of one group and column, eight of depth at a time; behind the row's end are zeros.
void put_numbers(const GroupFormat& format, const std::uint8_t* from, int count, int lane, std::uint8_t* to) {
    const int half = lane / kLanes * 64 + lane % kLanes * 4;
    for (int d = 0; d < count; d += kEight) {
        std::uint8_t eight[kEight] = {};
        std::memcpy(eight, from + d, static_cast<std::size_t>(std::min(kEight, count - d)));
        std::uint8_t* cell = to + number_bytes(format, d) + half;
        if (format.bits == 4)
            for (int k = 0; k < 4; k++) cell[k] = static_cast<std::uint8_t>(eight[k] | eight[k + 4] << 4);
        else
            for (int k = 0; k < kEight; k++) cell[k / 4 * 128 + k % 4] = eight[k];
    }
}

}  // namespace

void check_format(const GroupFormat& format, const std::string& field) {
    const int groups[] = {16, 32, 64, 128};
    need(format.bits == 4 || format.bits == 8, field + ": bits", "be 4 or 8");
    need(format.bits == 4 || format.offset != Offset::kE2m1, field + ": bits", "be 4 where numbers are codes");
    const bool is_row = format.group == 0 && format.bits == 4;  // sums of eight bits might not fit int32
    need(is_row || std::find(groups, groups + 4, format.group) != groups + 4, field + ": group",
         "be 16, 32, 64 or 128, or 0 of four bits");
}

void round_to_groups(const Source& source, std::int64_t first, std::int64_t last, const RoundedGroups& out) {
    std::uint8_t* numbers = out.numbers;
    std::size_t group = 0;
    for (std::int64_t row = first; row < last; row++)
        for (std::int64_t column = 0; column < source.columns; column += kRoundedFormat.group, group++) {
            const auto count = static_cast<int>(std::min<std::int64_t>(kRoundedFormat.group, source.columns - column));
            float values[kRoundedFormat.group];
            widen_elements(source, row * source.columns + column, count, values);
            round_group(values, count, numbers, out.scales[group], out.minimums[group]);
            numbers += count;
        }
}

void check_groups(const std::string& name, const GroupFormat& format, const Source& source) {
    const std::string field = "tensor " + name;
    const bool is_offset = has_offsets(format);
    if (source.stored != Stored::kGrouped && format == kRoundedFormat) return;  // rounded as it is packed
    need(source.stored == Stored::kGrouped && source.scales != nullptr, field, "have numbers in groups here");
    need((source.offsets != nullptr) == is_offset, field, is_offset ? "have offsets" : "have no offsets");
    need(source.groups == num_groups(format, static_cast<int>(source.columns)), field, "have a scale for each group");
    const auto scale_size = static_cast<std::size_t>(bytes_of(format.scales));
    need(source.scale_size == scale_size, field, "have scales of the type of its format");
    if (is_offset)
        need(source.offset_size == (format.offset == Offset::kZeros ? 2 : scale_size), field,
             "have offsets of the type of its format");
    int most = 0;
    const auto* numbers = static_cast<const std::uint8_t*>(source.data);
    for (std::int64_t i = 0; i < source.rows * source.columns; i++) most |= numbers[i];
    need(format.bits == 8 || most < 16, field, "have numbers of four bits");
}

bool pack_groups(const Source& source, std::int64_t row, const Matrix& matrix, int column) {
    const GroupFormat& format = *matrix.groups;
    const auto columns = static_cast<int>(source.columns);
    const int each = group_depth(format, columns);
    const int lane = column % kPanelColumns;
    auto* to = reinterpret_cast<std::uint8_t*>(matrix.panels) +
               column / kPanelColumns * panel_bytes(format, matrix.depth);
    const auto* numbers = static_cast<const std::uint8_t*>(source.data) + row * source.columns;
    for (int g = 0; g < source.groups; g++, to += group_bytes(format, matrix.depth)) {
        const std::int64_t at = row * source.groups + g;
        put(to, lane, source.scales, at, source.scale_size);
        if (has_offsets(format))
            put(to + scale_bytes(format), lane, source.offsets, at, source.offset_size);
        const int count = std::min(each, columns - g * each);
        put_numbers(format, numbers + g * each, count, lane, to + header_bytes(format));
    }
    return are_finite(format, source, row * source.groups, (row + 1) * source.groups);
}

}  // namespace weft
