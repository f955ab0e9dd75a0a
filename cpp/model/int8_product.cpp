#include "model/int8_product.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "int8/select.h"
#include "model/groups.h"
#include "model/region.h"
#include "model/rounded_rows.h"

namespace weft {
namespace {

constexpr std::int64_t kMost = 1 << 20;

void check_sizes(std::span<const float> rows, const Source& weights, std::span<float> out) {
    if (weights.columns < 1 || weights.columns > kInt8MostDepth || weights.rows < 1 || weights.rows > kMost)
        throw std::invalid_argument("weights must have from 1 to 2^20 rows and to 2^17 columns");
    const std::size_t columns = static_cast<std::size_t>(weights.columns);
    const std::size_t count = rows.size() / columns;
    if (count < 1 || count > kMost || rows.size() != count * columns)
        throw std::invalid_argument("rows must be as wide as weights");
    if (out.size() != count * static_cast<std::size_t>(weights.rows))
        throw std::invalid_argument("out must have a row for each of rows, as wide as weights has rows");
}

Matrix matrix_of(const Source& weights) {
    Matrix matrix;
    matrix.depth = round_up(static_cast<int>(weights.columns), kLanes);
    matrix.columns = round_up(static_cast<int>(weights.rows), kPanelColumns);
    return matrix;
}

void pack(const Source& weights, Matrix& matrix) {
    matrix.scales.assign(static_cast<std::size_t>(matrix.columns), 0.0F);
    for (int row = 0; row < weights.rows; row++) {
        const Int8Rounding rounding = int8_rounding(largest_of(weights, row));
        matrix.scales[static_cast<std::size_t>(row)] = rounding.scale;
        pack_int8_run(weights, row, 0, static_cast<int>(weights.columns), matrix, rounding.inverse, row, 0);
    }
}

RoundedRows round_rows(const Int8Kernels& kernels, std::span<const float> rows, std::size_t columns,
                       const Matrix& matrix) {
    const std::size_t count = rows.size() / columns;
    RoundedRows rounded;
    rounded.make_room(count, matrix.depth, matrix.num_groups());
    std::vector<float> padded(static_cast<std::size_t>(matrix.depth));
    const RowsAt same{reinterpret_cast<std::byte*>(padded.data()), 0, sizeof(float)};
    for (std::size_t row = 0; row < count; row++) {
        std::copy_n(rows.data() + row * columns, columns, padded.data());
        rounded.round(kernels, matrix, same, static_cast<int>(row));
    }
    return rounded;
}

GemmTask task_of(const Matrix& matrix, const Source& weights, std::span<float> out) {
    GemmTask task{};
    task.last_row = static_cast<int>(out.size() / static_cast<std::size_t>(weights.rows));
    task.panels = matrix.panels;
    task.depth = matrix.depth;
    task.last_panel = matrix.num_panels();
    task.finish = Finish::kLogits;  // padding columns are left out
    task.out = out.data();
    task.out_stride = static_cast<std::ptrdiff_t>(weights.rows);
    task.columns = static_cast<int>(weights.rows);
    task.divisor = 1.0F;
    return task;
}

}  // namespace

void multiply_int8(const std::string& path, std::span<const float> rows, const Source& weights,
                   std::span<float> out) {
    check_sizes(rows, weights, out);
    const Int8Kernels& kernels = int8_kernels_of(path);
    Matrix matrix = matrix_of(weights);
    const Region region(static_cast<std::size_t>(matrix.depth) * static_cast<std::size_t>(matrix.columns));
    matrix.panels = region.data();
    pack(weights, matrix);
    const RoundedRows rounded = round_rows(kernels, rows, static_cast<std::size_t>(weights.columns), matrix);
    kernels.gemm(rounded.int8_task(matrix, task_of(matrix, weights, out), 0));
}

void multiply_grouped(const std::string& path, const GroupFormat& format, std::span<const float> rows,
                      const Source& weights, std::span<float> out) {
    check_sizes(rows, weights, out);
    check_format(format, "format");
    check_groups("weights", format, weights);
    const Int8Kernels& kernels = int8_kernels_of(path);
    Matrix matrix = matrix_of(weights);
    matrix.groups = format;
    const Region region(static_cast<std::size_t>(matrix.num_panels() * panel_bytes(format, matrix.depth)));
    matrix.panels = region.data();
    std::vector<int> columns(static_cast<std::size_t>(weights.rows));
    std::iota(columns.begin(), columns.end(), 0);
    pack_groups(weights, 0, columns, matrix);
    const RoundedRows rounded = round_rows(kernels, rows, static_cast<std::size_t>(weights.columns), matrix);
    kernels.grouped_gemm(rounded.grouped_task(matrix, task_of(matrix, weights, out), 0));
}

}  // namespace weft
