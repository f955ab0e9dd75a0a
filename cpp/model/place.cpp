#include "model/place.h"

#include <algorithm>
#include <atomic>

#include "int8/int8.h"
#include "model/for_rows.h"
#include "model/groups.h"

namespace weft {
namespace {

constexpr int kPackDepth = 256;  // depth packed at once: 32 columns of it stay in the first cache

// Packs numbers in groups unchanged; quantizes floats first.
bool pack_grouped_rows(const Place& place, const Source& source, int first_row, int last_row) {
    const bool is_rounded = source.stored != Stored::kGrouped;
    Source rows = source;
    std::vector<std::uint8_t> numbers;
    std::vector<std::uint16_t> scales;
    std::vector<std::uint16_t> minimums;
    if (is_rounded) {
        const auto count = static_cast<std::size_t>(last_row - first_row);
        rows.groups = num_groups(kRoundedFormat, static_cast<int>(source.columns));
        numbers.resize(count * static_cast<std::size_t>(source.columns));
        scales.resize(count * static_cast<std::size_t>(rows.groups));
        minimums.resize(scales.size());
        round_to_groups(source, first_row, last_row, {numbers.data(), scales.data(), minimums.data()});
        rows.data = numbers.data();
        rows.scales = scales.data();
        rows.offsets = minimums.data();
        rows.scale_size = rows.offset_size = sizeof(std::uint16_t);
    }
    std::vector<int> columns;
    for (int row = first_row; row < last_row; row++) columns.push_back(column_of(place, row));
    return pack_groups(rows, is_rounded ? 0 : first_row, columns, *place.matrix);
}

bool pack_rows(const Place& place, const Source& source, Element element, int first_row, int last_row) {
    bool is_finite = true;
    Matrix& matrix = *place.matrix;
    if (matrix.groups) return pack_grouped_rows(place, source, first_row, last_row);
    float inverses[kPanelColumns] = {};
    if (matrix.is_int8())
        for (int row = first_row; row < last_row; row++) {
            const Int8Rounding rounding = source.stored == Stored::kInt8
                                              ? Int8Rounding{1.0F, scale_of(source, row)}
                                              : int8_rounding(largest_of(source, row));
            inverses[row - first_row] = rounding.inverse;
            matrix.scales[static_cast<std::size_t>(column_of(place, row))] = rounding.scale;
        }
    // Inputs that are adjacent in the depth: one head for a matrix that takes the heads' output, otherwise all
    // inputs.
    const int run = place.is_of_heads ? place.head_dim : place.columns;
    const int padded = place.is_of_heads ? round_up(run, kLanes) : run;
    for (int group = 0; group * run < place.columns; group++)
        for (int from = 0; from < run; from += kPackDepth) {
            const int first = group * run + from;
            const int last = std::min(first + kPackDepth, (group + 1) * run);
            for (int row = first_row; row < last_row; row++) {
                const int column = column_of(place, row);
                const int depth = group * padded + from;
                const std::int64_t start = row * source.columns;
                is_finite &= weft::is_finite(source, start + first, start + last);
                if (matrix.is_int8())
                    pack_int8_run(source, row, first, last, matrix, inverses[row - first_row], column, depth);
                else
                    pack_run(source, row, first, last, matrix, element, column, depth);
            }
        }
    return is_finite;
}

int column_in_runs(const Place& place, int row) {
    int length = 0;
    for (const Run& run : place.runs) length += run.length;
    const int turn = row / length;
    int at = row % length;
    auto run = place.runs.begin();
    for (; at >= run->length; run++) at -= run->length;
    return place.first_column + run->first_column + turn * run->step + at;
}

}  // namespace

int column_of(const Place& place, int row) {
    switch (place.order) {
        case Order::kHeads:
            return place.first_column + row / place.head_dim * round_up(place.head_dim, kLanes) +
                   row % place.head_dim;
        case Order::kGate:
            return row / kLanes * kPanelColumns + row % kLanes;
        case Order::kUp:
            return row / kLanes * kPanelColumns + kLanes + row % kLanes;
        case Order::kRuns:
            return column_in_runs(place, row);
        case Order::kPlain:
            break;
    }
    return place.first_column + row;
}

bool pack_matrix(const Place& place, const Source& source, Element element, ThreadPool& pool) {
    std::atomic<bool> is_finite = true;
    for_rows(pool, source, place.rows, [&](int first, int last) {
        if (!pack_rows(place, source, element, first, last)) is_finite = false;
    });
    return is_finite;
}

void pack_bias(const Place& place, const Source& source) {
    std::vector<float>& bias = place.matrix->bias;
    bias.resize(static_cast<std::size_t>(place.matrix->columns));
    for (int row = 0; row < place.rows; row++)
        bias[static_cast<std::size_t>(column_of(place, row))] = element_of(source, row);
}

}  // namespace weft
