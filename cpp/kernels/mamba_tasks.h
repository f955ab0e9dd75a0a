// What the kernels of Mamba-2 layers are given: `weft.model.recurrence.Mamba2Spec` says what such a layer computes.
#pragma once

#include <cstddef>

namespace weft {

// One row of x, B and C, each channel with the same one of the rows before it, and SiLU.
struct MambaConvTask {
    const float* const* rows;  // `width` of them, the oldest first
    const float* weights;      // [width][channels]
    const float* bias;         // [channels], or null
    int width;
    int channels;
    float* out;
};

// Rows of a sequence through the matrix of one head. What they give takes the place of x.
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

// What all heads give in a row, gated and normed by group, in place.
struct MambaNormTask {
    float* row;
    const float* gate;
    const float* weight;
    int size;
    int num_groups;
    float eps;
};

}  // namespace weft
