// Mamba-2: the parts of `RecurrentStep` for this kind.
#include "model/recurrent_step.h"

namespace weft {

void RecurrentStep::prepare(const Layer&, const MambaSpec&, int) const {}

void RecurrentStep::scan(const Layer& layer, const MambaSpec& mamba, const Scan& rows) const {
    const RecurrentWeights& weights = layer.weights.recurrent;
    const int group = rows.head / (mamba.num_heads / mamba.num_groups);
    const auto at = static_cast<std::size_t>(rows.head);
    MambaScanTask task{};
    task.matrix = rows.matrix;
    task.state_dim = mamba.state_dim;
    task.head_dim = mamba.head_dim;
    task.num_rows = rows.num_rows;
    task.x = rows.channels + rows.head * mamba.head_dim;
    task.b = rows.channels + mamba.inner_size() + group * mamba.state_dim;
    task.c = task.b + mamba.num_groups * mamba.state_dim;
    task.stride = parts_.convolved.stride;
    task.steps = rows.made + mamba.inner_size() + layer.sizes.conv_size + rows.head;
    task.step_stride = layer.wide.stride;
    task.step_bias = weights.step_bias[at];
    task.a_log = weights.a_log[at];
    task.skip = weights.skip[at];
    task.min_step = mamba.min_step;
    task.max_step = mamba.max_step;
    parts_.kernels.mamba_scan(task);
}

GatedNormTask RecurrentStep::norm(const Layer& layer, const MambaSpec& mamba, int row) const {
    const int size = mamba.inner_size();
    const float* scale = mamba.is_normed ? layer.weights.recurrent.output_scale.data() : nullptr;
    return {parts_.convolved.floats(row), layer.wide.floats(row), scale, size, mamba.num_groups, size / mamba.num_groups,
            mamba.is_gated_first || !mamba.is_normed, parts_.spec.norm_eps};
}

}  // namespace weft
