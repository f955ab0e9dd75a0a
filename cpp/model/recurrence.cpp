#include "model/recurrence.h"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace weft {
namespace {

constexpr std::int64_t kMostColumns = 1 << 24;
constexpr std::int64_t kMostState = 1 << 26;
constexpr std::int64_t kMostWeights = 1 << 30;  // of a matrix between convolution and heads

void need(bool holds, const std::string& field, const std::string& allowed) {
    if (!holds) throw std::invalid_argument(field + " must be " + allowed);
}

bool is_size(int value) { return value >= 1 && value <= kMostColumns; }

void check_rest(const std::string& kind, std::int64_t columns, std::int64_t state, int conv_width) {
    need(columns <= kMostColumns, kind + ": num_heads", "small enough for 2^24 columns");
    need(state <= kMostState, kind + ": a head's state", "small enough for 2^26 numbers of all heads");
    need(conv_width >= 2 && conv_width <= kMostConvWidth, kind + ": conv_width", "from 2 to 64");
}

RecurrentSizes sizes_of(const MambaSpec& mamba) {
    const int inner = mamba.inner_size();
    const int channels = inner + 2 * mamba.num_groups * mamba.state_dim;
    RecurrentSizes sizes{};
    sizes.num_heads = mamba.num_heads;
    sizes.made = inner + channels + mamba.num_heads;
    sizes.num_matrices = 1;
    sizes.first_channel = inner;
    sizes.conv_size = channels;
    sizes.conv_width = mamba.conv_width;
    sizes.inner_size = inner;
    sizes.num_scales = mamba.is_normed ? inner : 0;
    sizes.num_skips = mamba.num_heads;
    sizes.num_decays = sizes.num_steps = mamba.num_heads;
    sizes.head_state = static_cast<std::ptrdiff_t>(mamba.state_dim) * mamba.head_dim;
    return sizes;
}

RecurrentSizes sizes_of(const DeltaSpec& delta) {
    RecurrentSizes sizes{};
    sizes.num_heads = delta.num_value_heads;
    sizes.conv_size = 2 * delta.keys_size() + delta.inner_size();
    sizes.made = sizes.conv_size + delta.inner_size();
    sizes.unrounded = 2 * delta.num_value_heads;
    sizes.num_matrices = delta.is_by_key_head ? 1 : 2;
    sizes.conv_width = delta.conv_width;
    sizes.first_output = 2 * delta.keys_size();
    sizes.inner_size = delta.inner_size();
    sizes.num_scales = delta.value_size;
    sizes.num_decays = sizes.num_steps = delta.num_value_heads;
    sizes.head_state = static_cast<std::ptrdiff_t>(delta.key_size) * delta.value_size;
    return sizes;
}

RecurrentSizes sizes_of(const Mamba1Spec& mamba) {
    const int inner = mamba.inner_size;
    RecurrentSizes sizes{};
    sizes.num_heads = mamba.num_heads();
    sizes.made = 2 * inner;
    sizes.num_matrices = 1;
    sizes.conv_size = inner;
    sizes.conv_width = mamba.conv_width;
    sizes.inner_size = inner;
    sizes.num_skips = sizes.num_steps = inner;
    sizes.num_decays = inner * mamba.state_dim;
    sizes.num_step_in = static_cast<std::ptrdiff_t>(mamba.made_size()) * inner;
    sizes.num_step_out = static_cast<std::ptrdiff_t>(mamba.step_rank) * inner;
    sizes.has_rates = true;
    sizes.num_between = inner + mamba.made_size();
    sizes.head_state = static_cast<std::ptrdiff_t>(mamba.state_dim) * mamba.head_dim();
    return sizes;
}

void check_kind(const MambaSpec& mamba) {
    for (const int size : {mamba.num_heads, mamba.head_dim, mamba.state_dim, mamba.num_groups})
        need(is_size(size), "mamba: num_heads, head_dim, state_dim and num_groups", "from 1 to 2^24");
    need(mamba.num_heads % mamba.num_groups == 0, "mamba: num_groups", "a divisor of num_heads");
    need(mamba.min_step >= 0 && mamba.min_step < mamba.max_step, "mamba: min_step", "from 0 to under max_step");
    const std::int64_t inner = static_cast<std::int64_t>(mamba.num_heads) * mamba.head_dim;
    const std::int64_t shared = 2 * static_cast<std::int64_t>(mamba.num_groups) * mamba.state_dim;
    check_rest("mamba", 2 * inner + shared + mamba.num_heads, inner * mamba.state_dim, mamba.conv_width);
}

void check_kind(const DeltaSpec& delta) {
    for (const int size : {delta.num_key_heads, delta.num_value_heads, delta.key_size, delta.value_size})
        need(is_size(size), "delta: num_key_heads, num_value_heads, key_size and value_size", "from 1 to 2^24");
    need(delta.num_value_heads % delta.num_key_heads == 0, "delta: num_value_heads", "a multiple of num_key_heads");
    const std::int64_t keys = static_cast<std::int64_t>(delta.num_key_heads) * delta.key_size;
    const std::int64_t inner = static_cast<std::int64_t>(delta.num_value_heads) * delta.value_size;
    check_rest("delta", 2 * (keys + inner + delta.num_value_heads), inner * delta.key_size, delta.conv_width);
}

void check_kind(const Mamba1Spec& mamba) {
    for (const int size : {mamba.inner_size, mamba.state_dim, mamba.step_rank})
        need(is_size(size), "mamba1: inner_size, state_dim and step_rank", "from 1 to 2^24");
    need(mamba.step_eps >= 0, "mamba1: step_eps", "0 or more");
    const std::int64_t inner = mamba.inner_size;
    const std::int64_t made = mamba.step_rank + 2 * static_cast<std::int64_t>(mamba.state_dim);
    need(inner * made <= kMostWeights, "mamba1: step_rank", "small enough for 2^30 weights");
    check_rest("mamba1", 2 * inner + made, inner * mamba.state_dim, mamba.conv_width);
}

}  // namespace

RecurrentSizes sizes(const RecurrentSpec& spec) {
    return std::visit([](const auto& kind) { return sizes_of(kind); }, spec);
}

void check(const RecurrentSpec& spec) {
    std::visit([](const auto& kind) { check_kind(kind); }, spec);
}

}  // namespace weft
