#include "model/conv_step.h"

#include <algorithm>
#include <cstring>

#include "model/pack.h"

namespace weft {
namespace {

// Rounds a value as a state stores it; the step that computes the value uses the rounded one too.
float rounded(Element element, float value) {
    return element == Element::kBfloat16 ? widen_bfloat16(narrow_bfloat16(value)) : value;
}

float* floats(const Region& region) { return reinterpret_cast<float*>(region.data()); }

}  // namespace

void ConvSpace::make_room(const ModelSpec& spec, std::size_t sequences, int num_threads) {
    if (!spec.has_states()) return;
    int most = 0;
    for (const LayerSpec& layer : spec.layers) most = std::max(most, layer.conv_width - 1);
    const std::size_t row = static_cast<std::size_t>(spec.hidden_size);
    grow(before, sequences * static_cast<std::size_t>(most) * row * static_cast<std::size_t>(element_bytes(spec.element)));
    grow(sums, static_cast<std::size_t>(num_threads) * row * sizeof(float));
}

std::size_t ConvStep::row_bytes() const {
    return static_cast<std::size_t>(parts_.spec.hidden_size) *
           static_cast<std::size_t>(element_bytes(parts_.spec.element));
}

template <class Work>
void ConvStep::for_rows(const Work& work) {
    parts_.pool.share(parts_.plan.rows, parts_.at_once, [&](int thread, int begin, int end) {
        for (int row = begin; row < end; row++) work(thread, row);
    });
}

void ConvStep::run(const LayerSpec& layer, const LayerWeights& weights, const RowsAt& wide, const RowsAt& out,
                   std::byte* states, bool needs_rows) {
    const Layer of{weights, wide, out, states, layer.conv_width - 1};
    // A block that was begun belongs to its sequence, and is read before it is written. A full block may belong to
    // another sequence, which fills it in this very step, so it is read after all writes.
    for_rows([&](int, int row) { multiply(of, row); });
    if (of.keep > 0) for_rows([&](int, int row) { store(of, row); });
    if (needs_rows) for_rows([&](int thread, int row) { add_up(of, thread, row); });
}

// Address of the row of a position in the states.
std::byte* ConvStep::state(const Layer& layer, int sequence, int position) const {
    const std::int64_t size = parts_.kv.block_size;
    const auto place = static_cast<std::size_t>(sequence * parts_.batch.table_width + position / size);
    const auto block = static_cast<std::size_t>(parts_.batch.block_tables[place]);
    const auto keep = static_cast<std::size_t>(layer.keep);
    return layer.states + (block * keep + static_cast<std::size_t>(position % size) % keep) * row_bytes();
}

// Address of the row of a position before the step, in a block that the step continues.
std::byte* ConvStep::before(const Layer& layer, int sequence, int position) const {
    const auto keep = static_cast<std::size_t>(layer.keep);
    const std::size_t row = static_cast<std::size_t>(sequence) * keep + static_cast<std::size_t>(position) % keep;
    return parts_.space.before.data() + row * row_bytes();
}

// Replaces B by B * x.
void ConvStep::multiply(const Layer& layer, int row) const {
    const int size = parts_.spec.hidden_size;
    float* b = layer.wide.floats(row);
    const float* x = b + 2 * size;
    for (int i = 0; i < size; i++) b[i] = rounded(parts_.spec.element, b[i] * x[i]);
    const int sequence = parts_.plan.sequence_by_row[static_cast<std::size_t>(row)];
    const bool is_first = parts_.batch.query_starts[static_cast<std::size_t>(sequence)] == row;
    if (is_first) keep_before(layer, sequence);
}

void ConvStep::keep_before(const Layer& layer, int sequence) const {
    const int first = parts_.batch.positions[static_cast<std::size_t>(
        parts_.batch.query_starts[static_cast<std::size_t>(sequence)])];
    if (first % parts_.kv.block_size == 0) return;
    for (int position = std::max(first - layer.keep, 0); position < first; position++)
        std::memcpy(before(layer, sequence, position), state(layer, sequence, position), row_bytes());
}

// Stores the last rows that the step has of each block, except drafts.
void ConvStep::store(const Layer& layer, int row) const {
    const auto at = static_cast<std::size_t>(row);
    const int sequence = parts_.plan.sequence_by_row[at];
    const std::int64_t size = parts_.kv.block_size;
    const std::int64_t position = parts_.batch.positions[at];
    const int left = parts_.batch.state_end(sequence) - row;
    if (left <= 0) return;
    const std::int64_t end = std::min((position / size + 1) * size, position + left);
    if (position < end - layer.keep) return;
    const float* from = layer.wide.floats(row);
    std::byte* to = state(layer, sequence, static_cast<int>(position));
    if (parts_.spec.element == Element::kFloat32) {
        std::memcpy(to, from, row_bytes());
    } else {
        auto* bits = reinterpret_cast<std::uint16_t*>(to);
        for (int i = 0; i < parts_.spec.hidden_size; i++) bits[i] = narrow_bfloat16(from[i]);
    }
}

void ConvStep::add_tap(const Layer& layer, int row, int back, const float* taps, float* sums) const {
    const int size = parts_.spec.hidden_size;
    const int position = parts_.batch.positions[static_cast<std::size_t>(row)];
    const int sequence = parts_.plan.sequence_by_row[static_cast<std::size_t>(row)];
    const int first_row = parts_.batch.query_starts[static_cast<std::size_t>(sequence)];
    const int at = position - back;
    if (at < 0) return;
    const float* values = nullptr;
    if (row - back >= first_row) {
        values = layer.wide.floats(row - back);
    } else {
        const int first = parts_.batch.positions[static_cast<std::size_t>(first_row)];
        const bool is_begun = first % parts_.kv.block_size != 0;
        const std::byte* stored = is_begun ? before(layer, sequence, at) : state(layer, sequence, at);
        if (parts_.spec.element == Element::kBfloat16) {
            const auto* bits = reinterpret_cast<const std::uint16_t*>(stored);
            for (int i = 0; i < size; i++) sums[i] += widen_bfloat16(bits[i]) * taps[i];
            return;
        }
        values = reinterpret_cast<const float*>(stored);
    }
    for (int i = 0; i < size; i++) sums[i] += values[i] * taps[i];
}

void ConvStep::add_up(const Layer& layer, int thread, int row) const {
    const int size = parts_.spec.hidden_size;
    float* sums = floats(parts_.space.sums) + static_cast<std::ptrdiff_t>(thread) * size;
    const std::vector<float>& bias = layer.weights.conv_bias;
    if (bias.empty()) std::fill_n(sums, size, 0.0F);
    else std::copy_n(bias.data(), size, sums);
    for (int place = 0; place <= layer.keep; place++)
        add_tap(layer, row, layer.keep - place, layer.weights.conv.data() + static_cast<std::ptrdiff_t>(place) * size,
                sums);
    const float* c = layer.wide.floats(row) + size;
    for (int i = 0; i < size; i++) sums[i] *= c[i];
    const int padded = parts_.spec.padded_hidden();
    if (layer.out.element_bytes == sizeof(float)) {
        float* out = layer.out.floats(row);
        std::copy_n(sums, size, out);
        std::fill(out + size, out + padded, 0.0F);
    } else {
        auto* out = reinterpret_cast<std::uint16_t*>(layer.out.row(row));
        for (int i = 0; i < size; i++) out[i] = narrow_bfloat16(sums[i]);
        std::fill(out + size, out + padded, std::uint16_t{0});
    }
}

}  // namespace weft
