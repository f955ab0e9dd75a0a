// Rows of activations as int8, for int8 and grouped matrices.
#pragma once

#include "int8/int8.h"
#include "model/pack.h"
#include "model/region.h"
#include "model/row_buffer.h"

namespace weft {

// Kept between steps, and enlarged when a step needs more.
class RoundedRows {
public:
    // Makes room for `rows` of up to `depth` elements and `groups` groups; the contents are lost. Values of
    // successive groups are an odd number of cache lines apart, like rows, but close together if there are few rows.
    void make_room(std::size_t rows, int depth, int groups) {
        numbers_.make_room(rows, depth, 1);
        constexpr std::size_t kLine = 64 / sizeof(float);
        const std::size_t stride = rows < kLine ? rows : ((rows + kLine - 1) / kLine | 1) * kLine;
        const std::size_t count = stride * static_cast<std::size_t>(groups);
        grow(region_, 3 * count * sizeof(float));
        auto* scales = reinterpret_cast<float*>(region_.data());
        groups_ = {scales, reinterpret_cast<std::int32_t*>(scales + count), scales + 2 * count,
                   static_cast<std::ptrdiff_t>(stride)};
    }

    // Quantizes row `row` of `x`, in the groups of a matrix.
    void round(const Int8Kernels& kernels, const Matrix& matrix, const RowsAt& x, int row) const {
        kernels.quantize({x.row(row), x.element_bytes == 2, matrix.depth, matrix.group_depth(),
                          reinterpret_cast<std::int8_t*>(numbers_.rows().row(row)), groups_.from(row)});
    }

    // The task of a product of rows from `row` on with a matrix of int8, or with one in groups; other fields are
    // those of `task`.
    Int8Task int8_task(const Matrix& matrix, const GemmTask& task, int row) const {
        const RowGroups groups = groups_.from(row);
        return {of_numbers(task, row), groups.scales, groups.sums, matrix.scales.data()};
    }
    GroupedTask grouped_task(const Matrix& matrix, const GemmTask& task, int row) const {
        return {of_numbers(task, row), *matrix.groups, groups_.from(row)};
    }

private:
    GemmTask of_numbers(GemmTask task, int row) const {
        task.x = numbers_.rows().row(row);
        task.x_stride = numbers_.rows().stride;
        return task;
    }

    RowBuffer numbers_;
    Region region_;  // memory of `groups_`
    RowGroups groups_{};
};

}  // namespace weft
