// The weights of layers' own inputs, and of experts beside the MLP.
#include "model/weights.h"

namespace weft {

void Weights::place_inputs() {
    const int size = spec_.per_layer_size;
    const int all = static_cast<int>(layers.size()) * size;
    inputs_join = matrix_of(inputs_shape(spec_));
    place_table("inputs.embed", inputs_, spec_.vocab_size, all);
    place_matrix("inputs.join", {&inputs_join, 0, all, spec_.hidden_size, Order::kPlain, spec_.head_dim, false, false});
    place_vector("inputs.norm", inputs_norm.weight, size);
}

void Weights::place_input(const std::string& prefix, LayerWeights& layer, const LayerShapes& shapes) {
    const int size = spec_.per_layer_size;
    const int hidden = spec_.hidden_size;
    layer.input_gate = matrix_of(shapes.input_gate);
    layer.input_down = matrix_of(shapes.input_down);
    place_matrix(prefix + "input.gate", {&layer.input_gate, 0, size, hidden, Order::kPlain, spec_.head_dim, false, false});
    place_matrix(prefix + "input.down", {&layer.input_down, 0, hidden, size, Order::kPlain, spec_.head_dim, false, false});
    place_norm(prefix + "input.norm", layer.input_norm);
}

void Weights::place_expert_norms(const std::string& prefix, LayerWeights& layer, const ExpertsSpec& experts) {
    const int hidden = spec_.hidden_size;
    vectors_.insert({prefix + "router_norm", {&layer.router_norm, hidden, hidden, spec_.padded_hidden()}});
    missing_.insert(prefix + "router_norm");
    place_vector(prefix + "router_scales", layer.router_scales, experts.count);
    place_norm(prefix + "shared_norm", layer.shared_norm);
    place_norm(prefix + "expert_norm_before", layer.expert_norm_before);
    place_norm(prefix + "expert_norm_after", layer.expert_norm_after);
}

void Weights::place_xielu(const std::string& prefix, LayerWeights& layer) {
    place_vector(prefix + "xielu_positive", layer.xielu[0], 1);
    place_vector(prefix + "xielu_negative", layer.xielu[1], 1);
    place_vector(prefix + "xielu_linear", layer.xielu[2], 1);
}

}  // namespace weft
