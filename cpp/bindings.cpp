// The only file that knows Python: it exposes the C++ core as `weft.compute.native._core`.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "cpu.h"
#include "kernels/select.h"
#include "model/groups.h"
#include "model/int8_product.h"
#include "model/mamba_rows.h"
#include "model/measure.h"
#include "model/model.h"
#include "sample/choose.h"
#include "sample/score.h"

namespace nb = nanobind;

namespace {

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WritableNumbers = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WritableBits = nb::ndarray<std::uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Tensor = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WritableRow = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Keys = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Chosen = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int32_t> span_of(const Ints& array) { return {array.data(), array.size()}; }

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

weft::Element element_named(const std::string& name) {
    return choice<weft::Element>("element", name,
                                 {{"bfloat16", weft::Element::kBfloat16}, {"float32", weft::Element::kFloat32}});
}

weft::Quantization quantization_named(const std::string& name) {
    return choice<weft::Quantization>(
        "quantization", name, {{"none", weft::Quantization::kNone}, {"int8", weft::Quantization::kInt8}});
}

weft::GroupFormat group_format(int bits, int group, const std::string& offset, const std::string& scales) {
    return {bits, group,
            choice<weft::Offset>("offset", offset, {{"symmetric", weft::Offset::kSymmetric},
                                                    {"zeros", weft::Offset::kZeros},
                                                    {"minimums", weft::Offset::kMinimums},
                                                    {"e2m1", weft::Offset::kE2m1}}),
            choice<weft::ScaleType>("scales", scales, {{"float32", weft::ScaleType::kFloat32},
                                                       {"bfloat16", weft::ScaleType::kBfloat16},
                                                       {"float16", weft::ScaleType::kFloat16}})};
}

// Numbers in groups; both other arrays are [rows][groups].
weft::Source grouped_source(const std::string& name, const Numbers& numbers, const Tensor& scales,
                            const std::optional<Tensor>& offsets) {
    const auto rows = static_cast<std::int64_t>(numbers.shape(0));
    const auto is_whole = [&](const Tensor& tensor) {
        return tensor.ndim() == 2 && static_cast<std::int64_t>(tensor.shape(0)) == rows &&
               tensor.shape(1) == scales.shape(1);
    };
    if (!is_whole(scales) || (offsets && !is_whole(*offsets)))
        throw std::invalid_argument(name + ": scales and offsets must have a row for each of its rows");
    weft::Source source{numbers.data(), weft::Stored::kGrouped, rows, static_cast<std::int64_t>(numbers.shape(1)),
                        scales.data()};
    source.groups = static_cast<std::int64_t>(scales.shape(1));
    source.scale_size = scales.itemsize();
    if (offsets) source.offsets = offsets->data(), source.offset_size = offsets->itemsize();
    return source;
}

weft::Source source_of(const std::string& name, const std::string& dtype, const Tensor& tensor,
                       const std::optional<Row>& scales, bool is_mapped) {
    const auto stored = choice<weft::Stored>(name + ": dtype", dtype,
                                             {{"float32", weft::Stored::kFloat32},
                                              {"bfloat16", weft::Stored::kBfloat16},
                                              {"float16", weft::Stored::kFloat16},
                                              {"int8", weft::Stored::kInt8}});
    if (tensor.itemsize() != weft::stored_bytes(stored)) throw std::invalid_argument(name + ": elements must have the size of " + dtype);
    if (tensor.ndim() < 1 || tensor.ndim() > 2) throw std::invalid_argument(name + ": must have 1 or 2 dimensions");
    if ((stored == weft::Stored::kInt8) != scales.has_value() || (scales && scales->size() != tensor.shape(0)))
        throw std::invalid_argument(name + ": int8, and nothing else, must have a scale for each row");
    return {tensor.data(), stored, static_cast<std::int64_t>(tensor.shape(0)),
            tensor.ndim() == 2 ? static_cast<std::int64_t>(tensor.shape(1)) : 1, scales ? scales->data() : nullptr,
            is_mapped};
}

// Empty for None. An array of none is no way to leave a field out.
std::span<const std::int32_t> span_of(const std::optional<Ints>& array, const Ints& rows, const std::string& field) {
    if (!array) return {};
    if (array->size() == 0 && rows.size() != 0) throw std::invalid_argument(field + " must not be empty");
    return span_of(*array);
}

void forward(weft::Model& model, const Ints& token_ids, const Ints& positions, const std::optional<Ints>& token_types,
             const std::optional<Ints>& slots, const Ints& query_starts, const std::optional<Table>& block_tables,
             const Ints& logit_rows, const std::optional<Ints>& adapter_ids, const std::optional<Ints>& embed_rows,
             const std::optional<Rows>& embeds, const std::optional<Ints>& state_reads,
             const std::optional<Ints>& state_writes, const std::optional<Ints>& num_state_rows, Logits& outputs,
             std::optional<Logits>& hidden) {
    weft::Batch batch;
    batch.token_ids = span_of(token_ids);
    batch.positions = span_of(positions);
    batch.token_types = span_of(token_types, token_ids, "token_types");
    batch.slots = span_of(slots, token_ids, "slots");
    batch.query_starts = span_of(query_starts);
    if (block_tables) {
        batch.block_tables = {block_tables->data(), block_tables->size()};
        batch.table_width = static_cast<std::int64_t>(block_tables->shape(1));
    }
    batch.logit_rows = span_of(logit_rows);
    batch.adapter_ids = span_of(adapter_ids, token_ids, "adapter_ids");
    batch.embed_rows = span_of(embed_rows, token_ids, "embed_rows");
    if (embeds) batch.embeds = {embeds->data(), embeds->size()};
    batch.state_reads = span_of(state_reads, token_ids, "state_reads");
    batch.state_writes = span_of(state_writes, token_ids, "state_writes");
    batch.num_state_rows = span_of(num_state_rows, token_ids, "num_state_rows");
    const std::span<float> out(outputs.data(), outputs.size());
    batch.wants_hidden = hidden.has_value();
    const std::span<float> states = hidden ? std::span<float>(hidden->data(), hidden->size()) : std::span<float>();
    const nb::gil_scoped_release release;
    model.forward(batch, out, states);
}

weft::Source source_of(const Rows& matrix) {
    return {matrix.data(), weft::Stored::kFloat32, static_cast<std::int64_t>(matrix.shape(0)),
            static_cast<std::int64_t>(matrix.shape(1))};
}

void add_adapter(weft::Model& model, int id, const std::map<std::string, std::pair<Rows, Rows>>& low_rank,
                 const std::map<std::string, Rows>& whole) {
    weft::AdapterParts parts;
    for (const auto& [name, both] : low_rank)
        parts.low_rank.push_back({name, source_of(both.first), source_of(both.second)});
    for (const auto& [name, matrix] : whole) parts.whole.push_back({name, source_of(matrix)});
    const nb::gil_scoped_release release;
    model.add_adapter(id, parts);
}

std::map<std::string, double> seconds(const weft::Model& model) {
    std::map<std::string, double> result;
    for (std::size_t part = 0; part < weft::kPartNames.size(); part++)
        result[weft::kPartNames[part]] = model.seconds()[part];
    return result;
}

// Sums over steps and layers: of the mean of experts' rows, and of the busiest's.
std::pair<double, double> expert_balance(const weft::Model& model) {
    std::pair<double, double> sums{0.0, 0.0};
    for (const weft::ExpertLoads& layer : model.expert_loads()) {
        if (layer.rows.empty()) continue;
        const std::int64_t all = std::accumulate(layer.rows.begin(), layer.rows.end(), std::int64_t{0});
        sums.first += static_cast<double>(all) / static_cast<double>(layer.rows.size());
        sums.second += static_cast<double>(layer.most);
    }
    return sums;
}

const weft::Kernels& best_kernels() {
    return weft::kernels_of(weft::usable_paths().front(), weft::Element::kFloat32);
}

// Chooses from each row; `is_finite` tells the rows that could be chosen from.
void draw_rows(const Rows& logits, const Doubles& temperatures, const Keys& keys, Chosen& tokens,
               Flags& is_finite) {
    const std::size_t count = logits.shape(0);
    if (temperatures.size() != count || keys.size() != count || tokens.size() != count ||
        is_finite.size() != count)
        throw std::invalid_argument("every array must have an entry for each row of logits");
    if (logits.shape(1) < 1 || logits.shape(1) > 1 << 24)
        throw std::invalid_argument("logits must have from 1 to 2^24 columns");
    const weft::Kernels& kernels = best_kernels();
    const nb::gil_scoped_release release;
    for (std::size_t row = 0; row < count; row++) {
        int token = 0;
        const weft::DrawTask task{logits.data() + row * logits.shape(1), static_cast<int>(logits.shape(1)),
                                  temperatures.data()[row], keys.data()[row]};
        is_finite.data()[row] = kernels.draw(task, token);
        tokens.data()[row] = token;
    }
}

std::span<const float> row_of(const Row& row) {
    if (row.size() < 1 || row.size() > 1 << 24)
        throw std::invalid_argument("logits must have from 1 to 2^24 columns");
    return {row.data(), row.size()};
}

// See `weft::Choice`, whose plain numbers are attributes of `numbers`.
std::optional<int> choose(const Row& logits, const std::optional<Ints>& allowed, const Ints& forbidden,
                          const Ints& forbidden_ends, const Ints& biased, const Row& bias, const Ints& seen,
                          const Ints& output, const nb::object& numbers) {
    weft::Choice choice;
    if (allowed) choice.allowed = span_of(*allowed);
    choice.forbidden = span_of(forbidden);
    choice.forbidden_ends = span_of(forbidden_ends);
    choice.biased = span_of(biased);
    choice.bias = {bias.data(), bias.size()};
    choice.seen = span_of(seen);
    choice.output = span_of(output);
    choice.read_numbers([&](const char* name, auto& value) {
        value = nb::cast<std::remove_reference_t<decltype(value)>>(numbers.attr(name));
    });
    const std::span<const float> row = row_of(logits);
    const nb::gil_scoped_release release;
    return weft::choose(best_kernels(), row, choice);
}

std::optional<std::tuple<std::vector<std::int32_t>, std::vector<float>, std::vector<std::int32_t>>> score(
    const Row& logits, const Ints& given, int num_best) {
    const std::span<const float> row = row_of(logits);
    std::optional<weft::Scores> scores;
    {
        const nb::gil_scoped_release release;
        scores = weft::score(best_kernels(), row, span_of(given), num_best);
    }
    if (!scores) return std::nullopt;
    return std::make_tuple(std::move(scores->tokens), std::move(scores->logprobs), std::move(scores->ranks));
}

void multiply_int8(const std::string& path, const Rows& rows, const Rows& weights, Logits& out) {
    const weft::Source source{weights.data(), weft::Stored::kFloat32,
                              static_cast<std::int64_t>(weights.shape(0)),
                              static_cast<std::int64_t>(weights.shape(1))};
    weft::kernels_of(path, weft::Element::kFloat32);  // refuses a path that this CPU cannot run
    if (rows.shape(1) != weights.shape(1)) throw std::invalid_argument("rows must be as wide as weights");
    weft::multiply_int8(path, {rows.data(), rows.size()}, source, {out.data(), out.size()});
}

void multiply_grouped(const std::string& path, const weft::GroupFormat& format, const Rows& rows,
                      const Numbers& numbers, const Tensor& scales, const std::optional<Tensor>& offsets,
                      Logits& out) {
    weft::kernels_of(path, weft::Element::kFloat32);  // refuses a path that this CPU cannot run
    const weft::Source source = grouped_source("weights", numbers, scales, offsets);
    if (rows.shape(1) != numbers.shape(1)) throw std::invalid_argument("rows must be as wide as weights");
    weft::multiply_grouped(path, format, {rows.data(), rows.size()}, source, {out.data(), out.size()});
}

// `vectors`: the convolution by row that it looks at, its bias or none, and step bias, A_log, D and norm.
void mamba_rows(const std::string& path, int num_threads, const weft::MambaSpec& mamba, float norm_eps,
                const std::vector<Row>& vectors, const Rows& rows, bool is_begun, const WritableRow& state, Logits& out) {
    weft::LayerWeights weights;
    std::vector<float>* const parts[] = {&weights.conv,        &weights.conv_bias,  &weights.mamba.step_bias,
                                         &weights.mamba.a_log, &weights.mamba.skip, &weights.mamba.norm};
    if (vectors.size() != std::size(parts)) throw std::invalid_argument("vectors must be six");
    for (std::size_t i = 0; i < vectors.size(); i++)
        parts[i]->assign(vectors[i].data(), vectors[i].data() + vectors[i].size());
    weft::mamba_rows(path, num_threads, mamba, norm_eps, weights, {rows.data(), rows.size()}, is_begun,
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

void bind_spec(nb::module_& module) {
    using weft::ModelSpec;
    nb::class_<weft::GroupFormat>(module, "GroupFormat")
        .def(nb::new_(&group_format), nb::arg("bits"), nb::arg("group"), nb::arg("offset"), nb::arg("scales"));
    nb::class_<weft::ExpertsSpec>(module, "ExpertsSpec")
        .def(nb::init<>())
        .def_rw("count", &weft::ExpertsSpec::count)
        .def_rw("per_token", &weft::ExpertsSpec::per_token)
        .def_rw("inner_size", &weft::ExpertsSpec::inner_size)
        .def_rw("shared_size", &weft::ExpertsSpec::shared_size)
        .def_rw("has_shared_gate", &weft::ExpertsSpec::has_shared_gate)
        .def_rw("is_normalized", &weft::ExpertsSpec::is_normalized)
        .def_rw("is_sigmoid", &weft::ExpertsSpec::is_sigmoid)
        .def_rw("num_groups", &weft::ExpertsSpec::num_groups)
        .def_rw("groups_per_token", &weft::ExpertsSpec::groups_per_token)
        .def_rw("scale", &weft::ExpertsSpec::scale)
        .def_rw("epsilon", &weft::ExpertsSpec::epsilon)
        .def_rw("up_groups", &weft::ExpertsSpec::up_groups, nb::arg().none())
        .def_rw("down_groups", &weft::ExpertsSpec::down_groups, nb::arg().none());
    nb::class_<weft::LatentSpec>(module, "LatentSpec")
        .def(nb::init<>())
        .def_rw("rank", &weft::LatentSpec::rank)
        .def_rw("rope_size", &weft::LatentSpec::rope_size)
        .def_rw("key_size", &weft::LatentSpec::key_size)
        .def_rw("value_size", &weft::LatentSpec::value_size)
        .def_rw("query_rank", &weft::LatentSpec::query_rank)
        .def_rw("is_interleaved", &weft::LatentSpec::is_interleaved)
        .def_rw("norm_eps", &weft::LatentSpec::norm_eps);
    nb::class_<weft::MambaSpec>(module, "MambaSpec")
        .def(nb::init<>())
        .def_rw("num_heads", &weft::MambaSpec::num_heads)
        .def_rw("head_dim", &weft::MambaSpec::head_dim)
        .def_rw("state_dim", &weft::MambaSpec::state_dim)
        .def_rw("num_groups", &weft::MambaSpec::num_groups)
        .def_rw("conv_width", &weft::MambaSpec::conv_width)
        .def_rw("min_step", &weft::MambaSpec::min_step)
        .def_rw("max_step", &weft::MambaSpec::max_step);
    nb::class_<weft::LayerSpec>(module, "LayerSpec")
        .def(nb::init<>())
        .def_rw("rope", &weft::LayerSpec::rope, nb::arg().none())
        .def_rw("window", &weft::LayerSpec::window, nb::arg().none())
        .def_rw("has_attention_norm", &weft::LayerSpec::has_attention_norm)
        .def_rw("conv_width", &weft::LayerSpec::conv_width)
        .def_rw("mamba", &weft::LayerSpec::mamba, nb::arg().none())
        .def_rw("qkv_groups", &weft::LayerSpec::qkv_groups, nb::arg().none())
        .def_rw("q_b_groups", &weft::LayerSpec::q_b_groups, nb::arg().none())
        .def_rw("o_groups", &weft::LayerSpec::o_groups, nb::arg().none())
        .def_rw("up_groups", &weft::LayerSpec::up_groups, nb::arg().none())
        .def_rw("down_groups", &weft::LayerSpec::down_groups, nb::arg().none())
        .def_rw("experts", &weft::LayerSpec::experts, nb::arg().none());
    nb::class_<weft::Rope>(module, "Rope")
        .def(nb::init<>())
        .def_rw("frequencies", &weft::Rope::frequencies)
        .def_rw("attention_factor", &weft::Rope::attention_factor);
    nb::class_<ModelSpec>(module, "ModelSpec")
        .def(nb::init<>())
        .def_rw("vocab_size", &ModelSpec::vocab_size)
        .def_rw("num_outputs", &ModelSpec::num_outputs)
        .def_rw("has_int8_cache", &ModelSpec::has_int8_cache)
        .def_rw("hidden_size", &ModelSpec::hidden_size)
        .def_rw("intermediate_size", &ModelSpec::intermediate_size)
        .def_rw("num_heads", &ModelSpec::num_heads)
        .def_rw("num_kv_heads", &ModelSpec::num_kv_heads)
        .def_rw("head_dim", &ModelSpec::head_dim)
        .def_rw("layers", &ModelSpec::layers)
        .def_rw("ropes", &ModelSpec::ropes)
        .def_rw("is_causal", &ModelSpec::is_causal)
        .def_rw("num_positions", &ModelSpec::num_positions)
        .def_rw("position_offset", &ModelSpec::position_offset)
        .def_rw("num_token_types", &ModelSpec::num_token_types)
        .def_rw("has_embed_norm", &ModelSpec::has_embed_norm)
        .def_rw("norm_eps", &ModelSpec::norm_eps)
        .def_rw("is_gated", &ModelSpec::is_gated)
        .def_rw("attention_scale", &ModelSpec::attention_scale)
        .def_rw("attention_soft_cap", &ModelSpec::attention_soft_cap)
        .def_rw("has_sinks", &ModelSpec::has_sinks)
        .def_rw("swiglu_limit", &ModelSpec::swiglu_limit)
        .def_rw("swiglu_alpha", &ModelSpec::swiglu_alpha)
        .def_rw("final_soft_cap", &ModelSpec::final_soft_cap)
        .def_rw("latent", &ModelSpec::latent, nb::arg().none())
        .def_rw("embedding_multiplier", &ModelSpec::embedding_multiplier)
        .def_rw("residual_multiplier", &ModelSpec::residual_multiplier)
        .def_rw("logits_divisor", &ModelSpec::logits_divisor)
        .def_rw("joins_hidden", &ModelSpec::joins_hidden)
        .def_rw("has_head", &ModelSpec::has_head)
        .def_rw("tied_head", &ModelSpec::tied_head)
        .def_prop_rw(
            "element",
            [](const ModelSpec& spec) {
                return spec.element == weft::Element::kBfloat16 ? "bfloat16" : "float32";
            },
            [](ModelSpec& spec, const std::string& name) { spec.element = element_named(name); })
        .def("sizes",
             [](const ModelSpec& spec) {
                 check(spec);
                 const weft::AdapterBytes adapter = weft::adapter_bytes(spec);
                 return std::make_tuple(weft::weight_bytes(spec), spec.kv_bytes_per_token(),
                                        spec.num_convolutions() * spec.state_bytes(), adapter.per_rank,
                                        adapter.padded_to);
             })
        .def("set_norm",
             [](ModelSpec& spec, const std::string& name) {
                 spec.norm = choice<weft::Norm>("norm", name,
                                                {{"rms", weft::Norm::kRms}, {"layer", weft::Norm::kLayer}});
             })
        .def("set_norm_placement",
             [](ModelSpec& spec, const std::string& name) {
                 spec.norm_placement = choice<weft::NormPlacement>("norm_placement", name,
                                                                   {{"before", weft::NormPlacement::kBefore},
                                                                    {"after", weft::NormPlacement::kAfter},
                                                                    {"both", weft::NormPlacement::kBoth},
                                                                    {"sum", weft::NormPlacement::kSum}});
             })
        .def("set_qk_norm",
             [](ModelSpec& spec, const std::string& name) {
                 spec.qk_norm = choice<weft::QkNorm>("qk_norm", name,
                                                     {{"none", weft::QkNorm::kNone},
                                                      {"head", weft::QkNorm::kHead},
                                                      {"full", weft::QkNorm::kFull}});
             })
        .def("set_quantization",
             [](ModelSpec& spec, const std::string& name) {
                 spec.quantization = quantization_named(name);
             })
        .def("set_activation", [](ModelSpec& spec, const std::string& name) {
            spec.activation = choice<weft::Activation>("activation", name,
                                                       {{"silu", weft::Activation::kSilu},
                                                        {"gelu", weft::Activation::kGelu},
                                                        {"gelu_tanh", weft::Activation::kGeluTanh},
                                                        {"relu", weft::Activation::kRelu},
                                                        {"tanh", weft::Activation::kTanh}});
        });
}

void bind_model(nb::module_& module) {
    nb::class_<weft::Model>(module, "Model")
        .def(nb::new_([](const weft::ModelSpec& spec, const std::string& path, int num_threads,
                         const std::optional<int>& file, bool is_published, bool is_copied) {
                 std::optional<weft::SharedFile> shared;
                 if (file) shared = {*file, is_published, is_copied};
                 const nb::gil_scoped_release release;
                 return std::make_unique<weft::Model>(spec, path, num_threads, shared);
             }),
             nb::arg("spec"), nb::arg("path"), nb::arg("num_threads"), nb::arg("file").none() = nb::none(),
             nb::arg("is_published") = false, nb::arg("is_copied") = false)
        .def("publish", &weft::Model::publish, nb::call_guard<nb::gil_scoped_release>())
        // A view of the matrices where they lie; they stay as they are once all is loaded.
        .def_prop_ro("packed_bytes",
             [](const weft::Model& model) {
                 const std::span<std::byte> bytes = model.packed_bytes();
                 return nb::ndarray<nb::numpy, nb::ro, std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()});
             },
             nb::rv_policy::reference_internal)
        .def("vector_bytes",
             [](weft::Model& model) {
                 std::string bytes;
                 {
                     const nb::gil_scoped_release release;  // a step may be on its way
                     bytes = model.vector_bytes();
                 }
                 return nb::bytes(bytes.data(), bytes.size());
             })
        .def("load",
             [](weft::Model& model, const std::string& name, const std::string& dtype, const Tensor& tensor,
                const std::optional<Row>& scales, bool is_mapped) {
                 const weft::Source source = source_of(name, dtype, tensor, scales, is_mapped);
                 const nb::gil_scoped_release release;
                 return model.load(name, source);
             },
             nb::arg("name"), nb::arg("dtype"), nb::arg("tensor").noconvert(),
             nb::arg("scales").noconvert().none(), nb::arg("is_mapped"))
        .def("load_groups",
             [](weft::Model& model, const std::string& name, const Numbers& numbers, const Tensor& scales,
                const std::optional<Tensor>& offsets) {
                 const weft::Source source = grouped_source(name, numbers, scales, offsets);
                 const nb::gil_scoped_release release;
                 return model.load(name, source);
             },
             nb::arg("name"), nb::arg("numbers").noconvert(), nb::arg("scales").noconvert(),
             nb::arg("offsets").noconvert().none())
        .def("add_adapter", &add_adapter, nb::arg("adapter_id"), nb::arg("low_rank").noconvert(),
             nb::arg("whole").noconvert())
        .def("remove_adapter", &weft::Model::remove_adapter, nb::arg("adapter_id"),
             nb::call_guard<nb::gil_scoped_release>())
        .def("allocate_kv", &weft::Model::allocate_kv, nb::arg("num_blocks"), nb::arg("block_size"),
             nb::arg("num_state_slots") = 0,
             nb::call_guard<nb::gil_scoped_release>())
        // Not converted: a copy made on the way would be read, or written, in place of the array given.
        .def("forward", &forward, nb::arg("token_ids").noconvert(), nb::arg("positions").noconvert(),
             nb::arg("token_types").noconvert().none(), nb::arg("slots").noconvert().none(),
             nb::arg("query_starts").noconvert(), nb::arg("block_tables").noconvert().none(),
             nb::arg("logit_rows").noconvert(), nb::arg("adapter_ids").noconvert().none(),
             nb::arg("embed_rows").noconvert().none(), nb::arg("embeds").noconvert().none(),
             nb::arg("state_reads").noconvert().none(), nb::arg("state_writes").noconvert().none(),
             nb::arg("num_state_rows").noconvert().none(), nb::arg("outputs").noconvert(),
             nb::arg("hidden").noconvert().none())
        .def("embed", [](weft::Model& model, const Ints& token_ids, Logits& out) {
                 const std::span<float> rows(out.data(), out.size());
                 const nb::gil_scoped_release release;
                 model.embed(span_of(token_ids), rows);
             },
             nb::arg("token_ids").noconvert(), nb::arg("out").noconvert())
        .def("logits", [](weft::Model& model, const Rows& hidden, Logits& out) {
                 const std::span<float> rows(out.data(), out.size());
                 const nb::gil_scoped_release release;
                 model.logits({hidden.data(), hidden.size()}, rows);
             },
             nb::arg("hidden").noconvert(), nb::arg("out").noconvert())
        // A view of the pool as it lies in memory, until the next `allocate_kv`.
        .def_prop_ro("kv_bytes",
             [](const weft::Model& model) {
                 const std::span<std::byte> bytes = model.kv_bytes();
                 return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()});
             },
             nb::rv_policy::reference_internal)
        // The same of the states beside it; empty where there are none.
        .def_prop_ro("state_bytes",
             [](const weft::Model& model) {
                 const std::span<std::byte> bytes = model.state_bytes();
                 return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()});
             },
             nb::rv_policy::reference_internal)
        // And of those of sequences.
        .def_prop_ro("slot_bytes",
             [](const weft::Model& model) {
                 const std::span<std::byte> bytes = model.slot_bytes();
                 return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()});
             },
             nb::rv_policy::reference_internal)
        .def("seconds", &seconds)
        .def("expert_loads",
             [](const weft::Model& model) {
                 std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> loads;
                 for (const weft::ExpertLoads& layer : model.expert_loads())
                     if (!layer.rows.empty()) loads.emplace_back(layer.rows, layer.most);
                 return loads;
             })
        .def("expert_balance", &expert_balance)
        .def_prop_ro("num_threads", &weft::Model::num_threads)
        .def("set_num_threads", &weft::Model::set_num_threads, nb::arg("num_threads"),
             nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

NB_MODULE(_core, module) {
    module.def("cpu_architecture", &weft::cpu_architecture);
    module.def("cpu_features", &weft::cpu_features);
    module.def("available_cpus", &weft::available_cpus);
    module.def("usable_paths", &weft::usable_paths);
    module.def("trim_heap", &weft::trim_heap, nb::call_guard<nb::gil_scoped_release>());
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
    module.def("draw_rows", &draw_rows, nb::arg("logits").noconvert(), nb::arg("temperatures").noconvert(),
               nb::arg("keys").noconvert(), nb::arg("tokens").noconvert(), nb::arg("is_finite").noconvert());
    module.def("choose", &choose, nb::arg("logits").noconvert(), nb::arg("allowed").noconvert().none(),
               nb::arg("forbidden").noconvert(), nb::arg("forbidden_ends").noconvert(),
               nb::arg("biased").noconvert(), nb::arg("bias").noconvert(), nb::arg("seen").noconvert(),
               nb::arg("output").noconvert(), nb::arg("numbers"));
    module.def("score", &score, nb::arg("logits").noconvert(), nb::arg("given").noconvert(), nb::arg("num_best"));
    module.def("multiply_int8", &multiply_int8, nb::arg("path"), nb::arg("rows").noconvert(),
               nb::arg("weights").noconvert(), nb::arg("out").noconvert());
    bind_spec(module);
    module.def("round_to_groups", &round_to_groups, nb::arg("values").noconvert(), nb::arg("numbers").noconvert(),
               nb::arg("scales").noconvert(), nb::arg("minimums").noconvert());
    module.def("multiply_grouped", &multiply_grouped, nb::arg("path"), nb::arg("form"),
               nb::arg("rows").noconvert(), nb::arg("numbers").noconvert(), nb::arg("scales").noconvert(),
               nb::arg("offsets").noconvert().none(), nb::arg("out").noconvert());
    module.def("mamba_rows", &mamba_rows, nb::arg("path"), nb::arg("num_threads"), nb::arg("spec"),
               nb::arg("norm_eps"), nb::arg("vectors"), nb::arg("rows").noconvert(), nb::arg("is_begun"),
               nb::arg("state").noconvert(), nb::arg("out").noconvert());
    bind_model(module);
}
