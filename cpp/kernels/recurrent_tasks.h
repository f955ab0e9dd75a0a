// Tasks of the kernels of recurrences; `weft.model.recurrence` describes what each kind of layer computes.
#pragma once

#include <cstddef>

namespace weft {

// A short convolution of one row, each channel with the same channel of the previous rows, and SiLU.
struct ChannelsTask {
    const float* const* rows;  // `width` rows, oldest first
    const float* weights;      // [width][channels]
    const float* bias;         // [channels], or null
    int width;
    int channels;
    float* out;
};

// Norms the outputs of all heads in a row by group, and gates them, in place, in either order.
struct GatedNormTask {
    float* row;
    const float* gate;
    const float* weight;  // null: there is no norm, and the gate counts as first
    int size;
    int num_groups;
    // Floats between the weights of successive groups; 0: all groups share them.
    std::ptrdiff_t weight_stride;
    bool is_gated_first;
    float eps;
};

// Mamba-2: runs rows of a sequence through the matrix of one head. The outputs replace x.
struct MambaScanTask {
    float* matrix;  // [state_dim][head_dim]
    int state_dim;
    int head_dim;
    int num_rows;
    float* x;
    const float* b;
    const float* c;
    std::ptrdiff_t stride;  // floats between x, B and C of successive rows
    const float* steps;
    std::ptrdiff_t step_stride;
    float step_bias;
    float a_log;
    float skip;
    float min_step;
    float max_step;
};

// The first Mamba: makes B and C of a convolved row, and a time step of each channel.
struct Mamba1RowTask {
    const float* x;  // [inner_size]
    int inner_size;
    int state_dim;
    int step_rank;
    const float* step_in;  // [made_size][inner_size]
    const float* step_out;  // [inner_size][step_rank]
    const float* step_bias;  // [inner_size]
    bool has_norms;
    float eps;
    float* steps;  // [inner_size]
    float* made;  // [step_rank], then B and C [state_dim]
};

// Runs rows of a sequence through the vectors of a block of at most `kScanColumns` channels. The outputs replace x.
struct Mamba1ScanTask {
    float* matrix;  // [state_dim][head_dim]
    int state_dim;
    int head_dim;
    int num_rows;
    float* x;
    const float* steps;
    const float* b;
    const float* c;
    std::ptrdiff_t stride;  // floats between x, time steps, B and C of successive rows
    const float* a_log;  // [head_dim][state_dim]
    float* rates;  // room for [state_dim][head_dim]
    const float* skip;  // [head_dim]
};

// Gated delta nets: norms queries and keys of one row to length 1, and replaces b and a by each head's update rate
// and decay.
struct DeltaRowTask {
    float* queries;  // [num_key_heads][key_size]; keys follow in the same layout
    int num_key_heads;
    int key_size;
    float* b;  // [num_value_heads]
    float* a;
    const float* step_bias;
    const float* a_log;
    int num_value_heads;
};

// Runs rows of a sequence through the matrix of one value head. The outputs replace the values.
struct DeltaScanTask {
    float* matrix;  // [key_size][value_size]
    int key_size;
    int value_size;
    int num_rows;
    const float* query;
    const float* key;
    float* value;
    std::ptrdiff_t stride;  // floats between query, key and value of successive rows
    const float* betas;
    const float* decays;
    std::ptrdiff_t step_stride;
};

}  // namespace weft
