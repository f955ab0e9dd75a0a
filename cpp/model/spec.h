// What a decoder is, as the step needs it: the C++ form of `weft.model.spec.DecoderSpec`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/rope.h"

namespace weft {

// How the weights of linear layers are kept: as `element`, or as int8 with a scale for each output.
enum class Quantization { kNone, kInt8 };

struct LayerSpec {
    std::optional<int> rope;    // index of a `Rope`
    std::optional<int> window;  // visible keys, the row's own included
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
    float norm_eps = 0;
    QkNorm qk_norm = QkNorm::kNone;
    Activation activation = Activation::kSilu;
    float attention_scale = 1;
    float attention_soft_cap = 0;  // 0: none
    float final_soft_cap = 0;      // 0: none
    float embedding_multiplier = 1;
    float residual_multiplier = 1;
    float logits_divisor = 1;
    bool tied_head = false;
    int num_outputs = 0;  // columns of the head; 0: one for each token
    Element element = Element::kFloat32;  // of activations, of the KV pool and of the embedding
    Quantization quantization = Quantization::kNone;
    bool has_int8_cache = false;  // keys and values are rounded to int8

    bool is_int8() const { return quantization == Quantization::kInt8; }
    // Not where it hands on hidden states: they would be rounded for nothing.
    bool has_int8_head() const { return is_int8() && num_outputs == 0; }
    int head_columns() const { return num_outputs == 0 ? vocab_size : num_outputs; }
    int group() const { return num_heads / num_kv_heads; }
    int padded_hidden() const { return round_up(hidden_size, kPanelColumns); }
    int padded_inner() const { return round_up(intermediate_size, kLanes); }
    int padded_dim() const { return round_up(head_dim, kLanes); }
    int query_size() const { return num_heads * padded_dim(); }
    int kv_element_bytes() const { return has_int8_cache ? 1 : element_bytes(element); }
    int qkv_size() const { return (num_heads + 2 * num_kv_heads) * padded_dim(); }
};

// Throws std::invalid_argument that names the field at fault.
void check(const ModelSpec& spec);

}  // namespace weft
