// Description of a model for the step: the C++ form of `weft.model.spec.ModelSpec`.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "int8/grouped.h"
#include "kernels/kernels.h"
#include "model/recurrence.h"
#include "model/rope.h"

namespace weft {

// Storage of the weights of linear layers: as `element`, or as int8 with a scale per output.
enum class Quantization { kNone, kInt8 };

enum class Norm { kRms, kLayer };

// Placement of a layer's norms, around attention and around the MLP alike: on the input, on the output, on both, or
// on their sum. kParallel: on the input, which for the MLP too is the layer's input.
enum class NormPlacement { kBefore, kAfter, kBoth, kSum, kParallel };

// Experts of a layer: each row uses the few experts with the highest router logits; of equal logits, those with the
// lowest numbers. Their results are summed with their weights, in the order of their numbers.
//
// Or an expert's score is the logistic function of its logit, and the experts with the highest sums of score and a
// learned correction are chosen: from `groups_per_token` of `num_groups` groups, those with the largest sums of their
// best two. Weights come from the scores without the correction. With logits, groups are ranked by their best one.
// With `has_correction` and no logistic functions, scores are a softmax over all experts.
struct ExpertsSpec {
    int count = 0;
    int per_token = 0;
    int inner_size = 0;
    // Size of one more expert that all rows use, with a weight that does not depend on the others; 0: none.
    int shared_size = 0;
    // True: the weight of the shared expert is learned; False: it is 1.
    bool has_shared_gate = true;
    // True: the weights of a row's chosen experts sum to 1; False: those of all experts do.
    bool is_normalized = false;
    bool is_sigmoid = false;
    bool has_correction = false;
    bool weighs_inputs = false;  // a weight multiplies the expert's input, not its result
    int num_groups = 1;
    int groups_per_token = 1;
    float scale = 1;  // factor of the weights
    // Added to the sum of logistic functions before the division that normalizes them; the least divisor of a softmax.
    float epsilon = 1e-20F;
    // Router and experts read the hidden state by norms of their own; results are normed before they are added to those
    // of the shared expert, and each expert has a factor of its weights.
    bool has_norms = false;
    std::optional<GroupFormat> up_groups;
    std::optional<GroupFormat> down_groups;

    bool weighs_shared() const { return shared_size > 0 && has_shared_gate; }
    int router_columns() const { return count + (weighs_shared() ? 1 : 0); }
};

// Attention to one vector per token, from which all heads make their keys and values: see
// `weft.model.spec.LatentSpec`. The model then has one KV head, whose `head_dim` elements are that vector.
struct LatentSpec {
    int rank = 0;
    int rope_size = 0;
    int key_size = 0;
    int value_size = 0;
    int query_rank = 0;  // 0: queries are computed from the hidden state directly
    bool is_interleaved = true;
    float norm_eps = 0;
};

// Sizes of the heads of a layer with attention.
struct Heads {
    int count = 0;
    int kv_count = 0;
    int dim = 0;

    int group() const { return count / kv_count; }
    int padded_dim() const { return round_up(dim, kLanes); }
    int query_size() const { return count * padded_dim(); }
    int kv_size() const { return kv_count * padded_dim(); }
};

struct LayerSpec {
    std::optional<int> rope;    // index of a `Rope`
    // Number of keys that a row sees, itself included: on either side, or before it if causal.
    std::optional<int> window;
    int chunk = 0;  // positions are divided into chunks of this many, and a row sees only its own; 0: no chunks
    // Queries are multiplied by 1 + slope * log(1 + floor((position + 1) / interval)); 0: they are not.
    int temperature_interval = 0;
    float temperature_slope = 0;
    bool has_attention_norm = true;  // may be False if the norms come before
    bool has_qk_norm = true;  // False: queries and keys have no norm, whatever the model says
    // Sizes that differ from the model's; 0: they do not.
    int num_kv_heads = 0;
    int head_dim = 0;
    int intermediate_size = 0;
    std::optional<int> kv_layer;  // index of the earlier layer whose keys and values the rows see
    int conv_width = 0;  // width of the short convolution that replaces attention; 0: none
    std::optional<RecurrentSpec> recurrence;  // replaces attention
    // The recurrence does not replace attention: both read the same rows, and both results are added.
    bool is_beside = false;
    bool has_mlp = true;  // False: the layer ends after its attention or what replaces it
    // Formats of matrices with scales per group; others have the model's format.
    std::optional<GroupFormat> qkv_groups;  // or of the first product of a layer without attention
    std::optional<GroupFormat> q_b_groups;  // of the matrix from a vector of low rank to queries
    std::optional<GroupFormat> o_groups;  // or of the last product of a layer without attention
    std::optional<GroupFormat> up_groups;  // of the matrices gate and up
    std::optional<GroupFormat> down_groups;
    // Instead of the MLP, whose fields then describe the shared expert.
    std::optional<ExpertsSpec> experts;

    bool has_attention() const { return conv_width == 0 && (!recurrence || is_beside); }
    bool has_second_part() const { return has_mlp || experts; }
    bool stores_kv() const { return has_attention() && !kv_layer; }
};

// Rows from another width to the model's, or from it to another: an optional norm of each `norm_size` elements, an
// optional linear layer with an activation, and a linear layer. Tensors are "project.NAME." and norm, up, down.
struct ProjectionSpec {
    std::string name;
    int input = 0;
    int norm_size = 0;  // a divisor of `input`; 0: no norm
    Norm norm = Norm::kLayer;
    float norm_eps = 0;
    int inner = 0;  // 0: one linear layer, "down"
    Activation activation = Activation::kGelu;
    int output = 0;

    int depth() const { return round_up(inner == 0 ? input : inner, kPanelColumns); }
};

struct ModelSpec {
    int vocab_size = 0;
    int hidden_size = 0;
    int intermediate_size = 0;
    int num_heads = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    std::vector<LayerSpec> layers;
    std::vector<Rope> ropes;
    // True: a row sees the rows before it, whose keys and values are kept in a pool between steps. False: a row sees
    // its whole sequence, which one step computes, and no keys or values are kept.
    bool is_causal = true;
    int num_positions = 0;  // number of learned position embeddings; 0: none
    int position_offset = 0;  // row i takes position embedding i + position_offset
    int num_token_types = 0;  // 0: none
    Norm norm = Norm::kRms;
    NormPlacement norm_placement = NormPlacement::kBefore;
    bool has_embed_norm = false;
    float norm_eps = 0;
    QkNorm qk_norm = QkNorm::kNone;
    bool has_qk_weights = true;  // False: norms of queries and keys have no weights
    bool is_gated = true;
    Activation activation = Activation::kSilu;
    float attention_scale = 0;     // 0: 1 / sqrt(head_dim)
    float attention_soft_cap = 0;  // 0: none
    // The output of attention is multiplied by sigmoids, whose inputs the query product computes.
    bool has_output_gate = false;
    // Each head has a score that adds to the sum of weights and has no value.
    bool has_sinks = false;
    bool has_value_norm = false;  // each head of the values is normed, without weights
    // Size of the input that each layer has of its own, from a second embedding of the row's token; 0: none.
    int per_layer_size = 0;
    bool has_layer_scales = false;  // a factor of the hidden state that leaves a layer
    float swiglu_limit = 0;  // limit of gate and up, combined as in gpt-oss; 0: use `activation`
    float swiglu_alpha = 1;
    float final_soft_cap = 0;      // 0: none
    std::optional<LatentSpec> latent;
    float embedding_multiplier = 1;
    float residual_multiplier = 1;
    float logits_divisor = 1;
    // Rows begin with a token's embedding and a hidden state from the batch: each is normed and multiplied, and the
    // results are added. Such a model has no embedding table.
    bool joins_hidden = false;
    bool has_last_norm = true;  // after the last layer; always there if the model is causal
    // Number of keys that come with each sequence: between attention and MLP, all rows attend to all of them. 0: none.
    int num_cross_keys = 0;
    std::vector<ProjectionSpec> projections;
    bool has_head = true;  // False: the outputs are hidden states after the last norm
    bool tied_head = false;
    int num_outputs = 0;  // columns of the head; 0: one for each token
    Element element = Element::kFloat32;  // type of activations, KV pool and embeddings
    Quantization quantization = Quantization::kNone;
    bool has_int8_cache = false;  // keys and values are quantized to int8

    bool is_int8() const { return quantization == Quantization::kInt8; }
    // False for a head that passes hidden states on: quantizing them would gain nothing.
    bool has_int8_head() const { return is_int8() && num_outputs == 0; }
    bool is_parallel() const { return norm_placement == NormPlacement::kParallel; }
    bool has_norm_before() const {
        return norm_placement == NormPlacement::kBefore || norm_placement == NormPlacement::kBoth || is_parallel();
    }
    bool has_norm_after() const { return norm_placement == NormPlacement::kAfter || norm_placement == NormPlacement::kBoth; }
    bool has_norm_of_sum() const { return norm_placement == NormPlacement::kSum; }
    int head_columns() const { return num_outputs == 0 ? vocab_size : num_outputs; }
    // Size of a row whose embedding comes with the batch.
    int input_size() const { return (joins_hidden ? 2 : 1) * hidden_size; }
    int output_columns() const { return has_head ? head_columns() : hidden_size; }
    int group() const { return num_heads / num_kv_heads; }
    int padded_hidden() const { return round_up(hidden_size, kPanelColumns); }
    // With a gate, a panel has 16 columns of gate and 16 of up.
    int padded_inner(int size) const { return round_up(size, is_gated ? kLanes : kPanelColumns); }
    // Size of the MLP or shared expert that all rows of a layer use; 0: none.
    int mlp_size(const LayerSpec& layer) const {
        if (layer.experts) return layer.experts->shared_size;
        if (!layer.has_mlp) return 0;
        return layer.intermediate_size > 0 ? layer.intermediate_size : intermediate_size;
    }
    // Sizes of the heads of layers without sizes of their own, and of a layer.
    Heads heads() const { return {num_heads, num_kv_heads, head_dim}; }
    Heads heads_of(const LayerSpec& layer) const {
        return {num_heads, layer.num_kv_heads > 0 ? layer.num_kv_heads : num_kv_heads,
                layer.head_dim > 0 ? layer.head_dim : head_dim};
    }
    int most_group() const;  // maximum over all layers with attention: query heads per KV head
    int most_kv_heads() const;
    // Sizes of a layer's own input, and of those of all layers, padded.
    int padded_input() const { return round_up(per_layer_size, kPanelColumns); }
    int padded_inputs() const { return round_up(static_cast<int>(layers.size()) * per_layer_size, kPanelColumns); }
    int most_inner() const;  // maximum over all MLPs and experts, padded
    int padded_dim() const { return round_up(head_dim, kLanes); }
    int query_size() const { return num_heads * padded_dim(); }
    // Columns of the first product of a layer: queries, keys and values, or the vectors that they are made from; then
    // gates.
    int first_gate() const { return (num_heads + 2 * num_kv_heads) * padded_dim(); }
    int qkv_size(const LayerSpec& layer) const;
    // Sizes of latent attention: a head's query before the latent space, all queries of the first product, and a
    // head's values.
    int padded_query() const { return round_up(latent->key_size + latent->rope_size, kLanes); }
    int queries_size() const {
        return latent->query_rank > 0 ? round_up(latent->query_rank, kLanes) : num_heads * padded_query();
    }
    int padded_value() const { return latent ? round_up(latent->value_size, kLanes) : padded_dim(); }
    int value_dim() const { return latent ? latent->value_size : head_dim; }
    // Size of the output of attention.
    int output_size() const { return num_heads * padded_value(); }
    // 2 for keys and values; 1 for latent attention, where they are the same.
    int kv_parts() const { return latent ? 1 : 2; }
    // Sizes of a layer: columns of its first product; width of a row for the next product in memory, and the part of
    // it that the next product reads.
    int parts_size(const LayerSpec& layer) const;
    int mixed_size(const LayerSpec& layer) const;
    // Of the recurrence: the first of its elements in such a row.
    int first_mixed(const LayerSpec& layer) const { return layer.is_beside ? heads_of(layer).query_size() : 0; }
    int out_depth(const LayerSpec& layer) const {
        if (layer.is_beside) return first_mixed(layer);
        return layer.has_attention() && latent ? output_size() : mixed_size(layer);
    }
    // True if all heads have a norm with weights of their own, or with other heads.
    bool has_whole_qk_norm() const { return qk_norm == QkNorm::kFull || qk_norm == QkNorm::kHeadLayer; }
    int most_made() const;  // maximum over all layers: columns of all products of a layer's input
    int most_mixed() const;
    int most_out_depth() const;
    int most_convolved() const;  // maximum number of channels of a recurrence; 0: no layer has one
    std::size_t num_convolutions() const;
    std::size_t num_attentions() const;
    bool has_like_heads() const;  // True if no layer has heads or keys that differ from those of other layers
    // True if blocks hold states of convolution layers beside keys and values.
    bool has_states() const { return num_convolutions() > 0; }
    std::size_t state_bytes() const;  // bytes of a block in one convolution layer
    // True if slots hold states of layers with a recurrence; and the number of floats per slot.
    bool has_recurrences() const { return most_convolved() > 0; }
    std::size_t slot_size() const;
    int kv_element_bytes() const { return has_int8_cache ? 1 : element_bytes(element); }
    // Keys that come with a sequence: tiles of 16 keys, bytes of a tile with all heads, and bytes of the keys and values
    // of all layers. They are never quantized.
    int num_cross_tiles() const { return round_up(num_cross_keys, kLanes) / kLanes; }
    std::size_t cross_tile_bytes() const {
        return static_cast<std::size_t>(num_kv_heads * padded_dim() * kLanes * element_bytes(element));
    }
    std::size_t cross_bytes() const {
        return 2 * layers.size() * static_cast<std::size_t>(num_cross_tiles()) * cross_tile_bytes();
    }
    // Bytes of the keys of 16 tokens in a layer, all heads; values take the same.
    std::size_t tile_bytes(const LayerSpec& layer) const;
    std::size_t most_tile_bytes() const;  // maximum over all layers with attention
    std::size_t kv_bytes_per_token() const;
};

// Throws std::invalid_argument that names the field at fault.
void check(const ModelSpec& spec);

}  // namespace weft
