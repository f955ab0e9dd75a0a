// Shared by the files that depend on Python: views of the caller's arrays, and names of values.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/pack.h"
#include "model/spec.h"

namespace nb = nanobind;

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Blocks = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::device::cpu>;
using WritableNumbers = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBits = nb::ndarray<std::uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Tensor = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Levels = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using WritableRow = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Keys = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Chosen = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline std::span<const std::int32_t> span_of(const Ints& array) { return {array.data(), array.size()}; }

template <class Value>
Value choice(const std::string& field, const std::string& given,
             const std::vector<std::pair<std::string, Value>>& allowed) {
    std::string offer;
    for (const auto& [name, value] : allowed) {
        if (name == given) return value;
        offer += (offer.empty() ? "" : ", ") + name;
    }
    throw std::invalid_argument(field + " is '" + given + "'; it must be one of " + offer);
}

inline weft::Element element_named(const std::string& name) {
    return choice<weft::Element>("element", name,
                                 {{"bfloat16", weft::Element::kBfloat16}, {"float32", weft::Element::kFloat32}});
}

inline weft::Quantization quantization_named(const std::string& name) {
    return choice<weft::Quantization>(
        "quantization", name, {{"none", weft::Quantization::kNone}, {"int8", weft::Quantization::kInt8}});
}

inline weft::Source source_of(const Rows& matrix) {
    return {matrix.data(), weft::Stored::kFloat32, static_cast<std::int64_t>(matrix.shape(0)),
            static_cast<std::int64_t>(matrix.shape(1))};
}

// A source of numbers in groups; both other arrays are [rows][groups].
weft::Source grouped_source(const std::string& name, const Numbers& numbers, const Tensor& scales,
                            const std::optional<Tensor>& offsets);

// A source of numbers in halves of bytes, blocks [rows][blocks][bytes].
weft::Source halved_source(const std::string& name, const Blocks& blocks, std::int64_t run, const Tensor& scales,
                           const std::optional<Tensor>& offsets);

void bind_specs(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_parts(nb::module_& module);
