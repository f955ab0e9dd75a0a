#include "model/mamba_rows.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/select.h"
#include "model/mamba_step.h"

namespace weft {
namespace {

std::size_t count(std::ptrdiff_t size) { return static_cast<std::size_t>(size); }

void check_sizes(const MambaSpec& mamba, const LayerWeights& weights, std::span<const float> rows,
                 std::span<float> state, std::span<float> out) {
    const std::size_t heads = count(mamba.num_heads);
    const std::size_t num_rows = rows.size() / count(mamba.in_size());
    const bool fits = num_rows >= 1 && num_rows <= 1 << 20 && rows.size() == num_rows * count(mamba.in_size()) &&
                      out.size() == num_rows * count(mamba.inner_size()) && state.size() == count(mamba.state_size()) &&
                      weights.conv.size() == count(mamba.conv_width) * count(mamba.conv_size()) &&
                      (weights.conv_bias.empty() || weights.conv_bias.size() == count(mamba.conv_size())) &&
                      weights.mamba.step_bias.size() == heads && weights.mamba.a_log.size() == heads &&
                      weights.mamba.skip.size() == heads && weights.mamba.norm.size() == count(mamba.inner_size());
    if (!fits) throw std::invalid_argument("rows, state, out and weights must have the sizes of the layer");
}

}  // namespace

void mamba_rows(const std::string& path, int num_threads, const MambaSpec& mamba, float norm_eps,
                const LayerWeights& weights, std::span<const float> rows, bool is_begun, std::span<float> state,
                std::span<float> out) {
    ModelSpec spec;
    spec.layers.resize(2);
    spec.layers[1].mamba = mamba;
    spec.vocab_size = spec.hidden_size = spec.intermediate_size = spec.num_heads = spec.num_kv_heads = 1;
    spec.head_dim = 2;
    spec.norm_eps = norm_eps;
    check(spec);
    check_sizes(mamba, weights, rows, state, out);
    const int num_rows = static_cast<int>(out.size() / count(mamba.inner_size()));
    Plan plan;
    plan.rows = num_rows;
    plan.sequence_by_row.resize(count(num_rows));
    const std::array<std::int32_t, 2> starts{0, num_rows};
    const std::array<std::int32_t, 1> slots{0};
    std::vector<std::int32_t> positions(count(num_rows));
    std::iota(positions.begin(), positions.end(), is_begun ? 1 : 0);
    Batch batch;
    batch.query_starts = starts;
    batch.positions = positions;
    batch.state_reads = batch.state_writes = slots;
    RowBuffer wide, convolved, given;
    wide.make_room(count(num_rows), mamba.in_size(), sizeof(float));
    convolved.make_room(count(num_rows), spec.most_convolved(), sizeof(float));
    given.make_room(count(num_rows), mamba.padded_inner(), sizeof(float));
    for (int row = 0; row < num_rows; row++)
        std::copy_n(rows.data() + static_cast<std::ptrdiff_t>(row) * mamba.in_size(), mamba.in_size(),
                    wide.rows().floats(row));
    ThreadPool pool(checked_threads(num_threads));
    MambaStep step({spec, kernels_of(path, Element::kFloat32), batch, plan, pool, convolved.rows(), 1});
    step.run(mamba, weights, wide.rows(), given.rows(), state.data(), true);
    for (int row = 0; row < num_rows; row++)
        std::copy_n(given.rows().floats(row), mamba.inner_size(),
                    out.data() + static_cast<std::ptrdiff_t>(row) * mamba.inner_size());
}

}  // namespace weft
