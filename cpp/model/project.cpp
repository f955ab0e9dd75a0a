// Projections: rows of a width of their own, normed and multiplied outside of the layers.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "model/model.h"
#include "model/share_product.h"

namespace weft {
namespace {

// One row as activations, each `norm_size` elements normed by themselves; `floats` and `normed` are memory for one
// group.
struct Entering {
    const Kernels& kernels;
    const ProjectionSpec& spec;
    const NormVectors norm;
    std::vector<float> floats;
    std::vector<std::byte> normed;

    Entering(const Kernels& k, const ProjectionSpec& s, const NormWeights& weights)
        : kernels(k),
          spec(s),
          norm(weights.vectors()),
          floats(static_cast<std::size_t>(round_up(group(), kPanelColumns))),
          normed(floats.size() * static_cast<std::size_t>(k.activation_bytes)) {}

    int group() const { return spec.norm_size == 0 ? spec.input : spec.norm_size; }

    void enter(const float* x, std::byte* out) {
        const int padded = round_up(group(), kLanes);
        const auto bytes = static_cast<std::size_t>(group() * kernels.activation_bytes);
        const auto residual = spec.norm == Norm::kRms ? kernels.rms_residual : kernels.layer_residual;
        for (int begin = 0; begin < spec.input; begin += group()) {
            std::copy_n(x + begin, group(), floats.data());
            residual({floats.data(), nullptr, {}, {}, norm, normed.data(), group(), padded, 1.0F, spec.norm_eps});
            std::memcpy(out + static_cast<std::ptrdiff_t>(begin) * kernels.activation_bytes, normed.data(), bytes);
        }
        const int all = round_up(spec.input, kPanelColumns) - spec.input;
        std::memset(out + static_cast<std::ptrdiff_t>(spec.input) * kernels.activation_bytes, 0,
                    static_cast<std::size_t>(all * kernels.activation_bytes));
    }
};

}  // namespace

void Model::project(const std::string& name, std::span<const float> x, std::span<float> out) {
    const std::lock_guard lock(mutex_);
    check_loaded();
    const auto found = std::find_if(spec_.projections.begin(), spec_.projections.end(),
                                    [&](const ProjectionSpec& one) { return one.name == name; });
    if (found == spec_.projections.end()) throw std::invalid_argument("name must be that of a projection");
    const ProjectionSpec& spec = *found;
    const std::size_t rows = x.size() / static_cast<std::size_t>(spec.input);
    if (rows == 0 || rows > 1 << 20 || x.size() != rows * static_cast<std::size_t>(spec.input) ||
        out.size() != rows * static_cast<std::size_t>(spec.output))
        throw std::invalid_argument("x and out must have as many rows, of the projection's widths");
    const ProjectionWeights& weights =
        weights_.projections[static_cast<std::size_t>(found - spec_.projections.begin())];
    const int count = static_cast<int>(rows);
    const int act = kernels_.activation_bytes;
    space_.normed.make_room(rows, round_up(spec.input, kPanelColumns), act);
    space_.inner.make_room(rows, spec.depth(), act);
    space_.wide.make_room(rows, round_up(spec.output, kPanelColumns), sizeof(float));
    const int at_once = rows_at_once(pool_, count, kernels_.pieces);
    pool_.share(count, at_once, [&](int, int begin, int end) {
        Entering entering(kernels_, spec, weights.norm);
        for (int row = begin; row < end; row++)
            entering.enter(x.data() + static_cast<std::ptrdiff_t>(row) * spec.input, space_.normed.rows().row(row));
    });
    const auto multiply = [&](const Matrix& matrix, const RowsAt& from, Finish finish, const RowsAt& to) {
        GemmTask task = gemm_task(matrix, from, count, finish, to);
        task.activation = spec.activation;
        share_slabs(pool_, matrix, task, matrix.depth * act, [&](int, const GemmTask& part) { kernels_.gemm(part); });
    };
    const bool has_inner = spec.inner > 0;
    if (has_inner) multiply(weights.up, space_.normed.rows(), Finish::kActivateAll, space_.inner.rows());
    multiply(weights.down, has_inner ? space_.inner.rows() : space_.normed.rows(), Finish::kStore, space_.wide.rows());
    pool_.share(count, at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++)
            std::copy_n(space_.wide.rows().floats(row), spec.output,
                        out.data() + static_cast<std::ptrdiff_t>(row) * spec.output);
    });
}

}  // namespace weft
