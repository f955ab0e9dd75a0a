#include "tests/load.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>

#include "tests/parts.h"

namespace weft {
namespace {

using Random = std::mt19937;

// Loads a matrix as quantized by its checkpoint, in every fourth case.
bool load_int8(Model& model, const std::string& name, int rows, int columns, Random& random) {
    if (name.find("layers.") != 0 || columns < 2 || draw(random, 0, 3) > 0) return false;
    std::vector<std::int8_t> numbers(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    for (std::int8_t& number : numbers) number = static_cast<std::int8_t>(draw(random, -128, 127));
    // At any offset, as in a file after a header of any length.
    const auto offset = static_cast<std::size_t>(draw(random, 0, 3));
    std::vector<char> scales(static_cast<std::size_t>(rows) * sizeof(float) + offset);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); row++) {
        const float scale = static_cast<float>(draw(random, 0, 20)) / 6000.0F;
        std::memcpy(scales.data() + offset + row * sizeof scale, &scale, sizeof scale);
    }
    model.load(name, {numbers.data(), Stored::kInt8, rows, columns, scales.data() + offset});
    return true;
}

void load(Model& model, const std::string& name, int rows, int columns, unsigned seed) {
    Random random(seed + static_cast<unsigned>(std::hash<std::string>{}(name)));
    if (const std::optional<GroupFormat>& format = format_of(model.spec(), name)) {
        const GroupedArrays arrays(random, *format, rows, columns);
        need(model.load(name, arrays.source()), "numbers in groups are not finite", seed);
        need(!model.load(name, arrays.broken().source()), "a scale that is no number was not seen", seed);
        need(model.load(name, arrays.source()), "numbers in groups are not finite", seed);
        return;
    }
    if (load_int8(model, name, rows, columns, random)) return;
    const bool is_short = draw(random, 0, 1) == 1;
    const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
    std::vector<float> floats(count);
    std::vector<std::uint16_t> halves(count);
    for (float& value : floats) value = static_cast<float>(draw(random, -100, 100)) / 300.0F;
    for (std::size_t i = 0; i < count; i++) halves[i] = narrow_bfloat16(floats[i]);
    const void* data = is_short ? static_cast<const void*>(halves.data()) : floats.data();
    model.load(name, {data, is_short ? Stored::kBfloat16 : Stored::kFloat32, rows, columns});
}

void load_norms(Model& model, std::size_t layer, unsigned seed) {
    const ModelSpec& s = model.spec();
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const auto norms = [&](const std::string& suffix, bool has_attention_norm) {
        for (const char* part : {"attention", "mlp"}) {
            if (part[0] == 'a' && !has_attention_norm) continue;
            if (part[0] == 'm' && !s.layers[layer].has_second_part()) continue;
            load(model, prefix + part + suffix, s.hidden_size, 1, seed);
            if (s.norm == Norm::kLayer && seed % 2 == 0)
                load(model, prefix + part + suffix + ".bias", s.hidden_size, 1, seed);
        }
    };
    if (s.has_norm_before()) norms("_norm_before", s.layers[layer].has_attention_norm);
    if (s.has_norm_after()) norms("_norm_after", true);
    if (s.has_norm_of_sum()) norms("_norm_sum", true);
    const bool has_weights = s.has_qk_weights && s.layers[layer].has_qk_norm;
    if (s.qk_norm == QkNorm::kNone || !has_weights || !s.layers[layer].has_attention()) return;
    const bool is_full = s.has_whole_qk_norm();
    const int dim = s.heads_of(s.layers[layer]).dim;
    load(model, prefix + "q_norm", (is_full ? s.num_heads : 1) * dim, 1, seed);
    if (!s.layers[layer].kv_layer) load(model, prefix + "k_norm", (is_full ? s.num_kv_heads : 1) * dim, 1, seed);
}

void load_mlp(Model& model, const std::string& prefix, int size, unsigned seed) {
    const ModelSpec& s = model.spec();
    if (size == 0) return;
    if (s.is_gated) load(model, prefix + "gate", size, s.hidden_size, seed);
    load(model, prefix + "up", size, s.hidden_size, seed);
    load(model, prefix + "down", s.hidden_size, size, seed);
    if (seed % 2 == 0) load(model, prefix + "up.bias", size, 1, seed);
    if (seed % 2 == 0) load(model, prefix + "down.bias", s.hidden_size, 1, seed);
}

void load_experts(Model& model, const std::string& prefix, const std::optional<ExpertsSpec>& experts,
                  unsigned seed) {
    if (!experts) return;
    load(model, prefix + "router", experts->count, model.spec().hidden_size, seed);
    if (seed % 2 == 0) load(model, prefix + "router.bias", experts->count, 1, seed);
    if (experts->has_correction) load(model, prefix + "router_correction", experts->count, 1, seed);
    if (experts->weighs_shared()) load(model, prefix + "shared_gate", 1, model.spec().hidden_size, seed);
    if (experts->has_norms) {
        load(model, prefix + "router_scales", experts->count, 1, seed);
        for (const char* name : {"router_norm", "shared_norm", "expert_norm_before", "expert_norm_after"})
            load(model, prefix + name, model.spec().hidden_size, 1, seed);
    }
    for (int i = 0; i < experts->count; i++)
        load_mlp(model, prefix + "experts." + std::to_string(i) + ".", experts->inner_size, seed);
}

void load_latent(Model& model, const std::string& prefix, unsigned seed) {
    const ModelSpec& s = model.spec();
    if (!s.latent) return;
    const int heads = s.num_heads * (s.latent->key_size + s.latent->value_size);
    load(model, prefix + "kv_b", heads, s.latent->rank, seed);
    load(model, prefix + "kv_a_norm", s.latent->rank, 1, seed);
    if (s.latent->query_rank > 0) load(model, prefix + "q_a_norm", s.latent->query_rank, 1, seed);
}

void load_convolution(Model& model, const std::string& prefix, int width, unsigned seed) {
    const int hidden = model.spec().hidden_size;
    load(model, prefix + "conv_in", 3 * hidden, hidden, seed);
    load(model, prefix + "conv", width * hidden, 1, seed);
    load(model, prefix + "conv_out", hidden, hidden, seed);
    if (seed % 2 == 0) load(model, prefix + "conv_in.bias", 3 * hidden, 1, seed);
    if (seed % 2 == 0) load(model, prefix + "conv.bias", hidden, 1, seed);
}

void load_recurrence(Model& model, const std::string& prefix, const RecurrentSpec& recurrence, unsigned seed) {
    const RecurrentSizes of = sizes(recurrence);
    for (const auto& [name, rows, columns] : recurrent_matrices(model.spec(), recurrence)) {
        load(model, prefix + name, rows, columns, seed);
        if (seed % 2 == 0) load(model, prefix + name + ".bias", rows, 1, seed);
    }
    load(model, prefix + "conv", of.conv_width * of.conv_size, 1, seed);
    if (seed % 2 == 0) load(model, prefix + "conv.bias", of.conv_size, 1, seed);
    load(model, prefix + "a_log", of.num_decays, 1, seed);
    load(model, prefix + "step_bias", of.num_steps, 1, seed);
    if (of.num_scales > 0) load(model, prefix + "output_scale", of.num_scales, 1, seed);
    if (of.num_skips > 0) load(model, prefix + "skip", of.num_skips, 1, seed);
    if (of.num_step_in == 0) return;
    load(model, prefix + "step_in", static_cast<int>(of.num_step_in), 1, seed);
    load(model, prefix + "step_out", static_cast<int>(of.num_step_out), 1, seed);
}

void load_attention(Model& model, const std::string& prefix, const LayerSpec& layer, unsigned seed) {
    const ModelSpec& s = model.spec();
    for (const auto& [name, rows, columns] : attention_matrices(s, layer)) {
        load(model, prefix + name, rows, columns, seed);
        if (seed % 2 == 0 && name != "q" && name != "o") load(model, prefix + name + ".bias", rows, 1, seed);
    }
    load_latent(model, prefix, seed);
    if (s.has_sinks) load(model, prefix + "sinks", s.num_heads, 1, seed);
}

// Loads the attention to keys that come with sequences.
void load_cross(Model& model, const std::string& prefix, unsigned seed) {
    const ModelSpec& s = model.spec();
    if (s.num_cross_keys == 0) return;
    const int size = s.num_heads * s.head_dim;
    load(model, prefix + "cross_q", size, s.hidden_size, seed);
    load(model, prefix + "cross_o", s.hidden_size, size, seed);
    load(model, prefix + "cross_norm", s.hidden_size, 1, seed);
    if (seed % 2 == 0) load(model, prefix + "cross_o.bias", s.hidden_size, 1, seed);
}

// Loads what makes a layer's own input, and its factor.
void load_own(Model& model, const std::string& prefix, bool has_mlp, unsigned seed) {
    const ModelSpec& s = model.spec();
    if (s.has_layer_scales) load(model, prefix + "scale", 1, 1, seed);
    if (s.activation == Activation::kXielu && has_mlp)
        for (const char* name : {"xielu_positive", "xielu_negative", "xielu_linear"}) load(model, prefix + name, 1, 1, seed);
    if (s.per_layer_size == 0) return;
    load(model, prefix + "input.gate", s.per_layer_size, s.hidden_size, seed);
    load(model, prefix + "input.down", s.hidden_size, s.per_layer_size, seed);
    load(model, prefix + "input.norm", s.hidden_size, 1, seed);
}

void load_inputs(Model& model, unsigned seed) {
    const ModelSpec& s = model.spec();
    if (s.per_layer_size == 0) return;
    const int all = static_cast<int>(s.layers.size()) * s.per_layer_size;
    load(model, "inputs.embed", s.vocab_size, all, seed);
    load(model, "inputs.join", all, s.hidden_size, seed);
    load(model, "inputs.norm", s.per_layer_size, 1, seed);
}

void load_join(Model& model, unsigned seed) {
    const int hidden = model.spec().hidden_size;
    for (const char* name : {"join_embed_norm", "join_hidden_norm"}) {
        load(model, name, hidden, 1, seed);
        if (model.spec().norm == Norm::kLayer) load(model, name + std::string(".bias"), hidden, 1, seed);
    }
    for (const char* name : {"join_embed", "join_hidden"}) load(model, name, hidden, hidden, seed);
}

void load_layer(Model& model, std::size_t layer, unsigned seed) {
    const ModelSpec& s = model.spec();
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int width = s.layers[layer].conv_width;
    if (s.layers[layer].recurrence) load_recurrence(model, prefix, *s.layers[layer].recurrence, seed);
    if (width > 0) load_convolution(model, prefix, width, seed);
    if (s.layers[layer].has_attention()) load_attention(model, prefix, s.layers[layer], seed);
    load_cross(model, prefix, seed);
    load_own(model, prefix, s.mlp_size(s.layers[layer]) > 0, seed);
    load_mlp(model, prefix, s.mlp_size(s.layers[layer]), seed);
    load_experts(model, prefix, s.layers[layer].experts, seed);
    load_norms(model, layer, seed);
}

}  // namespace

std::vector<std::tuple<std::string, int, int>> attention_matrices(const ModelSpec& s, const LayerSpec& layer) {
    const int hidden = s.hidden_size;
    const Heads heads = s.heads_of(layer);
    const int kv = heads.kv_count * heads.dim;
    const int turns = s.has_output_gate ? 2 : 1;
    std::vector<std::tuple<std::string, int, int>> matrices{{"o", hidden, heads.count * (s.latent ? s.value_dim() : heads.dim)}};
    const auto add = [&](const char* name, int rows, int columns) { matrices.emplace_back(name, rows, columns); };
    if (!s.latent) {
        add("q", turns * heads.count * heads.dim, hidden);
        for (const char* name : {"k", "v"})
            if (!layer.kv_layer) add(name, kv, hidden);
        return matrices;
    }
    const int queries = s.num_heads * (s.latent->key_size + s.latent->rope_size);
    const int rank = s.latent->query_rank;
    if (rank > 0) add("q_a", rank, hidden);
    add(rank > 0 ? "q_b" : "q", queries, rank > 0 ? rank : hidden);
    add("kv_a", kv, hidden);
    return matrices;
}

std::vector<std::tuple<std::string, int, int>> recurrent_matrices(const ModelSpec& s, const RecurrentSpec& recurrence) {
    const int hidden = s.hidden_size;
    const RecurrentSizes of = sizes(recurrence);
    const auto* delta = std::get_if<DeltaSpec>(&recurrence);
    if (delta == nullptr) return {{"mamba_in", of.made, hidden}, {"mamba_out", hidden, of.inner_size}};
    if (delta->is_by_key_head)
        return {{"delta_qkvz", of.made, hidden}, {"delta_ba", of.unrounded, hidden}, {"delta_out", hidden, of.inner_size}};
    return {{"delta_qkv", of.conv_size, hidden}, {"delta_z", of.inner_size, hidden}, {"delta_b", of.num_heads, hidden},
            {"delta_a", of.num_heads, hidden}, {"delta_out", hidden, of.inner_size}};
}

void load_all(Model& model, unsigned seed) {
    const ModelSpec& s = model.spec();
    if (s.joins_hidden) load_join(model, seed);
    else load(model, "embed", s.vocab_size, s.hidden_size, seed);
    if (s.num_positions > 0) load(model, "positions", s.num_positions, s.hidden_size, seed);
    if (s.num_token_types > 0) load(model, "token_types", s.num_token_types, s.hidden_size, seed);
    if (s.has_embed_norm) load(model, "embed_norm", s.hidden_size, 1, seed);
    if (!s.has_norm_of_sum()) load(model, "norm", s.hidden_size, 1, seed);
    if (!s.has_norm_of_sum() && s.norm == Norm::kLayer) load(model, "norm.bias", s.hidden_size, 1, seed);
    if (s.has_head && !s.tied_head) load(model, "head", s.head_columns(), s.hidden_size, seed);
    load_inputs(model, seed);
    for (std::size_t i = 0; i < s.layers.size(); i++) load_layer(model, i, seed);
}

}  // namespace weft
