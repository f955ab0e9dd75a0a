// What an encoder is, as its step needs it: the C++ form of `weft.model.encoders.spec.EncoderSpec`.
#pragma once

#include <optional>
#include <vector>

#include "kernels/kernels.h"
#include "model/rope.h"

namespace weft {

// A row sees keys at most `reach` places away; without it, all of its sequence.
struct EncoderLayer {
    std::optional<int> rope;  // index of a `Rope`
    std::optional<int> reach;
    bool has_attention_norm = true;  // may be left out where norms come before
};

struct EncoderSpec {
    int vocab_size = 0;
    int hidden_size = 0;
    int intermediate_size = 0;
    int num_heads = 0;
    std::vector<EncoderLayer> layers;
    std::vector<Rope> ropes;
    int num_positions = 0;    // learned ones; 0: none
    int position_offset = 0;  // row i takes position embedding i + position_offset
    int num_token_types = 0;  // 0: none
    float norm_eps = 0;
    bool norm_before = false;  // each part norms its input, and the last layer is followed by a norm
    bool is_gated = false;
    Activation activation = Activation::kGelu;
    Element element = Element::kFloat32;

    int head_dim() const { return hidden_size / num_heads; }
    int padded_dim() const { return round_up(head_dim(), kLanes); }
    int padded_hidden() const { return round_up(hidden_size, kPanelColumns); }
    int padded_inner() const { return round_up(intermediate_size, kPanelColumns); }
    int query_size() const { return num_heads * padded_dim(); }
    int qkv_columns() const { return round_up(3 * query_size(), kPanelColumns); }
};

// Throws std::invalid_argument that names the field at fault.
void check(const EncoderSpec& spec);

}  // namespace weft
