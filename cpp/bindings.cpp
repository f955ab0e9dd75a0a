// Exposes the C++ core as `weft.compute.native._core`: the machine, and models. Only this file and python/ depend on
// Python.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <map>
#include <memory>
#include <numeric>

#include "cpu.h"
#include "kernels/select.h"
#include "model/model.h"
#include "python/arrays.h"

namespace {

weft::Source tensor_source(const std::string& name, const std::string& dtype, const Tensor& tensor,
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

// Empty for None. An empty array does not stand for an absent field.
std::span<const std::int32_t> optional_span(const std::optional<Ints>& array, const Ints& rows, const char* field) {
    if (!array) return {};
    if (array->size() == 0 && rows.size() != 0) throw std::invalid_argument(std::string(field) + " must not be empty");
    return span_of(*array);
}

// A field of a `Batch`, as a view of its array: a conversion would read a copy instead of it. Empty for None.
template <class Array>
std::optional<Array> field_of(const nb::object& batch, const char* name, PyObject* interned) {
    const nb::object value = nb::steal(PyObject_GetAttr(batch.ptr(), interned));
    if (!value.is_valid()) nb::raise_python_error();
    if (value.is_none()) return {};
    Array array;
    if (!nb::try_cast(value, array, false))
        throw nb::type_error((std::string(name) + " must be an array of its type, without gaps, in this machine's memory").c_str());
    return array;
}

// A `weft.compute.protocols.runner.Batch`, held while the core reads it. Models that keep nothing between steps have
// no slots.
struct HeldBatch {
    // Integer fields: the first four are always present, the others are optional.
    static constexpr std::array kFields = {"token_ids",      "positions",    "query_starts", "logit_rows",  "slots",
                                           "token_types",    "adapter_ids",  "embed_rows",   "state_reads", "state_writes",
                                           "num_state_rows", "attend_ends",  "block_tables", "embeds",
                                           "rope_positions", "deep_embeds",  "memories"};
    static constexpr std::size_t kNumRequired = 4;
    static constexpr std::size_t kNumInts = 12;

    std::array<std::optional<Ints>, kNumInts> ints;
    std::optional<Table> block_tables;
    std::optional<Rows> embeds;
    std::optional<Table> rope_positions;
    std::optional<Levels> deep_embeds;
    std::vector<Bytes> memories;

    explicit HeldBatch(const nb::object& batch) {
        static const std::array<PyObject*, kFields.size()> names = interned();
        for (std::size_t i = 0; i < kNumInts; i++) ints[i] = field_of<Ints>(batch, kFields[i], names[i]);
        for (std::size_t i = 0; i < kNumRequired; i++)
            if (!ints[i]) throw nb::type_error((std::string(kFields[i]) + " must not be None").c_str());
        block_tables = field_of<Table>(batch, kFields[kNumInts], names[kNumInts]);
        embeds = field_of<Rows>(batch, kFields[kNumInts + 1], names[kNumInts + 1]);
        rope_positions = field_of<Table>(batch, kFields[kNumInts + 2], names[kNumInts + 2]);
        deep_embeds = field_of<Levels>(batch, kFields[kNumInts + 3], names[kNumInts + 3]);
        if (auto given = field_of<std::vector<Bytes>>(batch, kFields[kNumInts + 4], names[kNumInts + 4])) memories = *given;
    }

    // Interned names of the fields, made once and kept for the life of the process.
    static std::array<PyObject*, kFields.size()> interned() {
        std::array<PyObject*, kFields.size()> names;
        for (std::size_t i = 0; i < kFields.size(); i++) names[i] = PyUnicode_InternFromString(kFields[i]);
        return names;
    }

    weft::Batch spans(bool keeps_kv) const {
        weft::Batch batch;
        const std::array<std::span<const std::int32_t>*, kNumInts> places = {
            &batch.token_ids,   &batch.positions,   &batch.query_starts, &batch.logit_rows,   &batch.slots,
            &batch.token_types, &batch.adapter_ids, &batch.embed_rows,   &batch.state_reads,  &batch.state_writes,
            &batch.num_state_rows, &batch.attend_ends};
        for (std::size_t i = 0; i < kNumInts; i++)
            *places[i] = i < kNumRequired ? span_of(*ints[i]) : optional_span(ints[i], *ints[0], kFields[i]);
        if (!keeps_kv) batch.slots = {};
        if (keeps_kv && block_tables) {
            batch.block_tables = {block_tables->data(), block_tables->size()};
            batch.table_width = static_cast<std::int64_t>(block_tables->shape(1));
        }
        if (embeds) batch.embeds = {embeds->data(), embeds->size()};
        if (rope_positions) batch.rope_positions = {rope_positions->data(), rope_positions->size()};
        if (deep_embeds) batch.deep_embeds = {deep_embeds->data(), deep_embeds->size()};
        for (const Bytes& memory : memories)
            batch.memories.emplace_back(reinterpret_cast<const std::byte*>(memory.data()), memory.size());
        return batch;
    }
};

void forward(weft::Model& model, const nb::object& given, Logits& outputs, std::optional<Logits>& hidden,
             int first_layer, int end_layer) {
    const HeldBatch held(given);
    weft::Batch batch = held.spans(model.spec().is_causal);
    batch.wants_hidden = hidden.has_value();
    batch.first_layer = first_layer;
    batch.end_layer = end_layer;
    const std::span<float> out(outputs.data(), outputs.size());
    const std::span<float> states = hidden ? std::span<float>(hidden->data(), hidden->size()) : std::span<float>();
    const nb::gil_scoped_release release;
    model.forward(batch, out, states);
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

// Sums over steps and layers: rows of the mean expert, and rows of the busiest expert.
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
        // A view of the packed matrices in place; they do not change once all weights are loaded.
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
                 const weft::Source source = tensor_source(name, dtype, tensor, scales, is_mapped);
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
        // Blocks [rows, blocks, bytes] with any strides between rows and blocks: they may be part of a mapped file.
        .def("load_halves",
             [](weft::Model& model, const std::string& name, const Blocks& blocks, std::int64_t run,
                const Tensor& scales, const std::optional<Tensor>& offsets) {
                 const weft::Source source = halved_source(name, blocks, run, scales, offsets);
                 const nb::gil_scoped_release release;
                 return model.load(name, source);
             },
             nb::arg("name"), nb::arg("blocks").noconvert(), nb::arg("run"), nb::arg("scales").noconvert(),
             nb::arg("offsets").noconvert().none())
        .def("add_adapter", &add_adapter, nb::arg("adapter_id"), nb::arg("low_rank").noconvert(),
             nb::arg("whole").noconvert())
        .def("remove_adapter", &weft::Model::remove_adapter, nb::arg("adapter_id"),
             nb::call_guard<nb::gil_scoped_release>())
        .def("allocate_kv", &weft::Model::allocate_kv, nb::arg("num_blocks"), nb::arg("block_size"),
             nb::arg("num_state_slots") = 0,
             nb::call_guard<nb::gil_scoped_release>())
        // noconvert: a conversion would write to a copy instead of the given array.
        .def("forward", &forward, nb::arg("batch"), nb::arg("outputs").noconvert(),
             nb::arg("hidden").noconvert().none(), nb::arg("first_layer") = 0, nb::arg("end_layer") = 0)
        .def("project", [](weft::Model& model, const std::string& name, const Rows& x, Logits& out) {
                 const std::span<float> rows(out.data(), out.size());
                 const nb::gil_scoped_release release;
                 model.project(name, {x.data(), x.size()}, rows);
             },
             nb::arg("name"), nb::arg("x").noconvert(), nb::arg("out").noconvert())
        .def("pack_memory", [](weft::Model& model, const Rows& rows, WritableBytes& out) {
                 const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(out.data()), out.size());
                 const nb::gil_scoped_release release;
                 model.pack_memory({rows.data(), rows.size()}, bytes);
             },
             nb::arg("rows").noconvert(), nb::arg("out").noconvert())
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
        // A view of the KV pool's memory, valid until the next `allocate_kv`.
        .def_prop_ro("kv_bytes",
             [](const weft::Model& model) {
                 const std::span<std::byte> bytes = model.kv_bytes();
                 return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()});
             },
             nb::rv_policy::reference_internal)
        // A view of the states of blocks; empty if the model has none.
        .def_prop_ro("state_bytes",
             [](const weft::Model& model) {
                 const std::span<std::byte> bytes = model.state_bytes();
                 return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()});
             },
             nb::rv_policy::reference_internal)
        // A view of the states of sequences (slots); empty if the model has none.
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
    bind_parts(module);
    bind_sampling(module);
    bind_specs(module);
    bind_model(module);
}
