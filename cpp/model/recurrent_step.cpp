#include "model/recurrent_step.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace weft {

template <class Work>
void RecurrentStep::for_rows(const Work& work) {
    parts_.pool.share(parts_.plan.rows, parts_.at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) work(row);
    });
}

void RecurrentStep::run(const RecurrentSpec& spec, const LayerWeights& weights, const RowsAt& wide, const RowsAt& out,
                        float* slots, bool needs_rows) {
    const Layer layer{spec, sizes(spec), weights, wide, out, slots};
    const int num_sequences = static_cast<int>(parts_.batch.state_writes.size());
    parts_.pool.share(num_sequences, 1, [&](int, int begin, int end) {
        for (int sequence = begin; sequence < end; sequence++) go_on(layer, sequence);
    });
    for_rows([&](int row) { convolve(layer, row); });
    const int num_heads = layer.sizes.num_heads;
    if (!parts_.batch.num_state_rows.empty())
        drafted_.resize(static_cast<std::size_t>(parts_.pool.size() * layer.sizes.head_state));
    if (layer.sizes.has_rates) rates_.resize(static_cast<std::size_t>(parts_.pool.size() * layer.sizes.head_state));
    parts_.pool.share(num_sequences * num_heads, 1, [&](int thread, int begin, int end) {
        for (int task = begin; task < end; task++) scan(layer, task / num_heads, task % num_heads, thread);
    });
    if (needs_rows) for_rows([&](int row) { finish(layer, row); });
}

float* RecurrentStep::state(const Layer& layer, int sequence) const {
    return layer.slots + parts_.batch.state_writes[static_cast<std::size_t>(sequence)] * layer.sizes.state_size();
}

// Initializes a sequence's slot: with zeros, or with a copy of another slot.
void RecurrentStep::go_on(const Layer& layer, int sequence) const {
    const auto at = static_cast<std::size_t>(sequence);
    const std::int32_t read = parts_.batch.state_reads[at];
    const std::ptrdiff_t size = layer.sizes.state_size();
    if (parts_.batch.positions[static_cast<std::size_t>(first_row(sequence))] == 0)
        std::fill_n(state(layer, sequence), size, 0.0F);
    else if (read != parts_.batch.state_writes[at])
        std::copy_n(layer.slots + read * size, size, state(layer, sequence));
}

const float* RecurrentStep::channels(const Layer& layer, int sequence, int place) const {
    const int keep = layer.sizes.conv_width - 1;
    if (place >= keep) return layer.wide.floats(first_row(sequence) + place - keep) + layer.sizes.first_channel;
    return state(layer, sequence) + static_cast<std::ptrdiff_t>(place) * layer.sizes.conv_size;
}

void RecurrentStep::convolve(const Layer& layer, int row) const {
    const int sequence = parts_.plan.sequence_by_row[static_cast<std::size_t>(row)];
    std::array<const float*, kMostConvWidth> rows;
    for (int place = 0; place < layer.sizes.conv_width; place++)
        rows[static_cast<std::size_t>(place)] = channels(layer, sequence, row - first_row(sequence) + place);
    const std::vector<float>& bias = layer.weights.conv_bias;
    parts_.kernels.convolve_channels({rows.data(), layer.weights.conv.data(), bias.empty() ? nullptr : bias.data(),
                                      layer.sizes.conv_width, layer.sizes.conv_size, parts_.convolved.floats(row)});
    std::visit([&](const auto& kind) { prepare(layer, kind, row); }, layer.spec);
}

// Drafts continue from a copy of the state.
void RecurrentStep::scan(const Layer& layer, int sequence, int head, int thread) {
    // All rows are convolved already, and heads read the results.
    if (head == 0) keep_last(layer, sequence);
    const int row = first_row(sequence);
    const int end = parts_.batch.state_end(sequence);
    const std::ptrdiff_t size = layer.sizes.head_state;
    float* matrix = state(layer, sequence) + layer.sizes.kept_channels() + head * size;
    float* rates = layer.sizes.has_rates ? rates_.data() + thread * size : nullptr;
    const auto go_through = [&](float* from, int first, int last) {
        const Scan rows{from, head, last - first, parts_.convolved.floats(first), layer.wide.floats(first), rates};
        std::visit([&](const auto& kind) { scan(layer, kind, rows); }, layer.spec);
    };
    go_through(matrix, row, end);
    if (end == first_row(sequence + 1)) return;
    float* copy = drafted_.data() + thread * size;
    std::copy_n(matrix, size, copy);
    go_through(copy, end, first_row(sequence + 1));
}

// Stores the rows that the convolution looks back at from the next row on; each row is copied from a later place.
void RecurrentStep::keep_last(const Layer& layer, int sequence) const {
    const int num_rows = parts_.batch.state_end(sequence) - first_row(sequence);
    const auto size = static_cast<std::size_t>(layer.sizes.conv_size);
    float* kept = state(layer, sequence);
    for (int place = 0; place + 1 < layer.sizes.conv_width; place++)
        std::memcpy(kept + static_cast<std::size_t>(place) * size, channels(layer, sequence, num_rows + place),
                    size * sizeof(float));
}

void RecurrentStep::finish(const Layer& layer, int row) const {
    const int size = layer.sizes.inner_size;
    const int padded = layer.sizes.padded_inner();
    const GatedNormTask task = std::visit([&](const auto& kind) { return norm(layer, kind, row); }, layer.spec);
    parts_.kernels.gated_norm(task);
    std::fill(task.row + size, task.row + padded, 0.0F);
    parts_.kernels.to_activations(task.row, layer.out.row(row), padded);
}

}  // namespace weft
