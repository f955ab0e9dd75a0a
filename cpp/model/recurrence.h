// Layers that keep a state per sequence in a slot, instead of keys and values: the kinds, and the sizes that all
// kinds have. A kind has its own rows in `weft::sizes`, a step (model/recurrent_step.h) and its matrices
// (model/recurrent_weights.cpp).
#pragma once

#include <cstddef>
#include <variant>

#include "kernels/kernels.h"

namespace weft {

// See `weft.model.recurrence.Mamba2Spec`.
struct MambaSpec {
    int num_heads = 0;
    int head_dim = 0;
    int state_dim = 0;
    int num_groups = 1;
    int conv_width = 0;
    float min_step = 0;
    float max_step = 0;

    int inner_size() const { return num_heads * head_dim; }
};

// See `weft.model.recurrence.DeltaSpec`. `is_by_key_head` describes stored matrices: rows of a step always have
// queries of all heads first, then keys, values and gates.
struct DeltaSpec {
    int num_key_heads = 0;
    int num_value_heads = 0;
    int key_size = 0;
    int value_size = 0;
    int conv_width = 0;
    bool is_by_key_head = false;

    int keys_size() const { return num_key_heads * key_size; }
    int inner_size() const { return num_value_heads * value_size; }
    int group() const { return num_value_heads / num_key_heads; }
};

using RecurrentSpec = std::variant<MambaSpec, DeltaSpec>;

constexpr int kMostConvWidth = 64;  // of any short convolution

struct RecurrentSizes {
    int num_heads;      // each of which goes through a sequence by itself
    int made;           // columns of the first product
    int unrounded;      // and of another one, which is never rounded; 0: there is none
    int num_matrices;   // of the checkpoint, that each of these is made of
    int first_channel;  // in what they make: of those that the convolution goes over
    int conv_size;
    int conv_width;
    int first_output;  // in a row of channels: what heads give takes the place of some
    int inner_size;    // of what all heads give
    int num_scales;    // of that: one for each element, or for each of a head
    int num_skips;     // weights of what goes past the state; 0: there are none
    std::ptrdiff_t head_state;  // floats

    int padded_inner() const { return round_up(inner_size, kLanes); }
    int first_unrounded() const { return round_up(made, kPanelColumns); }
    // Number of floats per row: of the results of the products, and of channels in between.
    int row_size() const { return unrounded == 0 ? made : first_unrounded() + round_up(unrounded, kPanelColumns); }
    int channels_size() const {
        const int outputs = first_output + padded_inner();
        return outputs > conv_size ? outputs : conv_size;
    }
    // Number of floats per sequence: rows that the convolution looks back at, then the matrices of heads.
    std::ptrdiff_t kept_channels() const { return static_cast<std::ptrdiff_t>(conv_width - 1) * conv_size; }
    std::ptrdiff_t state_size() const { return kept_channels() + num_heads * head_state; }
};

RecurrentSizes sizes(const RecurrentSpec& spec);

// Throws std::invalid_argument that names the field at fault.
void check(const RecurrentSpec& spec);

}  // namespace weft
