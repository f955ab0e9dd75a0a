#include "model/spec.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "int8/int8.h"
#include "model/groups.h"

namespace weft {
namespace {

constexpr int kMostExperts = 1 << 12;

void need(bool holds, const std::string& field, const std::string& allowed) {
    if (!holds) throw std::invalid_argument(field + " must be " + allowed);
}

void check_size(int value, const std::string& field, int least = 1) {
    need(value >= least && value <= 1 << 24, field, "from " + std::to_string(least) + " to 2^24");
}

void check_groups_of(const ModelSpec& spec, const std::optional<GroupFormat>& groups) {
    if (!groups) return;
    need(spec.is_int8(), "layers: groups", "none unless the model's other weights are int8");
    check_format(*groups, "layers: groups");
}

void check_expert_groups(const ExpertsSpec& experts) {
    const bool is_whole = experts.num_groups >= 1 && experts.count % experts.num_groups == 0;
    need(is_whole, "experts: num_groups", "a divisor of count");
    const int size = experts.count / experts.num_groups;
    need(experts.num_groups == 1 || size >= 2, "experts: num_groups", "1, or with two experts each");
    need(experts.groups_per_token >= 1 && experts.groups_per_token <= experts.num_groups, "experts: groups_per_token",
         "from 1 to num_groups");
    need(experts.groups_per_token * size >= experts.per_token, "experts: groups_per_token",
         "enough for the experts of a token");
}

void check_experts(const ModelSpec& spec, const ExpertsSpec& experts) {
    need(experts.count >= 1 && experts.count <= kMostExperts, "experts: count", "from 1 to 2^12");
    need(experts.per_token >= 1 && experts.per_token <= experts.count, "experts: per_token", "from 1 to count");
    check_size(experts.inner_size, "experts: inner_size");
    check_size(experts.shared_size, "experts: shared_size", 0);
    check_expert_groups(experts);
    const std::int64_t widest = std::max(2 * spec.padded_inner(experts.inner_size), spec.padded_hidden());
    need(widest * experts.count <= std::numeric_limits<int>::max(), "experts: count", "small enough for their size");
    check_groups_of(spec, experts.up_groups);
    check_groups_of(spec, experts.down_groups);
    need(!experts.has_norms || !experts.weighs_inputs, "experts: weighs_inputs", "false where has_norms is true");
    need(!experts.has_norms || (spec.norm == Norm::kRms && experts.shared_size > 0 && !experts.weighs_shared()),
         "experts: has_norms", "false unless the norm is rms and there is a shared expert of weight 1");
}

// Checks layers with a recurrence beside attention, and layers without an MLP.
void check_parts(const ModelSpec& spec, const LayerSpec& layer) {
    const bool is_plain = spec.is_causal && spec.norm_placement == NormPlacement::kBefore && !spec.latent &&
                          spec.num_cross_keys == 0 && spec.per_layer_size == 0;
    need(!layer.is_beside || (is_plain && layer.recurrence), "layers: is_beside",
         "false unless for a recurrence of a decoder with norms before");
    need(layer.has_mlp || is_plain, "layers: has_mlp", "true unless for a decoder with norms before");
    need(layer.has_mlp || !layer.experts, "layers: has_mlp", "true where there are experts");
}

void check_layer(const ModelSpec& spec, const LayerSpec& layer) {
    const int num_ropes = static_cast<int>(spec.ropes.size());
    if (layer.rope) need(*layer.rope >= 0 && *layer.rope < num_ropes, "layers: rope", "the index of a rope");
    if (layer.window) need(*layer.window >= 1, "layers: window", "at least 1");
    check_size(layer.chunk, "layers: chunk", 0);
    need(layer.chunk == 0 || spec.is_causal, "layers: chunk", "0 where the model is not causal");
    check_size(layer.temperature_interval, "layers: temperature_interval", 0);
    need(layer.temperature_interval == 0 ||
             (!spec.latent && (spec.qk_norm == QkNorm::kNone || !layer.has_qk_norm)),
         "layers: temperature_interval", "0 where attention is latent or queries have a norm");
    check_parts(spec, layer);
    for (const std::optional<GroupFormat>& groups :
         {layer.qkv_groups, layer.q_b_groups, layer.o_groups, layer.up_groups, layer.down_groups})
        check_groups_of(spec, groups);
    if (layer.experts) check_experts(spec, *layer.experts);
    const int head_dim = spec.latent ? spec.value_dim() : spec.heads_of(layer).dim;
    const bool has_whole_lanes = !layer.has_attention() || head_dim % kLanes == 0;
    need(!layer.o_groups || has_whole_lanes, "layers: o_groups", "none unless heads are whole lanes");
    need(!spec.latent || layer.rope, "layers: rope", "the index of one where attention is latent");
    need(!spec.latent || layer.conv_width == 0, "layers: conv_width", "0 where attention is latent");
    need(!spec.latent || !layer.recurrence, "layers: recurrence", "none where attention is latent");
    need(layer.has_attention_norm || spec.norm_placement == NormPlacement::kBefore, "layers: has_attention_norm",
         "true unless norms come before");
}

void check_heads(const ModelSpec& spec, std::size_t index) {
    const LayerSpec& layer = spec.layers[index];
    check_size(layer.num_kv_heads, "layers: num_kv_heads", 0);
    check_size(layer.head_dim, "layers: head_dim", 0);
    check_size(layer.intermediate_size, "layers: intermediate_size", 0);
    const Heads heads = spec.heads_of(layer);
    need(heads.count % heads.kv_count == 0, "layers: num_kv_heads", "a divisor of num_heads");
    const std::int64_t columns = 2 * (static_cast<std::int64_t>(heads.count) + heads.kv_count) * heads.padded_dim();
    need(columns <= std::numeric_limits<int>::max() / 2, "layers: head_dim", "small enough for num_heads");
    if (layer.rope)
        need(2 * static_cast<int>(spec.ropes[static_cast<std::size_t>(*layer.rope)].frequencies.size()) <=
                 (spec.latent ? spec.latent->rope_size : heads.dim),
             "ropes", "at most head_dim / 2 frequencies");
    if (!layer.kv_layer) return;
    need(*layer.kv_layer >= 0 && *layer.kv_layer < static_cast<int>(index), "layers: kv_layer", "of an earlier layer");
    const LayerSpec& maker = spec.layers[static_cast<std::size_t>(*layer.kv_layer)];
    const Heads made = spec.heads_of(maker);
    need(layer.has_attention() && maker.stores_kv() && made.kv_count == heads.kv_count && made.dim == heads.dim,
         "layers: kv_layer", "of a layer with attention and such heads");
}

// Checks what only some decoders have: heads that differ between layers, and inputs of layers.
void check_layers(const ModelSpec& spec) {
    check_size(spec.per_layer_size, "per_layer_size", 0);
    const bool is_plain = spec.is_causal && !spec.latent && !spec.has_output_gate && spec.num_cross_keys == 0 &&
                          !spec.has_whole_qk_norm() && !spec.joins_hidden && !spec.is_parallel();
    need(is_plain || spec.has_like_heads(), "layers: num_kv_heads, head_dim and kv_layer",
         "those of the model unless for a decoder with plain attention");
    need(is_plain || (spec.per_layer_size == 0 && !spec.has_layer_scales && !spec.has_value_norm),
         "per_layer_size, has_layer_scales and has_value_norm", "unset unless for a decoder with plain attention");
    need(spec.per_layer_size == 0 || (spec.norm == Norm::kRms && spec.padded_inputs() <= 1 << 24), "per_layer_size",
         "small, and 0 unless the norm is rms");
    for (std::size_t i = 0; i < spec.layers.size(); i++) check_heads(spec, i);
}

void check_sizes(const ModelSpec& spec) {
    check_size(spec.vocab_size, "vocab_size");
    check_size(spec.hidden_size, "hidden_size");
    check_size(spec.intermediate_size, "intermediate_size", 0);
    check_size(spec.num_heads, "num_heads");
    check_size(spec.num_kv_heads, "num_kv_heads");
    check_size(spec.head_dim, "head_dim");
    check_size(spec.num_positions, "num_positions", 0);
    check_size(spec.num_token_types, "num_token_types", 0);
    need(spec.num_heads % spec.num_kv_heads == 0, "num_heads", "a multiple of num_kv_heads");
    need(spec.position_offset >= 0 && (spec.num_positions == 0 || spec.position_offset < spec.num_positions),
         "position_offset", "from 0 to under num_positions");
    const std::int64_t columns = 2 * (static_cast<std::int64_t>(spec.num_heads) + spec.num_kv_heads) *
                                 round_up(spec.head_dim, kLanes);
    need(columns <= std::numeric_limits<int>::max() / 2, "num_heads", "small enough for head_dim");
}

void check_latent(const ModelSpec& spec) {
    if (!spec.latent) return;
    const LatentSpec& latent = *spec.latent;
    check_size(latent.rank, "latent: rank");
    check_size(latent.key_size, "latent: key_size");
    need(latent.rank % kLanes == 0 && latent.key_size % kLanes == 0, "latent: rank and key_size", "multiples of 16");
    check_size(latent.rope_size, "latent: rope_size", 2);
    check_size(latent.value_size, "latent: value_size");
    check_size(latent.query_rank, "latent: query_rank", 0);
    need(spec.is_causal && !spec.has_int8_cache && !spec.has_sinks && !spec.has_output_gate &&
             spec.qk_norm == QkNorm::kNone, "latent",
         "of a decoder without an int8 cache, sinks, gates and norms of heads");
    need(spec.num_kv_heads == 1 && spec.head_dim == latent.rank + latent.rope_size, "head_dim",
         "of one KV head, and that of what is kept");
    for (const Rope& rope : spec.ropes)
        need(2 * static_cast<int>(rope.frequencies.size()) <= latent.rope_size, "ropes", "at most rope_size / 2 frequencies");
    const std::int64_t widest = std::max(spec.padded_query(), std::max(latent.key_size, spec.padded_value()));
    need(widest * spec.num_heads <= std::numeric_limits<int>::max() / 2, "num_heads", "small enough for a head's size");
}

void check_convolutions(const ModelSpec& spec) {
    if (!spec.has_states()) return;
    need(spec.is_causal, "layers: conv_width", "0 where the model is not causal");
    need(spec.num_attentions() > 0, "layers: conv_width", "0 in a layer at least");
    int width = 0;
    for (const LayerSpec& layer : spec.layers) {
        if (layer.conv_width == 0) continue;
        need(layer.conv_width >= 2 && layer.conv_width <= kMostConvWidth, "layers: conv_width", "0, or from 2 to 64");
        need(width == 0 || layer.conv_width == width, "layers: conv_width", "the same wherever it is not 0");
        width = layer.conv_width;
    }
}

void check_recurrence(const ModelSpec& spec, const LayerSpec& layer) {
    if (!layer.recurrence) return;
    need(spec.is_causal, "layers: recurrence", "none where the model is not causal");
    need(layer.conv_width == 0, "layers: conv_width", "0 where there is a recurrence");
    check(*layer.recurrence);
}

void check_int8(const ModelSpec& spec) {
    need(spec.is_causal || !spec.has_int8_cache, "has_int8_cache", "false where no keys and values are kept");
    if (!spec.is_int8()) return;
    const int rank = spec.latent ? spec.latent->query_rank : 0;
    const int deepest = std::max({spec.padded_hidden(), spec.most_inner(), spec.most_out_depth(), rank});
    need(deepest <= kInt8MostDepth, "quantization", "none where a linear layer has over 2^17 inputs");
}

void check_projections(const ModelSpec& spec) {
    need(spec.projections.size() <= 1 << 12, "projections", "at most 2^12");
    for (const ProjectionSpec& projection : spec.projections) {
        check_size(projection.input, "projections: input");
        check_size(projection.inner, "projections: inner", 0);
        check_size(projection.output, "projections: output");
        need(projection.norm_size == 0 || (projection.norm_size > 0 && projection.input % projection.norm_size == 0),
             "projections: norm_size", "0 or a divisor of input");
    }
}

void check_cross(const ModelSpec& spec) {
    check_size(spec.num_cross_keys, "num_cross_keys", 0);
    if (spec.num_cross_keys == 0) return;
    need(spec.num_cross_keys <= 1 << 16, "num_cross_keys", "at most 2^16");
    need(spec.is_causal && spec.norm_placement == NormPlacement::kBefore && !spec.latent && !spec.has_output_gate &&
             !spec.has_sinks && spec.num_heads == spec.num_kv_heads, "num_cross_keys",
         "0 unless for a decoder with norms before, and a KV head for each head");
    need(spec.num_attentions() == spec.layers.size(), "num_cross_keys", "0 where layers lack attention");
}

void check_join(const ModelSpec& spec) {
    if (!spec.joins_hidden) return;
    need(spec.is_causal && !spec.tied_head && !spec.has_embed_norm, "joins_hidden",
         "false unless for a decoder without embeddings");
    need(spec.num_positions == 0 && spec.num_token_types == 0, "joins_hidden", "false where there are learned positions");
}

}  // namespace

std::size_t ModelSpec::tile_bytes(const LayerSpec& layer) const {
    const Heads heads = heads_of(layer);
    const int head = heads.padded_dim() * kLanes * kv_element_bytes();
    const int scales = has_int8_cache ? kInt8ScaleBytes : 0;
    return static_cast<std::size_t>(heads.kv_count) * static_cast<std::size_t>(head + scales);
}

std::size_t ModelSpec::most_tile_bytes() const {
    std::size_t most = 0;
    for (const LayerSpec& layer : layers)
        if (layer.has_attention()) most = std::max(most, tile_bytes(layer));
    return most;
}

std::size_t ModelSpec::kv_bytes_per_token() const {
    std::size_t tiles = 0;
    for (const LayerSpec& layer : layers)
        if (is_causal && layer.stores_kv()) tiles += tile_bytes(layer);
    return static_cast<std::size_t>(kv_parts()) * tiles / kLanes;
}

int ModelSpec::most_group() const {
    int most = num_attentions() == 0 ? heads().group() : 0;
    for (const LayerSpec& layer : layers)
        if (layer.has_attention()) most = std::max(most, heads_of(layer).group());
    return most;
}

int ModelSpec::most_kv_heads() const {
    int most = num_kv_heads;
    for (const LayerSpec& layer : layers) most = std::max(most, layer.num_kv_heads);
    return most;
}

bool ModelSpec::has_like_heads() const {
    return std::none_of(layers.begin(), layers.end(), [](const LayerSpec& layer) {
        return layer.num_kv_heads > 0 || layer.head_dim > 0 || layer.kv_layer;
    });
}

std::size_t ModelSpec::num_convolutions() const {
    const auto is_one = [](const LayerSpec& layer) { return layer.conv_width > 0; };
    return static_cast<std::size_t>(std::count_if(layers.begin(), layers.end(), is_one));
}

std::size_t ModelSpec::num_attentions() const {
    const auto is_one = [](const LayerSpec& layer) { return layer.has_attention(); };
    return static_cast<std::size_t>(std::count_if(layers.begin(), layers.end(), is_one));
}

int ModelSpec::qkv_size(const LayerSpec& layer) const {
    if (latent) return queries_size() + padded_dim();
    if (has_output_gate) return first_gate() + query_size();
    const Heads heads = heads_of(layer);
    return heads.query_size() + (layer.kv_layer ? 0 : 2 * heads.kv_size());
}

int ModelSpec::parts_size(const LayerSpec& layer) const {
    if (layer.recurrence && !layer.is_beside) return sizes(*layer.recurrence).made;
    return layer.conv_width > 0 ? 3 * hidden_size : qkv_size(layer);
}

int ModelSpec::mixed_size(const LayerSpec& layer) const {
    if (layer.recurrence) return first_mixed(layer) + sizes(*layer.recurrence).padded_inner();
    return layer.conv_width > 0 ? padded_hidden() : heads_of(layer).query_size();
}

int ModelSpec::most_made() const {
    int most = 0;
    for (const LayerSpec& layer : layers)
        most = std::max({most, parts_size(layer), layer.recurrence ? sizes(*layer.recurrence).row_size() : 0});
    return most;
}

int ModelSpec::most_mixed() const {
    int most = 0;
    for (const LayerSpec& layer : layers) most = std::max(most, mixed_size(layer));
    return most;
}

int ModelSpec::most_out_depth() const {
    int most = 0;
    for (const LayerSpec& layer : layers) {
        most = std::max(most, out_depth(layer));
        if (layer.is_beside) most = std::max(most, sizes(*layer.recurrence).padded_inner());
    }
    return most;
}

int ModelSpec::most_convolved() const {
    int most = 0;
    for (const LayerSpec& layer : layers)
        if (layer.recurrence) most = std::max(most, sizes(*layer.recurrence).channels_size());
    return most;
}

std::size_t ModelSpec::slot_size() const {
    std::size_t size = 0;
    for (const LayerSpec& layer : layers)
        if (layer.recurrence) size += static_cast<std::size_t>(sizes(*layer.recurrence).state_size());
    return size;
}

std::size_t ModelSpec::state_bytes() const {
    int width = 1;
    for (const LayerSpec& layer : layers) width = std::max(width, layer.conv_width);
    return static_cast<std::size_t>(width - 1) * static_cast<std::size_t>(hidden_size * element_bytes(element));
}

int ModelSpec::most_inner() const {
    int most = 0;
    for (const LayerSpec& layer : layers)
        most = std::max({most, padded_inner(mlp_size(layer)), layer.experts ? padded_inner(layer.experts->inner_size) : 0});
    return most;
}

void check(const ModelSpec& spec) {
    check_sizes(spec);
    check_join(spec);
    need(spec.has_head || (!spec.tied_head && spec.num_outputs == 0), "has_head", "true where it is described");
    if (spec.num_outputs != 0) {
        check_size(spec.num_outputs, "num_outputs");
        need(!spec.tied_head, "num_outputs", "0 where the head is the embedding");
    }
    // The scale must not be negative: the softmax finds the maximum of unscaled scores.
    need(spec.attention_scale >= 0, "attention_scale", "at least 0");
    need(spec.swiglu_limit >= 0 && (spec.swiglu_limit == 0 || spec.is_gated), "swiglu_limit",
         "at least 0, and 0 where there is no gate");
    need(!spec.layers.empty() && spec.layers.size() <= 1 << 16, "layers", "from 1 to 2^16 layers");
    for (const Rope& rope : spec.ropes) {
        const int pairs = static_cast<int>(rope.frequencies.size());
        need(pairs >= 1, "ropes", "of at least a frequency");
        need(rope.axes.empty() || rope.axes.size() == rope.frequencies.size(), "ropes: axes", "one for each frequency");
        for (const int axis : rope.axes) need(axis >= 0 && axis <= 2, "ropes: axes", "from 0 to 2");
    }
    check_latent(spec);
    for (const LayerSpec& layer : spec.layers) check_layer(spec, layer);
    check_layers(spec);
    for (const LayerSpec& layer : spec.layers) check_recurrence(spec, layer);
    check_convolutions(spec);
    check_projections(spec);
    check_cross(spec);
    need(spec.has_last_norm || !spec.is_causal, "has_last_norm", "true where the model is causal");
    check_int8(spec);
}

}  // namespace weft
