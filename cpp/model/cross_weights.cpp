// The weights of attention to keys that come with a sequence.
#include "model/weights.h"

namespace weft {

void add_cross_shapes(const ModelSpec& spec, LayerShapes& shapes) {
    shapes.cross_q = {spec.padded_hidden(), round_up(spec.query_size(), kPanelColumns), spec.is_int8()};
    shapes.cross_o = {spec.output_size(), spec.padded_hidden(), spec.is_int8()};
}

void Weights::place_cross(const std::string& prefix, LayerWeights& layer, const LayerShapes& shapes) {
    const ModelSpec& s = spec_;
    const int size = s.num_heads * s.head_dim;
    layer.cross_q = matrix_of(shapes.cross_q);
    layer.cross_o = matrix_of(shapes.cross_o);
    place_matrix(prefix + "cross_q", {&layer.cross_q, 0, size, s.hidden_size, Order::kHeads, s.head_dim, false, false});
    place_matrix(prefix + "cross_o", {&layer.cross_o, 0, s.hidden_size, size, Order::kPlain, s.head_dim, true, false});
    place_norm(prefix + "cross_norm", layer.cross_norm);
}

}  // namespace weft
