#include "encoder/weights.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "model/for_rows.h"

namespace weft {
namespace {

const std::string kBias = ".bias";

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
    throw std::invalid_argument("tensor " + name + " " + what);
}

void check_shape(const std::string& name, const Source& source, int rows, int columns) {
    if (source.rows == rows && source.columns == columns) return;
    refuse(name, "must have shape [" + std::to_string(rows) + ", " + std::to_string(columns) + "]");
}

}  // namespace

EncoderWeights::EncoderWeights(const EncoderSpec& spec) : layers(spec.layers.size()), spec_(spec) {
    const auto width = static_cast<std::size_t>(element_bytes(spec.element));
    const auto hidden = static_cast<std::size_t>(spec.padded_hidden());
    const auto query = static_cast<std::size_t>(spec.query_size());
    const auto inner = static_cast<std::size_t>(spec.padded_inner());
    const std::size_t layer = hidden * static_cast<std::size_t>(spec.qkv_columns()) + query * hidden +
                              hidden * inner * (spec.is_gated ? 3 : 2);
    const auto rows = static_cast<std::size_t>(spec.vocab_size) + static_cast<std::size_t>(spec.num_positions) +
                      static_cast<std::size_t>(spec.num_token_types);
    region_ = Region((layer * spec.layers.size() + rows * static_cast<std::size_t>(spec.hidden_size)) * width);
    for (std::size_t i = 0; i < layers.size(); i++)
        place_layer("layers." + std::to_string(i) + ".", layers[i], spec.layers[i]);
    place_norm("embed_norm", embed_norm);
    if (spec.norm_before) place_norm("norm", norm);
    place_table("embed", tokens_, spec.vocab_size);
    place_table("positions", positions_, spec.num_positions);
    place_table("token_types", token_types_, spec.num_token_types);
}

void EncoderWeights::place_layer(const std::string& prefix, EncoderLayerWeights& layer,
                                 const EncoderLayer& spec) {
    const EncoderSpec& s = spec_;
    const int hidden = s.hidden_size;
    const int inner = s.intermediate_size;
    const int dim = s.head_dim();
    layer.qkv = matrix_of(s.padded_hidden(), s.qkv_columns());
    layer.o = matrix_of(s.query_size(), s.padded_hidden());
    layer.up = matrix_of(s.padded_hidden(), s.padded_inner() * (s.is_gated ? 2 : 1));
    layer.down = matrix_of(s.padded_inner(), s.padded_hidden());
    place(prefix + "q", {&layer.qkv, 0, hidden, hidden, Order::kHeads, dim});
    place(prefix + "k", {&layer.qkv, s.query_size(), hidden, hidden, Order::kHeads, dim});
    place(prefix + "v", {&layer.qkv, 2 * s.query_size(), hidden, hidden, Order::kHeads, dim});
    place(prefix + "o", {&layer.o, 0, hidden, hidden, Order::kPlain, dim, true});
    if (s.is_gated) place(prefix + "gate", {&layer.up, 0, inner, hidden, Order::kGate, dim});
    place(prefix + "up", {&layer.up, 0, inner, hidden, s.is_gated ? Order::kUp : Order::kPlain, dim});
    place(prefix + "down", {&layer.down, 0, hidden, inner, Order::kPlain, dim});
    if (spec.has_attention_norm) place_norm(prefix + "attention_norm", layer.attention_norm);
    place_norm(prefix + "mlp_norm", layer.mlp_norm);
}

void EncoderWeights::place(const std::string& name, const Place& place) {
    places_.emplace(name, place);
    missing_.insert(name);
}

void EncoderWeights::place_norm(const std::string& name, LayerNorm& norm) {
    vectors_.emplace(name, &norm.weight);
    vectors_.emplace(name + kBias, &norm.bias);
    missing_.insert(name);
}

void EncoderWeights::place_table(const std::string& name, Table& table, int count) {
    if (count == 0) return;
    const auto elements = static_cast<std::size_t>(count) * static_cast<std::size_t>(spec_.hidden_size);
    table = {take(elements * static_cast<std::size_t>(element_bytes(spec_.element))), count};
    tables_.emplace(name, &table);
    missing_.insert(name);
}

Matrix EncoderWeights::matrix_of(int depth, int columns) {
    Matrix matrix;
    matrix.panels = take(static_cast<std::size_t>(depth) * static_cast<std::size_t>(columns) *
                         static_cast<std::size_t>(element_bytes(spec_.element)));
    matrix.depth = depth;
    matrix.columns = columns;
    return matrix;
}

std::byte* EncoderWeights::take(std::size_t bytes) {
    std::byte* taken = region_.data() + used_;
    used_ += bytes;
    return taken;
}

bool EncoderWeights::load(const std::string& name, const Source& source, ThreadPool& pool) {
    const bool is_bias = name.ends_with(kBias);
    const std::string weight = is_bias ? name.substr(0, name.size() - kBias.size()) : name;
    bool is_finite = true;
    if (source.stored == Stored::kInt8) refuse(name, "must not be int8");
    if (const auto table = tables_.find(name); table != tables_.end()) {
        check_shape(name, source, table->second->count, spec_.hidden_size);
        is_finite = load_table(*table->second, source, pool);
    } else if (const auto place = places_.find(weight); place != places_.end()) {
        check_shape(name, source, place->second.rows, is_bias ? 1 : place->second.columns);
        if (is_bias) pack_bias(place->second, source);
        is_finite = is_bias ? weft::is_finite(source, 0, source.rows)
                            : pack_matrix(place->second, source, spec_.element, pool);
    } else if (const auto vector = vectors_.find(name); vector != vectors_.end()) {
        check_shape(name, source, spec_.hidden_size, 1);
        vector->second->assign(static_cast<std::size_t>(spec_.padded_hidden()), 0.0F);
        for (int i = 0; i < spec_.hidden_size; i++)
            (*vector->second)[static_cast<std::size_t>(i)] = element_of(source, i);
        is_finite = weft::is_finite(source, 0, source.rows);
    } else {
        refuse(name, "is not part of this model");
    }
    missing_.erase(name);
    return is_finite;
}

bool EncoderWeights::load_table(const Table& table, const Source& source, ThreadPool& pool) const {
    const std::int64_t hidden = spec_.hidden_size;
    std::atomic<bool> is_finite = true;
    for_rows(pool, source, table.count, [&](int first, int last) {
        copy_elements(source, first * hidden, last * hidden, spec_.element, table.rows);
        if (!weft::is_finite(source, first * hidden, last * hidden)) is_finite = false;
    });
    return is_finite;
}

void EncoderWeights::embed(int token, int token_type, int position, float* out) const {
    std::fill(out, out + spec_.hidden_size, 0.0F);
    add_row(tokens_, token, out);
    if (token_types_.count > 0) add_row(token_types_, token_type, out);
    if (positions_.count > 0) add_row(positions_, position + spec_.position_offset, out);
}

void EncoderWeights::add_row(const Table& table, int row, float* out) const {
    const auto start = static_cast<std::size_t>(row) * static_cast<std::size_t>(spec_.hidden_size);
    if (spec_.element == Element::kFloat32) {
        const float* values = reinterpret_cast<const float*>(table.rows) + start;
        for (int i = 0; i < spec_.hidden_size; i++) out[i] += values[i];
    } else {
        const auto* bits = reinterpret_cast<const std::uint16_t*>(table.rows) + start;
        for (int i = 0; i < spec_.hidden_size; i++) out[i] += widen_bfloat16(bits[i]);
    }
}

}  // namespace weft
