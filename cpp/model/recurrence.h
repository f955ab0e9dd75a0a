// Layers that keep a state per sequence in a slot, instead of keys and values: the kinds, and the sizes that all
// kinds have. A kind has its own rows in `weft::sizes`, a step (model/recurrent_step.h) and its matrices
// (model/recurrent_weights.cpp).
#pragma once

#include <cstddef>
#include <numeric>
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
    bool is_normed = true;  // False: outputs are only multiplied by the gate
    bool is_gated_first = true;  // False: outputs are normed before they are multiplied by the gate

    int inner_size() const { return num_heads * head_dim; }
};

// See `weft.model.recurrence.Mamba1Spec`.
struct Mamba1Spec {
    int inner_size = 0;
    int state_dim = 0;
    int step_rank = 0;
    int conv_width = 0;
    bool has_norms = false;
    float step_eps = 0;

    // Channels of a block, which counts as a head.
    int head_dim() const { return std::gcd(inner_size, 32); }
    int num_heads() const { return inner_size / head_dim(); }
    // Numbers that are made of a convolved row: for time steps, B and C.
    int made_size() const { return step_rank + 2 * state_dim; }
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

using RecurrentSpec = std::variant<MambaSpec, DeltaSpec, Mamba1Spec>;

constexpr int kMostConvWidth = 64;  // limit for every short convolution

struct RecurrentSizes {
    int num_heads;  // each head goes through a sequence independently
    int made;           // columns of the first product
    int unrounded;  // columns of a second product, which is never quantized; 0: there is none
    int num_matrices;  // matrices of the checkpoint that form each of these products
    int first_channel;  // first column of the result that the convolution reads
    int conv_size;
    int conv_width;
    // First column of the heads' outputs in a row of channels; they replace some of its values.
    int first_output;
    int inner_size;  // size of the outputs of all heads
    // Weights that scale the outputs: one for each element, one for each element of a head, or none.
    int num_scales;
    int num_skips;  // weights that bypass the state; 0: none
    int num_decays;  // logarithms of decays
    int num_steps;  // time steps, each with a bias
    // Weights of the matrices that make time steps, B and C of a convolved row, and time steps of low rank; 0: none.
    std::ptrdiff_t num_step_in;
    std::ptrdiff_t num_step_out;
    bool has_rates;  // each float of a head's state has a decay of its own
    int num_between;  // floats of a row between the convolution and the heads, behind the channels
    std::ptrdiff_t head_state;  // floats of state per head

    int padded_inner() const { return round_up(inner_size, kLanes); }
    int first_unrounded() const { return round_up(made, kPanelColumns); }
    // Number of floats per row: of the results of the products, and of channels in between.
    int row_size() const { return unrounded == 0 ? made : first_unrounded() + round_up(unrounded, kPanelColumns); }
    int channels_size() const {
        const int outputs = first_output + padded_inner();
        const int channels = conv_size + num_between;
        return outputs > channels ? outputs : channels;
    }
    // Number of floats per sequence: rows that the convolution looks back at, then the matrices of heads.
    std::ptrdiff_t kept_channels() const { return static_cast<std::ptrdiff_t>(conv_width - 1) * conv_size; }
    std::ptrdiff_t state_size() const { return kept_channels() + num_heads * head_state; }
};

RecurrentSizes sizes(const RecurrentSpec& spec);

// Throws std::invalid_argument that names the field at fault.
void check(const RecurrentSpec& spec);

}  // namespace weft
