#include "tests/parts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "model/groups.h"
#include "model/int8_product.h"

namespace weft {

int draw(std::mt19937& random, int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
}

void need(bool holds, const char* what, unsigned seed) {
    if (holds) return;
    std::fprintf(stderr, "seed %u: %s\n", seed, what);
    std::exit(1);
}

std::vector<float> draw_floats(std::mt19937& random, int count) {
    std::vector<float> floats(static_cast<std::size_t>(count));
    for (float& value : floats) value = static_cast<float>(draw(random, -100, 100)) / 30.0F;
    return floats;
}

namespace {

using Random = std::mt19937;

template <class Act>
bool is_refused(const Act& act) {
    try {
        act();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

// Draws scales with small exponents, in any type.
std::vector<std::byte> draw_scales(Random& random, ScaleType type, std::size_t count) {
    std::vector<std::byte> bytes(count * static_cast<std::size_t>(bytes_of(type)));
    for (std::size_t i = 0; i < count; i++) {
        const float value = static_cast<float>(draw(random, -100, 100)) / 10000.0F;
        const auto half = static_cast<std::uint16_t>(draw(random, 0x2000, 0x2400) | draw(random, 0, 1) << 15);
        const std::uint16_t upper = narrow_bfloat16(value);
        if (type == ScaleType::kFloat32) std::memcpy(&bytes[4 * i], &value, 4);
        else std::memcpy(&bytes[2 * i], type == ScaleType::kBfloat16 ? &upper : &half, 2);
    }
    return bytes;
}

// Checks products of weights in groups: they have the bits of the portable path, and inconsistent sizes are refused.
void check_grouped_products(Random& random, unsigned seed, const std::string& path) {
    for (int round = 0; round < 6; round++) {
        const int rows = draw(random, 1, 40);
        const int depth = draw(random, 1, 300);
        const int columns = draw(random, 1, 100);
        const GroupFormat format = draw_format(random);
        const GroupedArrays arrays(random, format, columns, depth);
        const std::vector<float> x = draw_floats(random, rows * depth);
        std::vector<float> expected(static_cast<std::size_t>(rows * columns));
        std::vector<float> got(expected.size());
        multiply_grouped("portable", format, x, arrays.source(), expected);
        multiply_grouped(path, format, x, arrays.source(), got);
        need(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0, "grouped products differ", seed);
        for (int field = 0; field < (format == kRoundedFormat ? 3 : 4); field++) {  // other types are rounded to that
            Source broken = arrays.source();
            if (field == 0) broken.groups++;
            if (field == 1) broken.scale_size += 2;
            if (field == 2) broken.offsets = broken.offsets == nullptr ? broken.scales : nullptr;
            if (field == 3) broken.stored = Stored::kInt8;
            need(is_refused([&] { multiply_grouped(path, format, x, broken, got); }), "a broken group was taken", seed);
        }
    }
}

// Checks that four-bit numbers in halves of a file's bytes, at any place, give the same products as numbers of one
// byte each.
void check_halved_products(Random& random, unsigned seed, const std::string& path) {
    for (int round = 0; round < 6; round++) {
        const int rows = draw(random, 1, 10);
        const int columns = draw(random, 1, 70);
        const int run = draw(random, 1, 40);
        const int block_bytes = run * draw(random, 1, 3);
        const int blocks = draw(random, 1, 4);
        const int block_step = block_bytes + draw(random, 0, 5);
        const int row_step = blocks * block_step + draw(random, 0, 5);
        const int depth = 2 * block_bytes * blocks;
        GroupFormat format = draw_format(random);
        format.bits = 4;
        const GroupedArrays arrays(random, format, columns, depth);
        const Source source = arrays.source();
        const auto* numbers = static_cast<const std::uint8_t*>(source.data);
        const int size = (columns - 1) * row_step + (blocks - 1) * block_step + block_bytes;
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
        for (int i = 0; i < columns * depth; i++) {
            const int in_block = i % depth % (2 * block_bytes);
            const int place = i / depth * row_step + i % depth / (2 * block_bytes) * block_step +
                              in_block / (2 * run) * run + in_block % run;
            bytes[static_cast<std::size_t>(place)] |=
                static_cast<std::uint8_t>(numbers[i] << (in_block % (2 * run) < run ? 0 : 4));
        }
        Source halved = source;
        halved.data = bytes.data();
        halved.halves = {run, block_bytes, block_step, row_step};
        const std::vector<float> x = draw_floats(random, rows * depth);
        std::vector<float> expected(static_cast<std::size_t>(rows * columns));
        std::vector<float> got(expected.size());
        multiply_grouped(path, format, x, source, expected);
        multiply_grouped(path, format, x, halved, got);
        need(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0, "halves differ", seed);
    }
}

}  // namespace

GroupFormat draw_format(Random& random) {
    const int groups[] = {16, 32, 64, 128, 0};
    GroupFormat format;
    format.bits = draw(random, 0, 1) == 1 ? 4 : 8;
    format.group = groups[draw(random, 0, format.bits == 4 ? 4 : 3)];
    format.offset = static_cast<Offset>(draw(random, 0, format.bits == 4 ? 3 : 2));
    format.scales = static_cast<ScaleType>(draw(random, 0, 2));
    return format;
}

const std::optional<GroupFormat>& format_of(const ModelSpec& spec, const std::string& name) {
    static const std::optional<GroupFormat> none;
    if (!name.starts_with("layers.") || name.ends_with(".bias") || name.find(".input.") != std::string::npos) return none;
    const LayerSpec& layer = spec.layers[static_cast<std::size_t>(name[7] - '0')];
    const std::string part = name.substr(name.rfind('.') + 1);
    if (name.find(".experts.") != std::string::npos)
        return part == "down" ? layer.experts->down_groups : layer.experts->up_groups;
    if (layer.is_beside && (part.starts_with("mamba_") || part.starts_with("delta_"))) return none;
    for (const char* name : {"q", "k", "v", "q_a", "kv_a", "conv_in", "mamba_in", "delta_qkvz", "delta_qkv", "delta_z"})
        if (part == name) return layer.qkv_groups;
    if (part == "q_b") return layer.q_b_groups;
    for (const char* name : {"o", "conv_out", "mamba_out", "delta_out"})
        if (part == name) return layer.o_groups;
    if (part == "gate" || part == "up") return layer.up_groups;
    return part == "down" ? layer.down_groups : none;
}

GroupedArrays::GroupedArrays(std::mt19937& random, const GroupFormat& format, int rows, int columns)
    : format_(format), rows_(rows), columns_(columns), groups_(num_groups(format, columns)) {
    numbers_.resize(static_cast<std::size_t>(rows * columns));
    for (std::uint8_t& number : numbers_) number = static_cast<std::uint8_t>(draw(random, 0, (1 << format.bits) - 1));
    const auto count = static_cast<std::size_t>(rows * groups_);
    scales_ = draw_scales(random, format.scales, count);
    if (format.offset == Offset::kMinimums) offsets_ = draw_scales(random, format.scales, count);
    if (format.offset != Offset::kZeros) return;
    offsets_.resize(count * 2);
    for (std::size_t i = 0; i < count; i++) {
        const auto zero = static_cast<std::int16_t>(draw(random, 0, 1 << format.bits));
        std::memcpy(&offsets_[2 * i], &zero, 2);
    }
}

Source GroupedArrays::source() const {
    Source source{numbers_.data(), Stored::kGrouped, rows_, columns_, scales_.data()};
    source.groups = groups_;
    source.scale_size = static_cast<std::size_t>(bytes_of(format_.scales));
    source.offsets = offsets_.empty() ? nullptr : offsets_.data();
    source.offset_size = format_.offset == Offset::kZeros ? 2 : source.scale_size;
    return source;
}

GroupedArrays GroupedArrays::broken() const {
    GroupedArrays other = *this;
    // All ones are NaN in every scale type.
    std::fill(other.scales_.end() - bytes_of(format_.scales), other.scales_.end(), std::byte{0xFF});
    return other;
}

void check_products(unsigned seed, const std::string& path) {
    Random random(seed);
    check_grouped_products(random, seed, path);
    check_halved_products(random, seed, path);
    for (int round = 0; round < 6; round++) {
        const int rows = draw(random, 1, 40);
        const int depth = draw(random, 1, 300);
        const int columns = draw(random, 1, 100);
        std::vector<float> x = draw_floats(random, rows * depth);
        std::vector<float> weights = draw_floats(random, columns * depth);
        const float strange[] = {NAN, INFINITY, 1e-38F, 3e38F, 0.0F};
        if (round % 2 == 1) x[static_cast<std::size_t>(draw(random, 0, rows * depth - 1))] = strange[draw(random, 0, 4)];
        if (round % 3 == 2) std::fill_n(weights.begin(), depth, 0.0F);
        const Source source{weights.data(), Stored::kFloat32, columns, depth};
        std::vector<float> expected(static_cast<std::size_t>(rows * columns));
        std::vector<float> got(expected.size());
        multiply_int8("portable", x, source, expected);
        multiply_int8(path, x, source, got);
        for (std::size_t i = 0; i < got.size(); i++) {
            const bool is_same = std::memcmp(&got[i], &expected[i], sizeof(float)) == 0;
            need(is_same || (std::isnan(got[i]) && std::isnan(expected[i])), "int8 products differ", seed);
        }
        const std::span<const float> fewer(x.data(), x.size() - 1);
        const std::span<float> short_out(got.data(), got.size() - 1);
        const bool is_one_deep = depth == 1;  // then fewer numbers are fewer rows
        need(is_one_deep || is_refused([&] { multiply_int8(path, fewer, source, got); }), "a cut row", seed);
        need(is_refused([&] { multiply_int8(path, x, source, short_out); }), "an output too small", seed);
    }
}

}  // namespace weft
