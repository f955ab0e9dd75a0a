// What the kernels of recurrences are given: `weft.model.recurrence` says what each kind of layer computes.
#pragma once

#include <cstddef>

namespace weft {

// One row of channels, each with the same one of the rows before it, and SiLU.
struct ChannelsTask {
    const float* const* rows;  // `width` of them, the oldest first
    const float* weights;      // [width][channels]
    const float* bias;         // [channels], or null
    int width;
    int channels;
    float* out;
};

// What all heads give in a row, normed by group and gated, in place: the one or the other first.
struct GatedNormTask {
    float* row;
    const float* gate;
    const float* weight;
    int size;
    int num_groups;
    std::ptrdiff_t weight_stride;  // floats from a group's weights to the next one's; 0: all have the same
    bool is_gated_first;
    float eps;
};

// Mamba-2: rows of a sequence through the matrix of one head. What they give takes the place of x.
struct MambaScanTask {
    float* matrix;  // [state_dim][head_dim]
    int state_dim;
    int head_dim;
    int num_rows;
    float* x;
    const float* b;
    const float* c;
    std::ptrdiff_t stride;  // floats from a row's x, B and C to the next one's
    const float* steps;
    std::ptrdiff_t step_stride;
    float step_bias;
    float a_log;
    float skip;
    float min_step;
    float max_step;
};

// Gated delta nets: of one row queries and keys to length 1, and in place of b and a how much each head is mended and
// what it keeps.
struct DeltaRowTask {
    float* queries;  // [num_key_heads][key_size], and keys likewise behind them
    int num_key_heads;
    int key_size;
    float* b;  // [num_value_heads]
    float* a;
    const float* step_bias;
    const float* a_log;
    int num_value_heads;
};

// Rows of a sequence through the matrix of one value head. What they give takes the place of values.
struct DeltaScanTask {
    float* matrix;  // [key_size][value_size]
    int key_size;
    int value_size;
    int num_rows;
    const float* query;
    const float* key;
    float* value;
    std::ptrdiff_t stride;  // floats from a row's query, key and value to the next one's
    const float* betas;
    const float* decays;
    std::ptrdiff_t step_stride;
};

}  // namespace weft
