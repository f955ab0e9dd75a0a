// Layers with a recurrence over the rows of a step: rows are convolved, all at once; then each head goes through the
// rows of each sequence, in place in its slot; then rows are gated and normed. `weft.compute.arithmetic.mamba` and
// `delta` give the same bits in numpy. mamba_step.cpp, mamba1_step.cpp and delta_step.cpp have the parts that differ between kinds.
#pragma once

#include <vector>

#include "kernels/kernels.h"
#include "model/plan.h"
#include "model/row_buffer.h"
#include "model/spec.h"
#include "model/thread_pool.h"
#include "model/weights.h"

namespace weft {

class RecurrentStep {
public:
    struct Parts {
        const ModelSpec& spec;
        const Kernels& kernels;
        const Batch& batch;
        const Plan& plan;
        ThreadPool& pool;
        const RowsAt& convolved;  // float [rows][channels_size of the widest layer]
        int at_once;  // rows per thread and turn
    };

    explicit RecurrentStep(const Parts& parts) : parts_(parts) {}

    // Computes the input of the next product, in `out`, from the results of the first products, side by side in
    // `wide`, which is overwritten. Updates the states of the layer [slots][state_size]. Without `needs_rows` only
    // the states are computed.
    void run(const RecurrentSpec& spec, const LayerWeights& weights, const RowsAt& wide, const RowsAt& out, float* slots,
             bool needs_rows);

private:
    // A layer during the step.
    struct Layer {
        const RecurrentSpec& spec;
        const RecurrentSizes sizes;
        const LayerWeights& weights;
        const RowsAt& wide;
        const RowsAt& out;
        float* slots;
    };
    // Rows of a sequence in one head.
    struct Scan {
        float* matrix;
        int head;
        int num_rows;
        float* channels;  // channels of the first row
        const float* made;  // products of the first row
        float* rates;  // room for the rates of decay of the head's state, if it has them
    };

    template <class Work>
    void for_rows(const Work& work);
    float* state(const Layer& layer, int sequence) const;
    void go_on(const Layer& layer, int sequence) const;
    void convolve(const Layer& layer, int row) const;
    void scan(const Layer& layer, int sequence, int head, int thread);
    void keep_last(const Layer& layer, int sequence) const;
    void finish(const Layer& layer, int row) const;
    // The channels of the row at `place`, counted from the first row that a sequence continues from.
    const float* channels(const Layer& layer, int sequence, int place) const;
    int first_row(int sequence) const { return parts_.batch.query_starts[static_cast<std::size_t>(sequence)]; }

    // Per kind: the preparation of a convolved row before heads read it, the scan of a head, and the norm of the
    // outputs of all heads.
    void prepare(const Layer& layer, const MambaSpec& mamba, int row) const;
    void prepare(const Layer& layer, const DeltaSpec& delta, int row) const;
    void prepare(const Layer& layer, const Mamba1Spec& mamba, int row) const;
    void scan(const Layer& layer, const MambaSpec& mamba, const Scan& rows) const;
    void scan(const Layer& layer, const DeltaSpec& delta, const Scan& rows) const;
    void scan(const Layer& layer, const Mamba1Spec& mamba, const Scan& rows) const;
    GatedNormTask norm(const Layer& layer, const MambaSpec& mamba, int row) const;
    GatedNormTask norm(const Layer& layer, const DeltaSpec& delta, int row) const;
    GatedNormTask norm(const Layer& layer, const Mamba1Spec& mamba, int row) const;

    const Parts parts_;
    std::vector<float> drafted_;  // by thread: the matrix of a head after drafts
    std::vector<float> rates_;  // by thread: see `Scan`
};

}  // namespace weft
