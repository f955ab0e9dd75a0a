// Mamba-2 layers over the rows of a step: the convolution row by row, then each head's rows one after the other, then
// gates and norms row by row. `weft.compute.mamba` is the twin in numpy, with the same bits.
#pragma once

#include <vector>

#include "kernels/kernels.h"
#include "model/plan.h"
#include "model/row_buffer.h"
#include "model/spec.h"
#include "model/thread_pool.h"
#include "model/weights.h"

namespace weft {

class MambaStep {
public:
    struct Parts {
        const ModelSpec& spec;
        const Kernels& kernels;
        const Batch& batch;
        const Plan& plan;
        ThreadPool& pool;
        const RowsAt& convolved;  // float [rows][conv_size of the widest layer]
        int at_once;              // rows that a thread takes
    };

    explicit MambaStep(const Parts& parts) : parts_(parts) {}

    // From rows of gate, x, B, C and time steps, side by side in `wide`, to what the norm gives, in `out`. The states
    // of the layer [slots][state_size] go on. Without `needs_rows` only they do.
    void run(const MambaSpec& mamba, const LayerWeights& weights, const RowsAt& wide, const RowsAt& out,
             float* slots, bool needs_rows);

private:
    // A layer on its way through the step.
    struct Layer {
        const MambaSpec& spec;
        const LayerWeights& weights;
        const RowsAt& wide;
        const RowsAt& out;
        float* slots;
    };

    template <class Work>
    void for_rows(const Work& work);
    float* state(const Layer& layer, int sequence) const;
    void go_on(const Layer& layer, int sequence) const;
    void convolve(const Layer& layer, int row) const;
    void scan(const Layer& layer, int sequence, int head, int thread);
    void keep_last(const Layer& layer, int sequence) const;
    void finish(const Layer& layer, int row) const;
    // That which lies so many rows behind the first of those that a sequence goes on from.
    const float* channels(const Layer& layer, int sequence, int place) const;
    int first_row(int sequence) const { return parts_.batch.query_starts[static_cast<std::size_t>(sequence)]; }

    const Parts parts_;
    std::vector<float> drafted_;  // by thread, the matrix of a head behind drafts
};

}  // namespace weft
