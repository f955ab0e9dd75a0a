#include "tests/specs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/parts.h"

namespace weft {
namespace {

using Random = std::mt19937;

// Draws experts of any sizes.
ExpertsSpec draw_experts(Random& random, bool may_have_norms) {
    ExpertsSpec experts;
    experts.count = draw(random, 1, 9);
    experts.per_token = draw(random, 1, experts.count);
    experts.inner_size = draw(random, 1, 90);
    experts.shared_size = draw(random, 0, 1) * draw(random, 1, 90);
    experts.has_shared_gate = draw(random, 0, 1) == 1;
    experts.is_normalized = draw(random, 0, 1) == 1;
    if (may_have_norms && experts.shared_size > 0 && !experts.has_shared_gate) experts.has_norms = draw(random, 0, 1) == 1;
    experts.scale = static_cast<float>(draw(random, 1, 2));
    experts.is_sigmoid = draw(random, 0, 1) == 1;
    experts.has_correction = draw(random, 0, 1) == 1;
    experts.weighs_inputs = !experts.has_norms && draw(random, 0, 2) == 0;
    experts.epsilon = draw(random, 0, 1) == 1 ? 1e-6F : 1e-20F;
    if (draw(random, 0, 1) == 1) return experts;
    experts.num_groups = draw(random, 1, 4);
    experts.groups_per_token = draw(random, 1, experts.num_groups);
    experts.count = experts.num_groups * draw(random, 2, 4);
    experts.per_token = draw(random, 1, experts.count / experts.num_groups * experts.groups_per_token);
    return experts;
}

// Makes attention latent, with any sizes, and resets switches that exclude it.
void draw_latent(Random& random, ModelSpec& spec) {
    LatentSpec latent;
    latent.rank = kLanes * draw(random, 1, 3);
    latent.key_size = kLanes * draw(random, 1, 2);
    latent.rope_size = 2 * draw(random, 1, 12);
    latent.value_size = draw(random, 1, 40);
    latent.query_rank = draw(random, 0, 1) * draw(random, 1, 40);
    latent.is_interleaved = draw(random, 0, 1) == 1;
    latent.norm_eps = 1e-6F;
    spec.latent = latent;
    spec.num_kv_heads = 1;
    spec.head_dim = latent.rank + latent.rope_size;
    spec.qk_norm = QkNorm::kNone;
    spec.has_sinks = spec.has_output_gate = spec.has_int8_cache = false;
}

// Draws short convolutions of one width instead of attention, in some layers of some models.
void draw_convolutions(Random& random, ModelSpec& spec) {
    const int width = draw(random, 2, 6);
    const int others = static_cast<int>(spec.layers.size()) - 1;
    if (!spec.is_causal || spec.latent || spec.num_cross_keys > 0 || draw(random, 0, 2) > 0) return;
    const int attention = draw(random, 0, others);
    for (int i = 0; i <= others; i++)
        if (i != attention && draw(random, 0, 2) > 0) spec.layers[static_cast<std::size_t>(i)].conv_width = width;
}

// Draws both Mambas and gated delta nets instead of attention, likewise.
void draw_recurrences(Random& random, ModelSpec& spec) {
    if (!spec.is_causal || spec.latent || spec.num_cross_keys > 0 || draw(random, 0, 1) > 0) return;
    MambaSpec mamba;
    mamba.num_groups = draw(random, 1, 3);
    mamba.num_heads = mamba.num_groups * draw(random, 1, 3);
    mamba.head_dim = draw(random, 1, 40);
    mamba.state_dim = draw(random, 1, 20);
    mamba.conv_width = draw(random, 2, 6);
    mamba.min_step = static_cast<float>(draw(random, 0, 1)) * 0.1F;
    mamba.max_step = draw(random, 0, 1) == 1 ? INFINITY : 1.0F;
    mamba.is_normed = draw(random, 0, 2) > 0;
    mamba.is_gated_first = draw(random, 0, 1) == 1;
    Mamba1Spec mamba1;
    mamba1.inner_size = draw(random, 1, 80);
    mamba1.state_dim = draw(random, 1, 20);
    mamba1.step_rank = draw(random, 1, 20);
    mamba1.conv_width = draw(random, 2, 6);
    mamba1.has_norms = draw(random, 0, 1) == 1;
    DeltaSpec delta;
    delta.num_key_heads = draw(random, 1, 3);
    delta.num_value_heads = delta.num_key_heads * draw(random, 1, 3);
    delta.key_size = draw(random, 1, 40);
    delta.value_size = draw(random, 1, 40);
    delta.conv_width = draw(random, 2, 6);
    delta.is_by_key_head = draw(random, 0, 1) == 1;
    for (LayerSpec& layer : spec.layers) {
        const bool is_needed = spec.has_states() && spec.num_attentions() == 1;  // beside convolutions
        if (!layer.has_attention() || is_needed || draw(random, 0, 2) == 0) continue;
        const int kind = draw(random, 0, 2);
        layer.recurrence = kind == 0 ? RecurrentSpec(mamba) : kind == 1 ? RecurrentSpec(mamba1) : RecurrentSpec(delta);
        layer.is_beside = spec.norm_placement == NormPlacement::kBefore && draw(random, 0, 2) == 0;
    }
}

// Draws layers that end after their attention or what replaces it.
void draw_short_layers(Random& random, ModelSpec& spec) {
    const bool is_plain = spec.is_causal && spec.norm_placement == NormPlacement::kBefore && !spec.latent &&
                          spec.num_cross_keys == 0 && spec.per_layer_size == 0;
    if (!is_plain || draw(random, 0, 1) == 0) return;
    for (LayerSpec& layer : spec.layers) layer.has_mlp = layer.experts || draw(random, 0, 1) == 1;
}

// Draws the formats of linear layers; other quantized weights are int8. Layers must be complete.
void draw_formats(Random& random, ModelSpec& spec) {
    if (!spec.is_int8()) return;
    const auto maybe = [&](std::optional<GroupFormat>& format) {
        if (draw(random, 0, 2) == 0) format = draw_format(random);
    };
    for (LayerSpec& layer : spec.layers) {
        maybe(layer.qkv_groups);
        if (spec.latent) maybe(layer.q_b_groups);
        const int dim = spec.latent ? spec.value_dim() : spec.heads_of(layer).dim;
        if (dim % kLanes == 0 || !layer.has_attention()) maybe(layer.o_groups);
        maybe(layer.up_groups);
        maybe(layer.down_groups);
        if (!layer.experts) continue;
        maybe(layer.experts->up_groups);
        maybe(layer.experts->down_groups);
    }
}

LayerSpec draw_layer(Random& random, const ModelSpec& spec) {
    LayerSpec layer;
    if (spec.latent || draw(random, 0, 2) > 0) layer.rope = 0;
    if (draw(random, 0, 1) == 1) layer.window = draw(random, 1, 40);
    if (spec.is_causal) layer.chunk = draw(random, 0, 1) * draw(random, 1, 40);
    layer.has_qk_norm = draw(random, 0, 2) > 0;
    if (!spec.latent && (spec.qk_norm == QkNorm::kNone || !layer.has_qk_norm)) {
        layer.temperature_interval = draw(random, 0, 1) * draw(random, 1, 9);
        layer.temperature_slope = 0.1F;
    }
    layer.has_attention_norm = spec.norm_placement != NormPlacement::kBefore || draw(random, 0, 2) > 0;
    if (draw(random, 0, 2) == 0) layer.experts = draw_experts(random, spec.norm == Norm::kRms);
    return layer;
}

void draw_head(Random& random, ModelSpec& spec) {
    spec.has_head = draw(random, 0, 4) > 0;
    if (!spec.has_head) return;
    spec.tied_head = draw(random, 0, 1) == 1;
    if (!spec.tied_head && draw(random, 0, 2) == 0) spec.num_outputs = draw(random, 1, 70);
    spec.final_soft_cap = draw(random, 0, 1) * 5.0F;
    spec.logits_divisor = static_cast<float>(draw(random, 1, 2));
}

// Makes the model join pairs; it then has no embeddings of any kind.
void join_hidden(ModelSpec& spec) {
    spec.joins_hidden = true;
    spec.tied_head = spec.has_embed_norm = false;
    spec.num_positions = spec.position_offset = spec.num_token_types = 0;
}

// Makes rows attend to keys that come with their sequences, and resets switches that exclude it.
void draw_cross(Random& random, ModelSpec& spec) {
    if (!spec.is_causal || spec.latent || spec.joins_hidden || draw(random, 0, 5) > 0) return;
    spec.num_cross_keys = draw(random, 1, 40);
    spec.norm_placement = NormPlacement::kBefore;
    spec.num_heads = spec.num_kv_heads;
    spec.has_output_gate = spec.has_sinks = false;
}

// Draws a layer's sizes, or makes it read the keys and values of an earlier one.
void draw_own_sizes(Random& random, ModelSpec& spec, std::size_t index) {
    LayerSpec& layer = spec.layers[index];
    layer.intermediate_size = draw(random, 0, 1) * draw(random, 1, 90);
    if (!layer.has_attention()) return;
    const int least_dim = 2 * static_cast<int>(spec.ropes[0].frequencies.size());
    if (draw(random, 0, 1) == 1) layer.num_kv_heads = std::gcd(spec.num_heads, draw(random, 1, 12));
    if (draw(random, 0, 1) == 1) layer.head_dim = draw(random, least_dim, least_dim + 24);
    const int earlier = draw(random, 0, static_cast<int>(index));
    const LayerSpec& maker = spec.layers[static_cast<std::size_t>(earlier)];
    if (earlier == static_cast<int>(index) || !maker.stores_kv()) return;
    const Heads made = spec.heads_of(maker);
    layer.kv_layer = earlier;
    layer.num_kv_heads = made.kv_count;
    layer.head_dim = made.dim;
}

// Draws what only decoders with plain attention have: sizes, inputs and factors that each layer has of its own.
void draw_own_layers(Random& random, ModelSpec& spec) {
    const bool is_plain = spec.is_causal && !spec.latent && !spec.has_output_gate && spec.num_cross_keys == 0 &&
                          !spec.has_whole_qk_norm() && !spec.joins_hidden && !spec.is_parallel();
    if (!is_plain || draw(random, 0, 1) == 0) return;
    const auto is_beside = [](const LayerSpec& layer) { return layer.is_beside; };
    const bool has_beside = std::any_of(spec.layers.begin(), spec.layers.end(), is_beside);
    if (spec.norm == Norm::kRms && !has_beside) spec.per_layer_size = draw(random, 0, 1) * draw(random, 1, 40);
    spec.has_layer_scales = draw(random, 0, 1) == 1;
    spec.has_value_norm = draw(random, 0, 1) == 1;
    for (std::size_t i = 0; i < spec.layers.size(); i++) draw_own_sizes(random, spec, i);
}

void draw_ropes(Random& random, ModelSpec& spec) {
    Rope rope;
    const int turned = spec.latent ? spec.latent->rope_size : spec.head_dim;
    const bool has_axes = draw(random, 0, 2) == 0;
    for (int i = draw(random, 1, turned / 2); i > 0; i--) {
        rope.frequencies.push_back(0.1F);
        if (has_axes) rope.axes.push_back(draw(random, 0, 2));
    }
    spec.ropes.push_back(rope);
}

}  // namespace

ModelSpec draw_spec(Random& random, bool is_causal) {
    ModelSpec spec;
    spec.is_causal = is_causal;
    spec.vocab_size = draw(random, 3, 70);
    spec.hidden_size = draw(random, 2, 70);
    spec.intermediate_size = draw(random, 1, 90);
    spec.num_kv_heads = draw(random, 1, 3);
    spec.num_heads = spec.num_kv_heads * draw(random, 1, 14);
    spec.head_dim = 2 * draw(random, 1, 24);
    spec.num_positions = draw(random, 0, 1) * 100;
    spec.position_offset = spec.num_positions > 0 ? draw(random, 0, 2) : 0;
    spec.num_token_types = draw(random, 0, 2);
    spec.norm = static_cast<Norm>(draw(random, 0, 1));
    spec.norm_placement = static_cast<NormPlacement>(draw(random, 0, 4));
    spec.has_embed_norm = draw(random, 0, 1) == 1;
    spec.norm_eps = 1e-5F;
    spec.qk_norm = static_cast<QkNorm>(draw(random, 0, 4));
    spec.has_qk_weights = spec.qk_norm == QkNorm::kHeadLayer || draw(random, 0, 2) > 0;
    spec.is_gated = draw(random, 0, 3) > 0;
    spec.activation = static_cast<Activation>(draw(random, 0, 6));
    spec.attention_scale = draw(random, 0, 1) * 0.3F;
    spec.attention_soft_cap = draw(random, 0, 1) * 5.0F;
    spec.has_sinks = draw(random, 0, 1) == 1;
    spec.has_output_gate = draw(random, 0, 2) == 0;
    spec.swiglu_limit = spec.is_gated ? draw(random, 0, 1) * 0.5F : 0.0F;
    spec.swiglu_alpha = 1.7F;
    spec.element = draw(random, 0, 1) == 1 ? Element::kFloat32 : Element::kBfloat16;
    draw_head(random, spec);
    if (is_causal && draw(random, 0, 5) == 0) join_hidden(spec);
    if (draw(random, 0, 2) == 0) spec.quantization = Quantization::kInt8;
    spec.has_int8_cache = is_causal && draw(random, 0, 2) == 0;
    if (is_causal && draw(random, 0, 2) == 0) draw_latent(random, spec);
    draw_cross(random, spec);
    draw_ropes(random, spec);
    for (int i = draw(random, 1, 3); i > 0; i--) spec.layers.push_back(draw_layer(random, spec));
    draw_convolutions(random, spec);
    draw_recurrences(random, spec);
    draw_own_layers(random, spec);
    draw_short_layers(random, spec);
    draw_formats(random, spec);
    return spec;
}

}  // namespace weft
