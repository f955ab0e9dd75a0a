#include "model/groups.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace weft {
namespace {

constexpr int kEight = 8;  // elements of depth, in one or two cells
// Number of groups of a row that are packed before the next row: some cache lines of the source; the parts of panels
// that they fill stay in the first cache.
constexpr int kGroupsAtOnce = 16;

void need(bool holds, const std::string& field, const std::string& allowed) {
    if (!holds) throw std::invalid_argument(field + " must " + allowed);
}

// Stores a value of two or four bytes of a column among those of 32 columns.
void put(std::uint8_t* to, int lane, const void* from, std::int64_t index, std::size_t bytes) {
    std::uint8_t* place = to + static_cast<std::size_t>(lane) * bytes;
    const char* value = static_cast<const char*>(from) + static_cast<std::size_t>(index) * bytes;
    if (bytes == 2) std::memcpy(place, value, 2);
    else std::memcpy(place, value, 4);
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

// Rounds values to the nearest four-bit numbers; NaN becomes zero.
void round_numbers(const float* values, int count, float scale, float minimum, std::uint8_t* numbers) {
    const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
    for (int i = 0; i < count; i++) {
        const float number = (values[i] - minimum) * inverse;
        const float inside = number > 0.0F ? std::min(number, 15.0F) : 0.0F;
        numbers[i] = static_cast<std::uint8_t>(static_cast<int>(inside + 12582912.0F - 12582912.0F));
    }
}

// Quantizes a group: scale and minimum by least squares for the numbers that the lowest and highest value give, then
// the nearest numbers for these.
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
    scale_bits = narrow_bfloat16(is_spread ? products / squares : sum * 0.0F);  // NaN gives NaN
    const float scale = widen_bfloat16(scale_bits);
    minimum_bits = narrow_bfloat16(mean - scale * mean_number);
    round_numbers(values, count, scale, widen_bfloat16(minimum_bits), numbers);
}

// Copies up to eight bytes. A copy of a constant length is one instruction, any other copy is a call.
void copy_eight(void* to, const void* from, int count) {
    if (count >= kEight) std::memcpy(to, from, kEight);
    else std::memcpy(to, from, static_cast<std::size_t>(count));
}

// Returns up to eight numbers, one byte each, the first in the lowest byte; missing ones are zeros.
std::uint64_t eight_of(const std::uint8_t* from, int count) {
    std::uint64_t eight = 0;
    copy_eight(&eight, from, count);
    return eight;
}

// Stores the numbers of one group and column, eight of depth at a time; zeros follow the row's end.
void put_numbers(const GroupFormat& format, const std::uint8_t* from, int count, int lane, std::uint8_t* to) {
    const int half = lane / kLanes * 64 + lane % kLanes * 4;
    for (int d = 0; d < count; d += kEight) {
        const std::uint64_t eight = eight_of(from + d, count - d);
        const auto low = static_cast<std::uint32_t>(eight);
        const auto high = static_cast<std::uint32_t>(eight >> 32);
        std::uint8_t* cell = to + number_bytes(format, d) + half;
        if (format.bits == 4) {
            const std::uint32_t both = low | high << 4;
            std::memcpy(cell, &both, sizeof both);
        } else {
            std::memcpy(cell, &low, sizeof low);
            std::memcpy(cell + 128, &high, sizeof high);
        }
    }
}

// Numbers of a group in one half of adjacent bytes: their place in the row, their count, and the half.
struct Piece {
    std::int64_t place;
    int length;
    int shift;
};

std::vector<Piece> pieces_of(const Halves& halves, std::int64_t first, int count) {
    std::vector<Piece> pieces;
    for (std::int64_t at = first; at < first + count; at += pieces.back().length) {
        const std::int64_t in_block = at % (2 * halves.block_bytes);
        const std::int64_t in_pair = in_block % (2 * halves.run);
        const std::int64_t in_run = in_pair % halves.run;
        const std::int64_t place = at / (2 * halves.block_bytes) * halves.block_step +
                                   in_block / (2 * halves.run) * halves.run + in_run;
        const auto length = static_cast<int>(std::min(halves.run - in_run, first + count - at));
        pieces.push_back({place, length, in_pair < halves.run ? 0 : 4});
    }
    return pieces;
}

// Unpacks pieces to one byte per number.
void take_apart(const std::vector<Piece>& pieces, const std::uint8_t* row, std::uint8_t* out) {
    for (const Piece& piece : pieces) {
        for (int i = 0; i < piece.length; i += kEight) {
            const int left = piece.length - i;
            const std::uint64_t eight = eight_of(row + piece.place + i, left) >> piece.shift & 0x0F0F0F0F0F0F0F0FU;
            copy_eight(out + i, &eight, left);
        }
        out += piece.length;
    }
}

}  // namespace

void check_format(const GroupFormat& format, const std::string& field) {
    const int groups[] = {16, 32, 64, 128};
    need(format.bits == 4 || format.bits == 8, field + ": bits", "be 4 or 8");
    need(format.bits == 4 || format.offset != Offset::kE2m1, field + ": bits", "be 4 where numbers are codes");
    // With eight bits, the sums of a whole row might exceed int32.
    const bool is_row = format.group == 0 && format.bits == 4;
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
    // Floats are quantized when they are packed.
    if (source.stored != Stored::kGrouped && format == kRoundedFormat) return;
    need(source.stored == Stored::kGrouped && source.scales != nullptr, field, "have numbers in groups here");
    need((source.offsets != nullptr) == is_offset, field, is_offset ? "have offsets" : "have no offsets");
    need(source.groups == num_groups(format, static_cast<int>(source.columns)), field, "have a scale for each group");
    const auto scale_size = static_cast<std::size_t>(bytes_of(format.scales));
    need(source.scale_size == scale_size, field, "have scales of the type of its format");
    if (is_offset)
        need(source.offset_size == (format.offset == Offset::kZeros ? 2 : scale_size), field,
             "have offsets of the type of its format");
    if (source.halves) return need(format.bits == 4, field, "have numbers of eight bits");
    if (format.bits == 8) return;
    std::uint64_t all = 0;
    const auto* numbers = static_cast<const std::uint8_t*>(source.data);
    const std::int64_t count = source.rows * source.columns;
    for (std::int64_t i = 0; i < count; i += kEight)
        all |= eight_of(numbers + i, static_cast<int>(std::min<std::int64_t>(kEight, count - i)));
    need((all & 0xF0F0F0F0F0F0F0F0U) == 0, field, "have numbers of four bits");
}

bool pack_groups(const Source& source, std::int64_t first, std::span<const int> columns, const Matrix& matrix) {
    const GroupFormat& format = *matrix.groups;
    const auto depth = static_cast<int>(source.columns);
    const int each = group_depth(format, depth);
    const std::int64_t row_step = source.halves ? source.halves->row_step : source.columns;
    const auto* data = static_cast<const std::uint8_t*>(source.data) + first * row_step;
    std::vector<std::uint8_t> apart(source.halves ? static_cast<std::size_t>(each) : 0);
    std::vector<std::vector<Piece>> pieces(kGroupsAtOnce);
    for (int begin = 0; begin < source.groups; begin += kGroupsAtOnce) {
        const int end = std::min(begin + kGroupsAtOnce, static_cast<int>(source.groups));
        const auto count_of = [&](int g) { return std::min(each, depth - g * each); };
        for (int g = begin; g < end && source.halves; g++)
            pieces[static_cast<std::size_t>(g - begin)] = pieces_of(*source.halves, g * each, count_of(g));
        for (std::size_t i = 0; i < columns.size(); i++) {
            const auto index = static_cast<std::int64_t>(i);
            const std::uint8_t* row = data + index * row_step;
            const int lane = columns[i] % kPanelColumns;
            auto* to = reinterpret_cast<std::uint8_t*>(matrix.panels) +
                       columns[i] / kPanelColumns * panel_bytes(format, matrix.depth) +
                       begin * group_bytes(format, matrix.depth);
            for (int g = begin; g < end; g++, to += group_bytes(format, matrix.depth)) {
                const std::int64_t at = (first + index) * source.groups + g;
                put(to, lane, source.scales, at, source.scale_size);
                if (has_offsets(format)) put(to + scale_bytes(format), lane, source.offsets, at, source.offset_size);
                if (source.halves) take_apart(pieces[static_cast<std::size_t>(g - begin)], row, apart.data());
                const std::uint8_t* numbers = source.halves ? apart.data() : row + g * each;
                put_numbers(format, numbers, count_of(g), lane, to + header_bytes(format));
            }
        }
    }
    const std::int64_t last = first + static_cast<std::int64_t>(columns.size());
    return are_finite(format, source, first * source.groups, last * source.groups);
}

}  // namespace weft
