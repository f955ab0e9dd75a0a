// Short convolutions: each channel of a row with the same channel of the rows just before it. The previous rows are
// in the step, or in the states of blocks; `weft.compute.arithmetic.convolution`, the same in numpy, describes how.
// Sums and products have the same bits on every path.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/plan.h"
#include "model/row_buffer.h"
#include "model/spec.h"
#include "model/thread_pool.h"
#include "model/weights.h"

namespace weft {

// Memory for one layer's convolution; kept between steps, and enlarged when a step needs more.
struct ConvSpace {
    void make_room(const ModelSpec& spec, std::size_t sequences, int num_threads);

    Region before;  // [sequences][width - 1][hidden], elements of blocks that the step overwrites
    Region sums;    // float [threads][hidden]
};

class ConvStep {
public:
    struct Parts {
        const ModelSpec& spec;
        const KvShape& kv;
        const Batch& batch;
        const Plan& plan;
        ThreadPool& pool;
        ConvSpace& space;
        int at_once;  // rows per thread and turn
    };

    explicit ConvStep(const Parts& parts) : parts_(parts) {}

    // Computes `out` (C times the convolution of B * x) from rows of B, C and x, side by side in `wide`; updates the
    // layer's `states` [blocks][width - 1][hidden]. Without `needs_rows` only the states are computed.
    void run(const LayerSpec& layer, const LayerWeights& weights, const RowsAt& wide, const RowsAt& out,
             std::byte* states, bool needs_rows);

private:
    // A layer during the step.
    struct Layer {
        const LayerWeights& weights;
        const RowsAt& wide;
        const RowsAt& out;
        std::byte* states;
        int keep;  // number of earlier rows that the convolution reads
    };

    template <class Work>
    void for_rows(const Work& work);
    std::size_t row_bytes() const;
    std::byte* state(const Layer& layer, int sequence, int position) const;
    std::byte* before(const Layer& layer, int sequence, int position) const;
    void multiply(const Layer& layer, int row) const;
    void keep_before(const Layer& layer, int sequence) const;
    void store(const Layer& layer, int row) const;
    void add_up(const Layer& layer, int thread, int row) const;
    void add_tap(const Layer& layer, int row, int back, const float* taps, float* sums) const;

    const Parts parts_;
};

}  // namespace weft
