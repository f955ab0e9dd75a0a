// Hidden states as inputs and outputs of a step, for heads that predict further tokens.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "model/pack.h"
#include "model/share_product.h"
#include "model/step.h"

namespace weft {

// Computes the input of the first layer from each row's embedding and hidden state, side by side in the batch.
void Step::join() {
    const Weights& weights = model_.weights_;
    const RowsAt& normed = model_.space_.normed.rows();
    const RowsAt& wide = model_.space_.wide.rows();
    const int at_once = rows_at_once(model_.pool_, all_.count, model_.kernels_.pieces);
    const auto for_rows = [&](const auto& work) {
        model_.pool_.share(all_.count, at_once, [&](int, int begin, int end) {
            for (int row = begin; row < end; row++) work(row);
        });
    };
    const auto enter = [&](int row, int part, const NormWeights& norm) {
        float* hidden = all_.hidden.floats(row);
        const float* given = embed_by_row_[static_cast<std::size_t>(row)];
        std::copy_n(given + static_cast<std::ptrdiff_t>(part) * spec_.hidden_size, spec_.hidden_size, hidden);
        std::fill(hidden + spec_.hidden_size, hidden + spec_.padded_hidden(), 0.0F);
        residual(all_.hidden, row, nullptr, {none_, none_, norm});
    };
    for_rows([&](int row) { enter(row, 0, weights.join_embed_norm); });
    linear(weights.join_embed, normed, all_.count, Finish::kStore, wide);
    for_rows([&](int row) {
        enter(row, 1, weights.join_hidden_norm);
        std::copy_n(wide.floats(row), spec_.padded_hidden(), all_.hidden.floats(row));
    });
    linear(weights.join_hidden, normed, all_.count, Finish::kStore, wide);
    for_rows([&](int row) {
        residual(all_.hidden, row, wide.floats(row), {none_, none_, weights.layers[0].attention_norm_before});
    });
}

// Writes the hidden state of every row after the last norm; then moves the rows with logits together.
void Step::give_hidden(std::span<float> hidden) {
    const RowsAt& normed = model_.space_.normed.rows();
    model_.pool_.share(all_.count, 1, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) {
            float* out = hidden.data() + static_cast<std::ptrdiff_t>(row) * spec_.hidden_size;
            if (normed.element_bytes == sizeof(float)) {
                std::copy_n(normed.floats(row), spec_.hidden_size, out);
                continue;
            }
            const auto* bits = reinterpret_cast<const std::uint16_t*>(normed.row(row));
            for (int i = 0; i < spec_.hidden_size; i++) out[i] = widen_bfloat16(bits[i]);
        }
    });
    const auto bytes = static_cast<std::size_t>(spec_.padded_hidden() * normed.element_bytes);
    for (int wanted = 0; wanted < last_.count; wanted++) {
        const std::int32_t row = batch_.logit_rows[static_cast<std::size_t>(wanted)];
        if (row != wanted) std::memcpy(normed.row(wanted), normed.row(row), bytes);
    }
    if (!adapters_.is_idle()) pick_adapters();
}

void Step::run_head(std::span<const float> hidden) {
    const RowsAt& normed = model_.space_.normed.rows();
    last_.count = plan_.rows;
    model_.pool_.share(plan_.rows, 1, [&](int, int begin, int end) {
        std::vector<float> row(static_cast<std::size_t>(spec_.padded_hidden()));
        for (int i = begin; i < end; i++) {
            std::copy_n(hidden.data() + static_cast<std::ptrdiff_t>(i) * spec_.hidden_size, spec_.hidden_size, row.data());
            model_.kernels_.to_activations(row.data(), normed.row(i), spec_.padded_hidden());
        }
    });
    head();
}

}  // namespace weft
