#include "model/weights.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "model/groups.h"

namespace weft {
namespace {

const std::string kBias = ".bias";

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
    throw std::invalid_argument("tensor " + name + " " + what);
}

[[noreturn]] void refuse_name(const std::string& name, std::size_t num_layers) {
    const bool is_of_layer = name.starts_with("layers.");
    const bool has_layer = is_of_layer && std::strtoul(name.c_str() + 7, nullptr, 10) < num_layers;
    refuse(name, is_of_layer && !has_layer ? "is not part of this model: it belongs to no layer"
                                           : "is not part of this model");
}

void check_shape(const std::string& name, const Source& source, int rows, int columns) {
    if (source.rows == rows && source.columns == columns) return;
    refuse(name, "must have shape [" + std::to_string(rows) + ", " + std::to_string(columns) + "]");
}

// True if the packed head also serves as the embedding, which an int8 head cannot.
bool shares_embedding(const ModelSpec& spec) { return spec.tied_head && !spec.is_int8(); }

// Number of elements of lookup tables.
std::size_t table_elements(const ModelSpec& spec) {
    const bool has_table = !shares_embedding(spec) && !spec.joins_hidden;
    const auto tokens = static_cast<std::size_t>(has_table ? spec.vocab_size : 0);
    const auto others = static_cast<std::size_t>(spec.num_positions) + static_cast<std::size_t>(spec.num_token_types);
    const std::size_t inputs = spec.layers.size() * static_cast<std::size_t>(spec.per_layer_size);
    return (tokens + others) * static_cast<std::size_t>(spec.hidden_size) +
           static_cast<std::size_t>(spec.vocab_size) * inputs;
}

// Sums `bytes` over the shapes of all packed matrices.
template <class Bytes>
std::size_t sum_of_matrices(const ModelSpec& spec, const Bytes& bytes) {
    std::size_t sum = bytes(head_shape(spec)) + 2 * bytes(join_shape(spec)) + bytes(inputs_shape(spec));
    for (const ProjectionSpec& projection : spec.projections) {
        const auto [up, down] = projection_shapes(projection);
        sum += bytes(up) + bytes(down);
    }
    for (const LayerSpec& layer : spec.layers) {
        const LayerShapes shapes = layer_shapes(spec, layer);
        sum += bytes(shapes.qkv) + bytes(shapes.o) + bytes(shapes.up) + bytes(shapes.down) + bytes(shapes.q_b) +
               bytes(shapes.unrounded) + bytes(shapes.cross_q) + bytes(shapes.cross_o) + bytes(shapes.input_gate) +
               bytes(shapes.input_down) + bytes(shapes.beside_in) + bytes(shapes.beside_out);
        sum += shapes.num_latent_heads * (bytes(shapes.head_key) + bytes(shapes.head_value));
        if (shapes.num_experts == 0) continue;
        sum += bytes(shapes.router) + shapes.num_experts * (bytes(shapes.expert_up) + bytes(shapes.expert_down));
    }
    return sum;
}

// Size of the region, which holds everything except vectors.
std::size_t region_bytes(const ModelSpec& spec) {
    return sum_of_matrices(spec, [&](const PackedShape& shape) { return shape.bytes(spec.element); }) +
           table_elements(spec) * static_cast<std::size_t>(element_bytes(spec.element));
}

}  // namespace

std::size_t weight_bytes(const ModelSpec& spec) {
    return region_bytes(spec) + sum_of_matrices(spec, [](const PackedShape& shape) { return shape.scale_bytes(); });
}

Weights::Weights(const ModelSpec& spec, const std::optional<SharedFile>& file, ThreadPool& pool)
    : layers(spec.layers.size()), projections(spec.projections.size()), spec_(spec), file_(file),
      region_(region_of(region_bytes(spec), file, pool)) {
    for (std::size_t i = 0; i < layers.size(); i++)
        place_layer("layers." + std::to_string(i) + ".", layers[i], spec.layers[i]);
    if (spec.has_embed_norm) place_norm("embed_norm", embed_norm);
    if (!spec.has_norm_of_sum() && spec.has_last_norm) place_norm("norm", norm);
    if (spec.has_head) {
        head = matrix_of(head_shape(spec));
        place_matrix(spec.tied_head ? "embed" : "head",
                     {&head, 0, spec.head_columns(), spec.hidden_size, Order::kPlain, spec.head_dim});
    }
    for (std::size_t i = 0; i < projections.size(); i++) place_projection(spec.projections[i], projections[i]);
    if (spec.joins_hidden) place_join();
    else if (!shares_embedding(spec)) place_table("embed", tokens_, spec.vocab_size, spec.hidden_size);
    place_table("positions", positions_, spec.num_positions, spec.hidden_size);
    place_table("token_types", token_types_, spec.num_token_types, spec.hidden_size);
    if (spec.per_layer_size > 0) place_inputs();
    if (file_ && file_->is_published) find_vectors();
}

void Weights::place_layer(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec) {
    const LayerShapes shapes = layer_shapes(spec_, spec);
    layer.qkv = matrix_of(shapes.qkv);
    layer.o = matrix_of(shapes.o);
    layer.up = matrix_of(shapes.up);
    layer.down = matrix_of(shapes.down);
    layer.unrounded = matrix_of(shapes.unrounded);
    place_mixing(prefix, layer, spec, shapes);
    if (spec_.num_cross_keys > 0) place_cross(prefix, layer, shapes);
    if (const int inner = spec_.mlp_size(spec); inner > 0) place_mlp(prefix, layer.up, layer.down, inner, true);
    if (spec.experts) place_experts(prefix, layer, *spec.experts, shapes);
    if (spec_.per_layer_size > 0) place_input(prefix, layer, shapes);
    if (spec_.has_layer_scales) place_vector(prefix + "scale", layer.scale, 1);
    if (spec_.activation == Activation::kXielu && spec_.mlp_size(spec) > 0) place_xielu(prefix, layer);
    place_norms(prefix, layer, spec);
}

void Weights::place_attention(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec,
                              const LayerShapes& shapes) {
    const ModelSpec& s = spec_;
    if (s.latent) place_latent(prefix, layer, shapes);
    else place_queries(prefix, layer, spec);
    const int dim = s.heads_of(spec).dim;
    const int value_dim = s.latent ? s.value_dim() : dim;
    place_matrix(prefix + "o", {&layer.o, 0, s.hidden_size, s.num_heads * value_dim, Order::kPlain, value_dim, true});
    if (s.has_sinks) place_vector(prefix + "sinks", layer.sinks, s.num_heads);
    if (s.qk_norm == QkNorm::kNone || !s.has_qk_weights || !spec.has_qk_norm) return;
    const bool is_full = s.has_whole_qk_norm();
    place_head_norm(prefix + "q_norm", layer.q_norm, is_full ? s.num_heads : 1, dim);
    if (!spec.kv_layer) place_head_norm(prefix + "k_norm", layer.k_norm, is_full ? s.num_kv_heads : 1, dim);
}

void Weights::place_join() {
    const int hidden = spec_.hidden_size;
    place_norm("join_embed_norm", join_embed_norm);
    place_norm("join_hidden_norm", join_hidden_norm);
    join_embed = matrix_of(join_shape(spec_));
    join_hidden = matrix_of(join_shape(spec_));
    place_matrix("join_embed", {&join_embed, 0, hidden, hidden, Order::kPlain, spec_.head_dim, false, false});
    place_matrix("join_hidden", {&join_hidden, 0, hidden, hidden, Order::kPlain, spec_.head_dim, false, false});
}

void Weights::place_projection(const ProjectionSpec& spec, ProjectionWeights& projection) {
    const std::string prefix = "project." + spec.name + ".";
    const auto [up, down] = projection_shapes(spec);
    if (spec.norm_size > 0) {
        const int size = spec.norm_size;
        const int padded = round_up(size, kLanes);
        vectors_.insert({prefix + "norm", {&projection.norm.weight, size, size, padded}});
        if (spec.norm == Norm::kLayer) vectors_.insert({prefix + "norm" + kBias, {&projection.norm.bias, size, size, padded}});
        missing_.insert(prefix + "norm");
    }
    const int inner = spec.inner == 0 ? spec.input : spec.inner;
    projection.down = matrix_of(down);
    place_matrix(prefix + "down", {&projection.down, 0, spec.output, inner, Order::kPlain, spec_.head_dim, false, false});
    if (spec.inner == 0) return;
    projection.up = matrix_of(up);
    place_matrix(prefix + "up", {&projection.up, 0, inner, spec.input, Order::kPlain, spec_.head_dim, false, false});
}

void Weights::place_queries(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec) {
    const ModelSpec& s = spec_;
    const Heads heads = s.heads_of(spec);
    const int q_rows = heads.count * heads.dim;
    const int kv_rows = heads.kv_count * heads.dim;
    const int k_column = heads.query_size();
    const int v_column = k_column + heads.kv_size();
    if (s.has_output_gate) {  // the gates of a head follow its query
        const int dim = s.head_dim;
        const std::vector<Run> runs{{dim, 0, s.padded_dim()}, {dim, s.first_gate(), s.padded_dim()}};
        place_matrix(prefix + "q", {&layer.qkv, 0, 2 * q_rows, s.hidden_size, Order::kRuns, dim, false, true, runs});
    } else {
        place_matrix(prefix + "q", {&layer.qkv, 0, q_rows, s.hidden_size, Order::kHeads, heads.dim});
    }
    if (spec.kv_layer) return;
    place_matrix(prefix + "k", {&layer.qkv, k_column, kv_rows, s.hidden_size, Order::kHeads, heads.dim});
    place_matrix(prefix + "v", {&layer.qkv, v_column, kv_rows, s.hidden_size, Order::kHeads, heads.dim});
}

void Weights::place_mlp(const std::string& prefix, Matrix& up, Matrix& down, int inner, bool takes_adapters) {
    const int hidden = spec_.hidden_size;
    const int dim = spec_.head_dim;
    const Order order = spec_.is_gated ? Order::kUp : Order::kPlain;
    if (spec_.is_gated)
        place_matrix(prefix + "gate", {&up, 0, inner, hidden, Order::kGate, dim, false, takes_adapters});
    place_matrix(prefix + "up", {&up, 0, inner, hidden, order, dim, false, takes_adapters});
    place_matrix(prefix + "down", {&down, 0, hidden, inner, Order::kPlain, dim, false, takes_adapters});
}

void Weights::place_experts(const std::string& prefix, LayerWeights& layer, const ExpertsSpec& experts,
                            const LayerShapes& shapes) {
    const int hidden = spec_.hidden_size;
    const int dim = spec_.head_dim;
    layer.router = matrix_of(shapes.router);
    place_matrix(prefix + "router", {&layer.router, 0, experts.count, hidden, Order::kPlain, dim, false, false});
    if (experts.has_correction) place_vector(prefix + "router_correction", layer.router_correction, experts.count);
    if (experts.has_norms) place_expert_norms(prefix, layer, experts);
    if (experts.weighs_shared())
        place_matrix(prefix + "shared_gate", {&layer.router, experts.count, 1, hidden, Order::kPlain, dim, false, false});
    for (std::size_t i = 0; i < shapes.num_experts; i++) {
        layer.expert_up.push_back(matrix_of(shapes.expert_up));
        layer.expert_down.push_back(matrix_of(shapes.expert_down));
    }
    // These vectors do not grow any more, so pointers stay valid.
    for (std::size_t i = 0; i < shapes.num_experts; i++)
        place_mlp(prefix + "experts." + std::to_string(i) + ".", layer.expert_up[i], layer.expert_down[i],
                  experts.inner_size, false);
}

void Weights::place_norms(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec) {
    const ModelSpec& s = spec_;
    if (s.has_norm_before()) {
        if (spec.has_attention_norm) place_norm(prefix + "attention_norm_before", layer.attention_norm_before);
        if (spec.has_second_part()) place_norm(prefix + "mlp_norm_before", layer.mlp_norm_before);
    }
    if (s.has_norm_after()) {
        place_norm(prefix + "attention_norm_after", layer.attention_norm_after);
        place_norm(prefix + "mlp_norm_after", layer.mlp_norm_after);
    }
    if (s.has_norm_of_sum()) {
        place_norm(prefix + "attention_norm_sum", layer.attention_norm_sum);
        place_norm(prefix + "mlp_norm_sum", layer.mlp_norm_sum);
    }
}

void Weights::place_matrix(const std::string& name, const Place& place) {
    places_.emplace(name, place);
    missing_.insert(name);
}

void Weights::place_norm(const std::string& name, NormWeights& norm) {
    const int size = spec_.hidden_size;
    vectors_.insert({name, {&norm.weight, size, size, spec_.padded_hidden()}});
    if (spec_.norm == Norm::kLayer) vectors_.insert({name + kBias, {&norm.bias, size, size, spec_.padded_hidden()}});
    missing_.insert(name);
}

void Weights::place_vector(const std::string& name, std::vector<float>& vector, int size) {
    vectors_.insert({name, {&vector, size, size, size}});
    missing_.insert(name);
}

void Weights::place_head_norm(const std::string& name, NormWeights& norm, int num_heads, int head_dim) {
    vectors_.insert({name, {&norm.weight, num_heads * head_dim, head_dim, round_up(head_dim, kLanes)}});
    missing_.insert(name);
}

Matrix Weights::matrix_of(const PackedShape& shape) {
    Matrix matrix;
    matrix.panels = take(shape.bytes(spec_.element));
    matrix.depth = shape.depth;
    matrix.columns = shape.columns;
    matrix.groups = shape.groups;
    matrix.is_float32 = shape.is_float32;
    if (shape.is_int8 && !shape.groups) matrix.scales.assign(static_cast<std::size_t>(matrix.columns), 0.0F);
    most_groups_ = std::max(most_groups_, matrix.num_groups());
    return matrix;
}

std::byte* Weights::take(std::size_t bytes) {
    std::byte* taken = region_.data() + used_;
    used_ += bytes;
    return taken;
}

const Place& Weights::place_of(const std::string& name) const {
    const std::string loaded = name == "head" && spec_.tied_head ? "embed" : name;
    const auto found = places_.find(loaded);
    if (name == "embed" || found == places_.end()) refuse_name(name, layers.size());
    if (!found->second.takes_adapters) refuse(name, "is of experts, which take no adapters");
    return found->second;
}

bool Weights::load(const std::string& name, const Source& source, ThreadPool& pool) {
    const bool may_have_bias = name.starts_with("layers.") || name.starts_with("head.") || name.starts_with("project.");
    const bool is_bias = may_have_bias && name.ends_with(kBias);
    const auto table = tables_.find(name);
    const auto place = places_.find(is_bias ? name.substr(0, name.size() - kBias.size()) : name);
    const auto vector = vectors_.find(name);
    bool is_finite = true;
    if (const auto heads = latents_.find(name); heads != latents_.end()) {
        const LatentSpec& latent = *spec_.latent;
        check_shape(name, source, spec_.num_heads * (latent.key_size + latent.value_size), latent.rank);
        if (source.stored == Stored::kGrouped) refuse(name, "must not be in groups");
        missing_.erase(name);
        return load_heads(*heads->second, source, pool);
    }
    if (source.stored == Stored::kGrouped && place == places_.end()) refuse(name, "must not be in groups");
    if (table != tables_.end()) {  // the table may also be stored as a matrix
        check_shape(name, source, table->second->count, table->second->width);
        is_finite = load_table(*table->second, source, pool);
    }
    if (place != places_.end()) {
        check_shape(name, source, place->second.rows, is_bias ? 1 : place->second.columns);
        const std::optional<GroupFormat>& groups = place->second.matrix->groups;
        if (groups && !is_bias) check_groups(name, *groups, source);
        else if (source.stored == Stored::kGrouped) refuse(name, "must not be in groups");
        const Element element = place->second.matrix->is_float32 ? Element::kFloat32 : spec_.element;
        if (is_bias) pack_bias(place->second, source);
        is_finite &= is_bias ? weft::is_finite(source, 0, source.rows)
                             : pack_matrix(place->second, source, element, pool);
    } else if (vector != vectors_.end()) {
        check_shape(name, source, vector->second.size, 1);
        load_vector(vector->second, source);
        is_finite = weft::is_finite(source, 0, source.rows);
    } else if (table == tables_.end()) {
        refuse_name(name, layers.size());
    }
    missing_.erase(name);
    return is_finite;
}

void Weights::load_vector(const Span& span, const Source& source) const {
    span.vector->assign(static_cast<std::size_t>(span.size / span.group * span.padded), 0.0F);
    for (int i = 0; i < span.size; i++)
        (*span.vector)[static_cast<std::size_t>(i / span.group * span.padded + i % span.group)] =
            element_of(source, i);
}

}  // namespace weft
