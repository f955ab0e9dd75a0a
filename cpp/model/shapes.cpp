// Shapes of the matrices of a model as they are packed.
#include "model/weights.h"

namespace weft {

LayerShapes layer_shapes(const ModelSpec& spec, const LayerSpec& layer) {
    const int hidden = spec.padded_hidden();
    const bool is_int8 = spec.is_int8();
    const auto up = [&](int size, const std::optional<GroupFormat>& groups) {
        const int columns = round_up((spec.is_gated ? 2 : 1) * spec.padded_inner(size), kPanelColumns);
        return size == 0 ? PackedShape{} : PackedShape{hidden, columns, is_int8, groups};
    };
    const auto down = [&](int size, const std::optional<GroupFormat>& groups) {
        return size == 0 ? PackedShape{} : PackedShape{spec.padded_inner(size), hidden, is_int8, groups};
    };
    const int size = spec.mlp_size(layer);
    const int columns = round_up(spec.parts_size(layer), kPanelColumns);
    LayerShapes shapes{{hidden, columns, is_int8, layer.qkv_groups},
                       {spec.out_depth(layer), hidden, is_int8, layer.o_groups},
                       up(size, layer.up_groups),
                       down(size, layer.down_groups)};
    if (const std::optional<ExpertsSpec>& experts = layer.experts) {
        shapes.num_experts = static_cast<std::size_t>(experts->count);
        shapes.router = {hidden, round_up(experts->router_columns(), kPanelColumns), false, std::nullopt, true};
        shapes.expert_up = up(experts->inner_size, experts->up_groups);
        shapes.expert_down = down(experts->inner_size, experts->down_groups);
    }
    if (spec.num_cross_keys > 0) add_cross_shapes(spec, shapes);
    if (spec.per_layer_size > 0) {
        shapes.input_gate = {hidden, spec.padded_input(), false};
        shapes.input_down = {spec.padded_input(), hidden, false};
    }
    if (layer.conv_width > 0 || layer.kv_layer) shapes.num_made = 1;
    if (layer.recurrence) {
        const RecurrentSizes recurrence = sizes(*layer.recurrence);
        if (layer.is_beside) {
            shapes.beside_in = {hidden, round_up(recurrence.made, kPanelColumns), is_int8};
            shapes.beside_out = {recurrence.padded_inner(), hidden, is_int8};
        } else {
            shapes.num_made = static_cast<std::size_t>(recurrence.num_matrices);
        }
        if (recurrence.unrounded > 0) shapes.unrounded = {hidden, round_up(recurrence.unrounded, kPanelColumns), false};
    }
    if (const std::optional<LatentSpec>& latent = spec.latent) {
        const int low = round_up(latent->query_rank, kLanes);
        const int queries = round_up(spec.num_heads * spec.padded_query(), kPanelColumns);
        if (low > 0) shapes.q_b = {low, queries, is_int8, layer.q_b_groups};
        shapes.num_latent_heads = static_cast<std::size_t>(spec.num_heads);
        shapes.head_key = {latent->key_size, round_up(latent->rank, kPanelColumns), false};
        shapes.head_value = {latent->rank, round_up(spec.padded_value(), kPanelColumns), false};
    }
    return shapes;
}

PackedShape head_shape(const ModelSpec& spec) {
    const int columns = spec.has_head ? round_up(spec.head_columns(), kPanelColumns) : 0;
    return {spec.padded_hidden(), columns, spec.has_int8_head()};
}

PackedShape inputs_shape(const ModelSpec& spec) {
    return spec.per_layer_size > 0 ? PackedShape{spec.padded_hidden(), spec.padded_inputs(), false} : PackedShape{};
}

PackedShape join_shape(const ModelSpec& spec) {
    const int size = spec.joins_hidden ? spec.padded_hidden() : 0;
    return {size, size, false};
}

std::pair<PackedShape, PackedShape> projection_shapes(const ProjectionSpec& spec) {
    const PackedShape down{spec.depth(), round_up(spec.output, kPanelColumns), false};
    if (spec.inner == 0) return {PackedShape{}, down};
    return {{round_up(spec.input, kPanelColumns), spec.depth(), false}, down};
}

}  // namespace weft
