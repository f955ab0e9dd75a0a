#include "model/pack.h"

#include <cstring>

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

// Place of an element of depth in a column: bfloat16 lies in pairs.
std::ptrdiff_t offset_of(std::ptrdiff_t depth, Element element) {
    if (element == Element::kFloat32) return depth * kPanelColumns;
    return depth / 2 * (2 * kPanelColumns) + depth % 2;
}

}  // namespace

float widen_bfloat16(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

std::uint16_t narrow_bfloat16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40);  // stays a NaN
    return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

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

float element_of(const Source& source, std::int64_t index) {
    const char* data = static_cast<const char*>(source.data);
    if (source.stored == Stored::kFloat32) {
        float value;
        std::memcpy(&value, data + index * 4, sizeof value);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, data + index * 2, sizeof bits);
    return source.stored == Stored::kBfloat16 ? widen_bfloat16(bits) : widen_float16(bits);
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
        for (int i = 0; i < count; i++)
            out[offset_of(depth + i, element)] = narrow_bfloat16(element_of(source, start + i));
        return;
    }
    const char* bits = static_cast<const char*>(source.data) + start * 2;
    int i = 0;
    if (depth % 2 == 0)  // whole pairs, four bytes at a time
        for (; i + 1 < count; i += 2) std::memcpy(out + offset_of(depth + i, element), bits + i * 2, 4);
    for (; i < count; i++) std::memcpy(out + offset_of(depth + i, element), bits + i * 2, 2);
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
