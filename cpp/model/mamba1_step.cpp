// The first Mamba: the parts of `RecurrentStep` for this kind.
#include "model/recurrent_step.h"

namespace weft {

void RecurrentStep::prepare(const Layer& layer, const Mamba1Spec& mamba, int row) const {
    const RecurrentWeights& weights = layer.weights.recurrent;
    float* x = parts_.convolved.floats(row);
    float* steps = x + mamba.inner_size;
    parts_.kernels.mamba1_row({x, mamba.inner_size, mamba.state_dim, mamba.step_rank, weights.step_in.data(),
                               weights.step_out.data(), weights.step_bias.data(), mamba.has_norms, mamba.step_eps, steps,
                               steps + mamba.inner_size});
}

void RecurrentStep::scan(const Layer& layer, const Mamba1Spec& mamba, const Scan& rows) const {
    const RecurrentWeights& weights = layer.weights.recurrent;
    const int first = rows.head * mamba.head_dim();
    Mamba1ScanTask task{};
    task.matrix = rows.matrix;
    task.state_dim = mamba.state_dim;
    task.head_dim = mamba.head_dim();
    task.num_rows = rows.num_rows;
    task.x = rows.channels + first;
    task.steps = rows.channels + mamba.inner_size + first;
    task.b = rows.channels + 2 * mamba.inner_size + mamba.step_rank;
    task.c = task.b + mamba.state_dim;
    task.stride = parts_.convolved.stride;
    task.rates = rows.rates;
    task.a_log = weights.a_log.data() + static_cast<std::ptrdiff_t>(first) * mamba.state_dim;
    task.skip = weights.skip.data() + first;
    parts_.kernels.mamba1_scan(task);
}

GatedNormTask RecurrentStep::norm(const Layer& layer, const Mamba1Spec& mamba, int row) const {
    const int size = mamba.inner_size;
    return {parts_.convolved.floats(row), layer.wide.floats(row) + size, nullptr, size, 1, size, true,
            parts_.spec.norm_eps};
}

}  // namespace weft
