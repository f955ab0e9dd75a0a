// Single parts of a step, for tests, benchmarks and the reference.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "kernels/select.h"
#include "model/groups.h"
#include "model/int8_product.h"
#include "model/measure.h"
#include "model/recurrent_rows.h"
#include "python/arrays.h"

namespace {

void multiply_int8(const std::string& path, const Rows& rows, const Rows& weights, Logits& out) {
    const weft::Source source{weights.data(), weft::Stored::kFloat32,
                              static_cast<std::int64_t>(weights.shape(0)),
                              static_cast<std::int64_t>(weights.shape(1))};
    weft::kernels_of(path, weft::Element::kFloat32);  // throws for a path that this CPU cannot run
    if (rows.shape(1) != weights.shape(1)) throw std::invalid_argument("rows must be as wide as weights");
    weft::multiply_int8(path, {rows.data(), rows.size()}, source, {out.data(), out.size()});
}

void multiply_grouped(const std::string& path, const weft::GroupFormat& format, const Rows& rows,
                      const Numbers& numbers, const Tensor& scales, const std::optional<Tensor>& offsets,
                      Logits& out) {
    weft::kernels_of(path, weft::Element::kFloat32);  // throws for a path that this CPU cannot run
    const weft::Source source = grouped_source("weights", numbers, scales, offsets);
    if (rows.shape(1) != numbers.shape(1)) throw std::invalid_argument("rows must be as wide as weights");
    weft::multiply_grouped(path, format, {rows.data(), rows.size()}, source, {out.data(), out.size()});
}

// `vectors`: the convolution's weights by row that it looks at, its bias or none, the vectors of heads and outputs,
// and the matrices of time steps.
void recurrent_rows(const std::string& path, int num_threads, const weft::RecurrentSpec& recurrence, float norm_eps,
                    const std::vector<Row>& vectors, const Rows& rows, bool is_begun, const WritableRow& state,
                    Logits& out) {
    weft::LayerWeights weights;
    std::vector<float>* const parts[] = {&weights.conv,
                                         &weights.conv_bias,
                                         &weights.recurrent.a_log,
                                         &weights.recurrent.step_bias,
                                         &weights.recurrent.skip,
                                         &weights.recurrent.output_scale,
                                         &weights.recurrent.step_in,
                                         &weights.recurrent.step_out};
    if (vectors.size() != std::size(parts)) throw std::invalid_argument("vectors must be eight");
    for (std::size_t i = 0; i < vectors.size(); i++)
        parts[i]->assign(vectors[i].data(), vectors[i].data() + vectors[i].size());
    weft::recurrent_rows(path, num_threads, recurrence, norm_eps, weights, {rows.data(), rows.size()}, is_begun,
                         {state.data(), state.size()}, {out.data(), out.size()});
}

void round_to_groups(const Rows& values, const WritableNumbers& numbers, const WritableBits& scales,
                     const WritableBits& minimums) {
    const weft::Source source = source_of(values);
    const auto groups = static_cast<std::size_t>(weft::num_groups(weft::kRoundedFormat, static_cast<int>(values.shape(1))));
    const auto fits = [&](const auto& array, std::size_t columns) {
        return array.shape(0) == values.shape(0) && array.shape(1) == columns;
    };
    if (!fits(numbers, values.shape(1)) || !fits(scales, groups) || !fits(minimums, groups))
        throw std::invalid_argument("numbers, scales and minimums must have the shape of values, or of its groups");
    weft::round_to_groups(source, 0, source.rows, {numbers.data(), scales.data(), minimums.data()});
}

}  // namespace

namespace {

weft::Source with_scales(const std::string& name, weft::Source source, const Tensor& scales,
                         const std::optional<Tensor>& offsets) {
    const auto is_whole = [&](const Tensor& tensor) {
        return tensor.ndim() == 2 && static_cast<std::int64_t>(tensor.shape(0)) == source.rows &&
               tensor.shape(1) == scales.shape(1);
    };
    if (!is_whole(scales) || (offsets && !is_whole(*offsets)))
        throw std::invalid_argument(name + ": scales and offsets must have a row for each of its rows");
    source.stored = weft::Stored::kGrouped;
    source.scales = scales.data();
    source.groups = static_cast<std::int64_t>(scales.shape(1));
    source.scale_size = scales.itemsize();
    if (offsets) source.offsets = offsets->data(), source.offset_size = offsets->itemsize();
    return source;
}

}  // namespace

weft::Source grouped_source(const std::string& name, const Numbers& numbers, const Tensor& scales,
                            const std::optional<Tensor>& offsets) {
    weft::Source source{numbers.data()};
    source.rows = static_cast<std::int64_t>(numbers.shape(0));
    source.columns = static_cast<std::int64_t>(numbers.shape(1));
    return with_scales(name, source, scales, offsets);
}

weft::Source halved_source(const std::string& name, const Blocks& blocks, std::int64_t run, const Tensor& scales,
                           const std::optional<Tensor>& offsets) {
    const auto bytes = static_cast<std::int64_t>(blocks.shape(2));
    if (run < 1 || bytes % run != 0 || blocks.stride(2) != 1)
        throw std::invalid_argument(name + ": blocks must have runs of so many bytes side by side");
    weft::Source source{blocks.data()};
    source.rows = static_cast<std::int64_t>(blocks.shape(0));
    source.columns = static_cast<std::int64_t>(blocks.shape(1)) * bytes * 2;
    source.halves = {run, bytes, blocks.stride(1), blocks.stride(0)};
    return with_scales(name, source, scales, offsets);
}

void bind_parts(nb::module_& module) {
    module.def("measure_limits",
               [](const std::string& path, const std::string& element, const std::string& quantization,
                  int num_threads) {
                   const weft::Element kind = element_named(element);
                   const weft::Quantization rounding = quantization_named(quantization);
                   const nb::gil_scoped_release release;
                   const weft::Limits limits = weft::measure_limits(path, kind, rounding, num_threads);
                   return std::make_pair(limits.bytes_per_s, limits.operations_per_s);
               },
               nb::arg("path"), nb::arg("element"), nb::arg("quantization"), nb::arg("num_threads"));
    module.def("multiply_int8", &multiply_int8, nb::arg("path"), nb::arg("rows").noconvert(),
               nb::arg("weights").noconvert(), nb::arg("out").noconvert());
    module.def("round_to_groups", &round_to_groups, nb::arg("values").noconvert(), nb::arg("numbers").noconvert(),
               nb::arg("scales").noconvert(), nb::arg("minimums").noconvert());
    module.def("multiply_grouped", &multiply_grouped, nb::arg("path"), nb::arg("form"),
               nb::arg("rows").noconvert(), nb::arg("numbers").noconvert(), nb::arg("scales").noconvert(),
               nb::arg("offsets").noconvert().none(), nb::arg("out").noconvert());
    module.def("recurrent_rows", &recurrent_rows, nb::arg("path"), nb::arg("num_threads"), nb::arg("spec"),
               nb::arg("norm_eps"), nb::arg("vectors"), nb::arg("rows").noconvert(), nb::arg("is_begun"),
               nb::arg("state").noconvert(), nb::arg("out").noconvert());
}
