#include "model/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "int8/int8.h"

namespace weft {
namespace {

// A column of a panel begins at this byte; its next step of depth is 128 bytes further.
constexpr std::size_t kLaneBytes = 4;

std::byte* column_start(const Matrix& matrix, Element element, int column) {
    const auto panel_bytes = static_cast<std::size_t>(matrix.depth) * kPanelColumns *
                             static_cast<std::size_t>(element_bytes(element));
    return matrix.panels + static_cast<std::size_t>(column / kPanelColumns) * panel_bytes +
           static_cast<std::size_t>(column % kPanelColumns) * kLaneBytes;
}

constexpr std::uint32_t kFloat32Exponent = 0x7F800000;

// Number of elements that are widened at once.
constexpr int kRun = 256;

template <class Bits>
Bits bits_at(const char* data, std::int64_t index) {
    Bits bits;
    std::memcpy(&bits, data + index * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    return bits;
}

// True if no exponent is all ones.
template <class Bits>
bool has_finite(const char* data, std::int64_t first, std::int64_t last, Bits exponent) {
    Bits found = 0;
    for (std::int64_t i = first; i < last; i++)
        found |= static_cast<Bits>((bits_at<Bits>(data, i) & exponent) == exponent ? 1 : 0);
    return found == 0;
}

// Place of an element of depth in a column: bfloat16 is stored in pairs.
std::ptrdiff_t offset_of(std::ptrdiff_t depth, Element element) {
    if (element == Element::kFloat32) return depth * kPanelColumns;
    return depth / 2 * (2 * kPanelColumns) + depth % 2;
}

// Place of an element of depth for int8, which is stored in groups of four.
std::ptrdiff_t int8_offset(std::ptrdiff_t depth) { return depth / 4 * (4 * kPanelColumns) + depth % 4; }

}  // namespace

float widen_float16(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1F;
    const std::uint32_t fraction = bits & 0x3FF;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact
        const float value = static_cast<float>(fraction) * 0x1p-24F;
        return sign != 0 ? -value : value;
    }
    const std::uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
    const std::uint32_t wide = sign | (wide_exponent << 23) | (fraction << 13);
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

float scale_of(const Source& source, std::int64_t row) {
    return bits_at<float>(static_cast<const char*>(source.scales), row);
}

float element_of(const Source& source, std::int64_t index) {
    const char* data = static_cast<const char*>(source.data);
    if (source.stored == Stored::kFloat32) {
        float value;
        std::memcpy(&value, data + index * 4, sizeof value);
        return value;
    }
    if (source.stored == Stored::kInt8)
        return static_cast<float>(bits_at<std::int8_t>(data, index)) * scale_of(source, index / source.columns);
    std::uint16_t bits;
    std::memcpy(&bits, data + index * 2, sizeof bits);
    return source.stored == Stored::kBfloat16 ? widen_bfloat16(bits) : widen_float16(bits);
}

void widen_elements(const Source& source, std::int64_t start, int count, float* out) {
    const char* data = static_cast<const char*>(source.data);
    if (source.stored == Stored::kBfloat16) {
        for (int i = 0; i < count; i++) out[i] = widen_bfloat16(bits_at<std::uint16_t>(data, start + i));
        return;
    }
    if (source.stored == Stored::kInt8) {
        const float scale = scale_of(source, start / source.columns);
        for (int i = 0; i < count; i++) out[i] = static_cast<float>(bits_at<std::int8_t>(data, start + i)) * scale;
        return;
    }
    for (int i = 0; i < count; i++) out[i] = element_of(source, start + i);
}

bool is_finite(const Source& source, std::int64_t first, std::int64_t last) {
    const char* data = static_cast<const char*>(source.data);
    switch (source.stored) {
        case Stored::kFloat32:
            return has_finite<std::uint32_t>(data, first, last, kFloat32Exponent);
        case Stored::kBfloat16:
            return has_finite<std::uint16_t>(data, first, last, 0x7F80);
        case Stored::kFloat16:
            return has_finite<std::uint16_t>(data, first, last, 0x7C00);
        case Stored::kInt8:
            return first == last || has_finite<std::uint32_t>(static_cast<const char*>(source.scales),
                                                              first / source.columns,
                                                              (last - 1) / source.columns + 1, kFloat32Exponent);
        case Stored::kGrouped:  // checked when it is packed
            return true;
    }
    return false;
}

void copy_elements(const Source& source, std::int64_t first, std::int64_t last, Element element, std::byte* to) {
    const bool is_same = source.stored == (element == Element::kFloat32 ? Stored::kFloat32 : Stored::kBfloat16);
    const auto width = static_cast<std::size_t>(element_bytes(element));
    if (is_same) {
        std::memcpy(to + static_cast<std::size_t>(first) * width,
                    static_cast<const char*>(source.data) + static_cast<std::size_t>(first) * width,
                    static_cast<std::size_t>(last - first) * width);
        return;
    }
    for (std::int64_t i = first; i < last; i++) {
        const float value = element_of(source, i);
        if (element == Element::kFloat32) reinterpret_cast<float*>(to)[i] = value;
        else reinterpret_cast<std::uint16_t*>(to)[i] = narrow_bfloat16(value);
    }
}

void pack_run(const Source& source, std::int64_t row, int first, int last, const Matrix& matrix,
              Element element, int column, int depth) {
    const std::int64_t start = row * source.columns + first;
    std::byte* to = column_start(matrix, element, column);
    const int count = last - first;
    if (element == Element::kFloat32) {
        auto* out = reinterpret_cast<float*>(to);
        for (int i = 0; i < count; i++) out[offset_of(depth + i, element)] = element_of(source, start + i);
        return;
    }
    auto* out = reinterpret_cast<std::uint16_t*>(to);
    if (source.stored != Stored::kBfloat16) {
        float values[kRun];
        for (int i = 0; i < count; i++) {
            if (i % kRun == 0) widen_elements(source, start + i, std::min(kRun, count - i), values);
            out[offset_of(depth + i, element)] = narrow_bfloat16(values[i % kRun]);
        }
        return;
    }
    const char* bits = static_cast<const char*>(source.data) + start * 2;
    int i = 0;
    if (depth % 2 == 0)  // whole pairs, four bytes at a time
        for (; i + 1 < count; i += 2) std::memcpy(out + offset_of(depth + i, element), bits + i * 2, 4);
    for (; i < count; i++) std::memcpy(out + offset_of(depth + i, element), bits + i * 2, 2);
}

float largest_of(const Source& source, std::int64_t row) {
    const std::int64_t start = row * source.columns;
    if (!is_finite(source, start, start + source.columns)) return std::numeric_limits<float>::quiet_NaN();
    float values[kRun];
    float most = 0;
    for (std::int64_t first = 0; first < source.columns; first += kRun) {
        const int count = static_cast<int>(std::min<std::int64_t>(kRun, source.columns - first));
        widen_elements(source, start + first, count, values);
        for (int i = 0; i < count; i++) most = std::max(most, std::fabs(values[i]));
    }
    return most;
}

void pack_int8_run(const Source& source, std::int64_t row, int first, int last, const Matrix& matrix,
                   float inverse, int column, int depth) {
    const auto panel_bytes = static_cast<std::size_t>(matrix.depth) * kPanelColumns;
    auto* to = reinterpret_cast<std::uint8_t*>(matrix.panels) +
               static_cast<std::size_t>(column / kPanelColumns) * panel_bytes +
               static_cast<std::size_t>(column % kPanelColumns) * kLaneBytes;
    float values[kRun];
    for (int from = first; from < last; from += kRun) {
        const int count = std::min(kRun, last - from);
        const std::int64_t start = row * source.columns + from;
        std::uint8_t bytes[kRun];
        const bool is_int8 = source.stored == Stored::kInt8;
        if (!is_int8) widen_elements(source, start, count, values);
        for (int i = 0; is_int8 && i < count; i++)
            bytes[i] = static_cast<std::uint8_t>(
                bits_at<std::int8_t>(static_cast<const char*>(source.data), start + i) + kInt8WeightShift);
        for (int i = 0; !is_int8 && i < count; i++) {
            // Adding 1.5 * 2^23 leaves no fraction, rounded to nearest even.
            const float whole = inverse == 0.0F ? 0.0F : values[i] * inverse + 12582912.0F - 12582912.0F;
            bytes[i] = static_cast<std::uint8_t>(static_cast<int>(whole) + kInt8WeightShift);
        }
        const int at = depth + from - first;
        int i = 0;
        if (at % 4 == 0)  // whole cells of one column, four bytes at a time
            for (; i + 3 < count; i += 4) std::memcpy(to + int8_offset(at + i), bytes + i, 4);
        for (; i < count; i++) to[int8_offset(at + i)] = bytes[i];
    }
}

void unpack_column(const Matrix& matrix, Element element, int column, int count, float* out) {
    const std::byte* from = column_start(matrix, element, column);
    if (element == Element::kFloat32) {
        const auto* values = reinterpret_cast<const float*>(from);
        for (int i = 0; i < count; i++) out[i] = values[offset_of(i, element)];
        return;
    }
    const auto* bits = reinterpret_cast<const std::uint16_t*>(from);
    for (int i = 0; i < count; i++) out[i] = widen_bfloat16(bits[offset_of(i, element)]);
}

}  // namespace weft
