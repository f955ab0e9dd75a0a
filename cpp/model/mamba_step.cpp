#include "model/mamba_step.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace weft {

template <class Work>
void MambaStep::for_rows(const Work& work) {
    parts_.pool.share(parts_.plan.rows, parts_.at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) work(row);
    });
}

void MambaStep::run(const MambaSpec& mamba, const LayerWeights& weights, const RowsAt& wide, const RowsAt& out,
                    float* slots, bool needs_rows) {
    const Layer layer{mamba, weights, wide, out, slots};
    const int num_sequences = static_cast<int>(parts_.batch.state_writes.size());
    parts_.pool.share(num_sequences, 1, [&](int, int begin, int end) {
        for (int sequence = begin; sequence < end; sequence++) go_on(layer, sequence);
    });
    for_rows([&](int row) { convolve(layer, row); });
    const int tasks = num_sequences * mamba.num_heads;
    const auto matrix = static_cast<std::size_t>(mamba.state_dim) * static_cast<std::size_t>(mamba.head_dim);
    if (!parts_.batch.num_state_rows.empty()) drafted_.resize(static_cast<std::size_t>(parts_.pool.size()) * matrix);
    parts_.pool.share(tasks, 1, [&](int thread, int begin, int end) {
        for (int task = begin; task < end; task++)
            scan(layer, task / mamba.num_heads, task % mamba.num_heads, thread);
    });
    if (needs_rows) for_rows([&](int row) { finish(layer, row); });
}

float* MambaStep::state(const Layer& layer, int sequence) const {
    return layer.slots + parts_.batch.state_writes[static_cast<std::size_t>(sequence)] * layer.spec.state_size();
}

// From zeros, or from where another slot is.
void MambaStep::go_on(const Layer& layer, int sequence) const {
    const auto at = static_cast<std::size_t>(sequence);
    const std::int32_t read = parts_.batch.state_reads[at];
    const std::ptrdiff_t size = layer.spec.state_size();
    if (parts_.batch.positions[static_cast<std::size_t>(first_row(sequence))] == 0)
        std::fill_n(state(layer, sequence), size, 0.0F);
    else if (read != parts_.batch.state_writes[at])
        std::copy_n(layer.slots + read * size, size, state(layer, sequence));
}

const float* MambaStep::channels(const Layer& layer, int sequence, int place) const {
    const int keep = layer.spec.conv_width - 1;
    if (place >= keep) return layer.wide.floats(first_row(sequence) + place - keep) + layer.spec.inner_size();
    return state(layer, sequence) +
           static_cast<std::ptrdiff_t>(place) * layer.spec.conv_size();
}

void MambaStep::convolve(const Layer& layer, int row) const {
    const int sequence = parts_.plan.sequence_by_row[static_cast<std::size_t>(row)];
    std::array<const float*, kMostConvWidth> rows;
    for (int place = 0; place < layer.spec.conv_width; place++)
        rows[static_cast<std::size_t>(place)] = channels(layer, sequence, row - first_row(sequence) + place);
    const std::vector<float>& bias = layer.weights.conv_bias;
    parts_.kernels.mamba_conv({rows.data(), layer.weights.conv.data(), bias.empty() ? nullptr : bias.data(),
                               layer.spec.conv_width, layer.spec.conv_size(), parts_.convolved.floats(row)});
}

// Drafts go on from a copy of the state.
void MambaStep::scan(const Layer& layer, int sequence, int head, int thread) {
    const MambaSpec& spec = layer.spec;
    const MambaWeights& weights = layer.weights.mamba;
    if (head == 0) keep_last(layer, sequence);  // all rows are convolved, and heads read what came of it
    const int row = first_row(sequence);
    float* x = parts_.convolved.floats(row);
    const int group = head / (spec.num_heads / spec.num_groups);
    const auto at = static_cast<std::size_t>(head);
    MambaScanTask task{};
    task.matrix = state(layer, sequence) + spec.kept_channels() +
                  static_cast<std::ptrdiff_t>(head) * spec.state_dim * spec.head_dim;
    task.state_dim = spec.state_dim;
    task.head_dim = spec.head_dim;
    task.num_rows = parts_.batch.state_end(sequence) - row;
    task.x = x + head * spec.head_dim;
    task.b = x + spec.inner_size() + group * spec.state_dim;
    task.c = task.b + spec.num_groups * spec.state_dim;
    task.stride = parts_.convolved.stride;
    task.steps = layer.wide.floats(row) + spec.inner_size() + spec.conv_size() + head;
    task.step_stride = layer.wide.stride;
    task.step_bias = weights.step_bias[at];
    task.a_log = weights.a_log[at];
    task.skip = weights.skip[at];
    task.min_step = spec.min_step;
    task.max_step = spec.max_step;
    parts_.kernels.mamba_scan(task);
    const int num_drafts = first_row(sequence + 1) - row - task.num_rows;
    if (num_drafts == 0) return;
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(spec.state_dim) * spec.head_dim;
    float* copy = drafted_.data() + thread * size;
    std::copy_n(task.matrix, size, copy);
    task.matrix = copy;
    const std::ptrdiff_t behind = task.num_rows * task.stride;
    task.x += behind;
    task.b += behind;
    task.c += behind;
    task.steps += task.num_rows * task.step_stride;
    task.num_rows = num_drafts;
    parts_.kernels.mamba_scan(task);
}

// The rows that the convolution looks back at from the next one on; each comes from one further behind.
void MambaStep::keep_last(const Layer& layer, int sequence) const {
    const int num_rows = parts_.batch.state_end(sequence) - first_row(sequence);
    const auto size = static_cast<std::size_t>(layer.spec.conv_size());
    float* kept = state(layer, sequence);
    for (int place = 0; place + 1 < layer.spec.conv_width; place++)
        std::memcpy(kept + static_cast<std::size_t>(place) * size, channels(layer, sequence, num_rows + place),
                    size * sizeof(float));
}

void MambaStep::finish(const Layer& layer, int row) const {
    const int size = layer.spec.inner_size();
    const int padded = layer.spec.padded_inner();
    float* given = parts_.convolved.floats(row);
    parts_.kernels.mamba_norm({given, layer.wide.floats(row), layer.weights.mamba.norm.data(), size,
                               layer.spec.num_groups, parts_.spec.norm_eps});
    std::fill(given + size, given + padded, 0.0F);
    parts_.kernels.to_activations(given, layer.out.row(row), padded);
}

}  // namespace weft
