// Gated delta nets: the parts of `RecurrentStep` for this kind.
#include "model/recurrent_step.h"

namespace weft {

void RecurrentStep::prepare(const Layer& layer, const DeltaSpec& delta, int row) const {
    const RecurrentWeights& weights = layer.weights.recurrent;
    float* b = layer.wide.floats(row) + layer.sizes.first_unrounded();
    parts_.kernels.delta_row({parts_.convolved.floats(row), delta.num_key_heads, delta.key_size, b,
                              b + delta.num_value_heads, weights.step_bias.data(), weights.a_log.data(),
                              delta.num_value_heads});
}

void RecurrentStep::scan(const Layer& layer, const DeltaSpec& delta, const Scan& rows) const {
    DeltaScanTask task{};
    task.matrix = rows.matrix;
    task.key_size = delta.key_size;
    task.value_size = delta.value_size;
    task.num_rows = rows.num_rows;
    task.query = rows.channels + rows.head / delta.group() * delta.key_size;
    task.key = task.query + delta.keys_size();
    task.value = rows.channels + layer.sizes.first_output + rows.head * delta.value_size;
    task.stride = parts_.convolved.stride;
    task.betas = rows.made + layer.sizes.first_unrounded() + rows.head;
    task.decays = task.betas + delta.num_value_heads;
    task.step_stride = layer.wide.stride;
    parts_.kernels.delta_scan(task);
}

GatedNormTask RecurrentStep::norm(const Layer& layer, const DeltaSpec& delta, int row) const {
    return {parts_.convolved.floats(row) + layer.sizes.first_output,
            layer.wide.floats(row) + layer.sizes.conv_size,
            layer.weights.recurrent.output_scale.data(),
            delta.inner_size(),
            delta.num_value_heads,
            0,
            false,
            parts_.spec.norm_eps};
}

}  // namespace weft
