#include "model/int8_product.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "int8/select.h"
#include "model/region.h"

namespace weft {
namespace {

Matrix packed(const Source& weights, const Region& region, int depth) {
    Matrix matrix;
    matrix.panels = region.data();
    matrix.depth = depth;
    matrix.columns = round_up(static_cast<int>(weights.rows), kPanelColumns);
    matrix.scales.assign(static_cast<std::size_t>(matrix.columns), 0.0F);
    for (int row = 0; row < weights.rows; row++) {
        const Int8Rounding rounding = int8_rounding(largest_of(weights, row));
        matrix.scales[static_cast<std::size_t>(row)] = rounding.scale;
        pack_int8_run(weights, row, 0, static_cast<int>(weights.columns), matrix, rounding.inverse, row, 0);
    }
    return matrix;
}

}  // namespace

void multiply_int8(const std::string& path, std::span<const float> rows, const Source& weights,
                   std::span<float> out) {
    constexpr std::int64_t kMost = 1 << 20;
    if (weights.columns < 1 || weights.columns > kInt8MostDepth || weights.rows < 1 || weights.rows > kMost)
        throw std::invalid_argument("weights must have from 1 to 2^20 rows and to 2^17 columns");
    const std::size_t columns = static_cast<std::size_t>(weights.columns);
    const std::size_t count = rows.size() / columns;
    if (count < 1 || count > kMost || rows.size() != count * columns)
        throw std::invalid_argument("rows must be as wide as weights");
    if (out.size() != count * static_cast<std::size_t>(weights.rows))
        throw std::invalid_argument("out must have a row for each of rows, as wide as weights has rows");
    const Int8Kernels& kernels = int8_kernels_of(path);
    const int depth = round_up(static_cast<int>(weights.columns), kLanes);
    const Region region(static_cast<std::size_t>(depth) *
                        static_cast<std::size_t>(round_up(static_cast<int>(weights.rows), kPanelColumns)));
    const Matrix matrix = packed(weights, region, depth);
    const auto deep = static_cast<std::size_t>(depth);
    std::vector<std::int8_t> rounded(count * deep);
    std::vector<float> scales(count);
    std::vector<std::int32_t> sums(count);
    std::vector<float> padded(deep);
    for (std::size_t row = 0; row < count; row++) {
        std::copy_n(rows.data() + row * columns, columns, padded.data());
        kernels.quantize(
            {padded.data(), false, depth, &rounded[row * deep], &scales[row], &sums[row]});
    }
    Int8Task task{};
    task.x = rounded.data();
    task.x_stride = depth;
    task.last_row = static_cast<int>(count);
    task.panels = matrix.panels;
    task.depth = depth;
    task.last_panel = matrix.num_panels();
    task.finish = Finish::kLogits;  // leaves out the columns that pad
    task.out = out.data();
    task.out_stride = static_cast<std::ptrdiff_t>(weights.rows);
    task.columns = static_cast<int>(weights.rows);
    task.divisor = 1.0F;
    task.row_scales = scales.data();
    task.row_sums = sums.data();
    task.column_scales = matrix.scales.data();
    kernels.gemm(task);
}

}  // namespace weft
