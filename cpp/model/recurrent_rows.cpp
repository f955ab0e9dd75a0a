#include "model/recurrent_rows.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/select.h"
#include "model/recurrent_step.h"

namespace weft {
namespace {

std::size_t count(std::ptrdiff_t size) { return static_cast<std::size_t>(size); }

void check_sizes(const RecurrentSizes& sizes, const LayerWeights& weights, std::span<const float> rows,
                 std::span<float> state, std::span<float> out) {
    const RecurrentWeights& vectors = weights.recurrent;
    const std::size_t width = count(sizes.made + sizes.unrounded);
    const std::size_t num_rows = rows.size() / width;
    const bool fits = num_rows >= 1 && num_rows <= 1 << 20 && rows.size() == num_rows * width &&
                      out.size() == num_rows * count(sizes.inner_size) && state.size() == count(sizes.state_size()) &&
                      weights.conv.size() == count(sizes.conv_width) * count(sizes.conv_size) &&
                      (weights.conv_bias.empty() || weights.conv_bias.size() == count(sizes.conv_size)) &&
                      vectors.step_bias.size() == count(sizes.num_steps) &&
                      vectors.a_log.size() == count(sizes.num_decays) && vectors.skip.size() == count(sizes.num_skips) &&
                      vectors.output_scale.size() == count(sizes.num_scales) &&
                      vectors.step_in.size() == count(sizes.num_step_in) &&
                      vectors.step_out.size() == count(sizes.num_step_out);
    if (!fits) throw std::invalid_argument("rows, state, out and weights must have the sizes of the layer");
}

}  // namespace

void recurrent_rows(const std::string& path, int num_threads, const RecurrentSpec& recurrence, float norm_eps,
                    const LayerWeights& weights, std::span<const float> rows, bool is_begun, std::span<float> state,
                    std::span<float> out) {
    check(recurrence);
    const RecurrentSizes of = sizes(recurrence);
    check_sizes(of, weights, rows, state, out);
    ModelSpec spec;
    spec.norm_eps = norm_eps;
    const int num_rows = static_cast<int>(out.size() / count(of.inner_size));
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
    wide.make_room(count(num_rows), of.row_size(), sizeof(float));
    convolved.make_room(count(num_rows), of.channels_size(), sizeof(float));
    given.make_room(count(num_rows), of.padded_inner(), sizeof(float));
    const float* from = rows.data();
    for (int row = 0; row < num_rows; row++, from += of.made + of.unrounded) {
        std::copy_n(from, of.made, wide.rows().floats(row));
        std::copy_n(from + of.made, of.unrounded, wide.rows().floats(row) + of.first_unrounded());
    }
    ThreadPool pool(checked_threads(num_threads));
    RecurrentStep step({spec, kernels_of(path, Element::kFloat32), batch, plan, pool, convolved.rows(), 1});
    step.run(recurrence, weights, wide.rows(), given.rows(), state.data(), true);
    for (int row = 0; row < num_rows; row++)
        std::copy_n(given.rows().floats(row), of.inner_size,
                    out.data() + static_cast<std::ptrdiff_t>(row) * of.inner_size);
}

}  // namespace weft
