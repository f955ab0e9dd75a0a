// Inputs of single layers, from a second embedding of each row's token; and experts beside the MLP of a layer.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "model/pack.h"
#include "model/share_product.h"
#include "model/step.h"

namespace weft {

// Computes the inputs of all layers from the rows that enter the model. Afterwards rows are normed again for the first
// layer, because the product reads them where its input is.
void Step::make_inputs() {
    const Weights& weights = model_.weights_;
    const RowsAt& normed = model_.space_.normed.rows();
    const RowsAt& inputs = model_.space_.inputs.rows();
    const auto for_rows = [&](const auto& work) {
        model_.pool_.share(all_.count, 1, [&](int, int begin, int end) {
            for (int row = begin; row < end; row++) work(row);
        });
    };
    for_rows([&](int row) {
        model_.kernels_.to_activations(all_.hidden.floats(row), normed.row(row), spec_.padded_hidden());
    });
    linear(weights.inputs_join, normed, all_.count, Finish::kStore, inputs);
    for_rows([&](int row) {
        weights.add_inputs(batch_.token_ids[static_cast<std::size_t>(row)], inputs.floats(row));
        residual(all_.hidden, row, nullptr, {none_, none_, weights.layers[0].attention_norm_before});
    });
}

// Computes what a layer's input adds, from its hidden states as activations, where results of products are.
void Step::add_input(int index, const LayerRows& rows) {
    const LayerWeights& layer = model_.weights_.layers[static_cast<std::size_t>(index)];
    const RowsAt& gated = model_.space_.gated.rows();
    const bool is_picked = rows.hidden.first != all_.hidden.first;
    linear(layer.input_gate, model_.space_.normed.rows(), rows.count, Finish::kActivateAll, gated);
    const int at_once = rows_at_once(model_.pool_, rows.count, model_.kernels_.pieces);
    model_.pool_.share(rows.count, at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) {
            const int own = is_picked ? batch_.logit_rows[static_cast<std::size_t>(row)] : row;
            const float* given = model_.space_.inputs.rows().floats(own) +
                                 static_cast<std::ptrdiff_t>(index) * spec_.per_layer_size;
            if (gated.element_bytes == sizeof(float)) {
                float* values = gated.floats(row);
                for (int i = 0; i < spec_.per_layer_size; i++) values[i] *= given[i];
            } else {
                auto* values = reinterpret_cast<std::uint16_t*>(gated.row(row));
                for (int i = 0; i < spec_.per_layer_size; i++)
                    values[i] = narrow_bfloat16(widen_bfloat16(values[i]) * given[i]);
            }
        }
    });
    linear(layer.input_down, gated, rows.count, Finish::kStore, model_.space_.wide.rows());
}

// Adds the results of experts to those of the MLP, which every row uses, where results of products are.
void Step::add_experts(int index, const LayerRows& rows) {
    const auto at = static_cast<std::size_t>(index);
    const LayerWeights& layer = model_.weights_.layers[at];
    const ExpertsSpec& experts = *spec_.layers[at].experts;
    const RowsAt& normed = model_.space_.normed.rows();
    const RowsAt& wide = model_.space_.wide.rows();
    ExpertLoads& loads = model_.expert_loads_[at];
    if (!experts.has_norms) return experts_.run(experts, layer, normed, normed, rows.count, wide, loads);
    const RowsAt& routed = model_.space_.experts.routed.rows();
    const int at_once = rows_at_once(model_.pool_, rows.count, model_.kernels_.pieces);
    const auto norm = [&](float* x, const NormVectors& in_place, const NormVectors& before, void* out) {
        residual_({x, nullptr, {}, in_place, before, out, spec_.hidden_size, spec_.padded_hidden(), 1.0F, spec_.norm_eps});
    };
    model_.pool_.share(rows.count, at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) {
            float* hidden = rows.hidden.floats(row);
            norm(wide.floats(row), layer.shared_norm.vectors(), {}, nullptr);
            norm(hidden, {}, {layer.router_norm.data(), nullptr}, routed.row(row));
            norm(hidden, {}, layer.expert_norm_before.vectors(), normed.row(row));
        }
    });
    experts_.run(experts, layer, normed, routed, rows.count, wide, loads);
}

}  // namespace weft
