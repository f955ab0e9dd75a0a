#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "model/for_rows.h"

namespace weft {
namespace {

void refuse(const std::string& name, const std::string& what) {
    throw std::invalid_argument("tensor " + name + " " + what);
}

void check_shape(const std::string& name, const Source& source, int rows, int columns) {
    if (source.rows == rows && source.columns == columns) return;
    refuse(name, "must have shape [" + std::to_string(rows) + ", " + std::to_string(columns) + "]");
}

}  // namespace

Weights::Weights(const ModelSpec& spec) : spec_(spec) {
    const int hidden = spec.padded_hidden();
    const auto width = static_cast<std::size_t>(element_bytes(spec.element));
    const bool is_int8 = spec.is_int8();
    const auto bytes = [&](int depth, int columns, bool rounds) {
        return static_cast<std::size_t>(depth) *
               static_cast<std::size_t>(round_up(columns, kPanelColumns)) * (rounds ? 1 : width);
    };
    const std::size_t layer = bytes(hidden, spec.qkv_size(), is_int8) +
                              bytes(spec.query_size(), hidden, is_int8) +
                              bytes(hidden, 2 * spec.padded_inner(), is_int8) +
                              bytes(spec.padded_inner(), hidden, is_int8);
    const std::size_t embedding = static_cast<std::size_t>(spec.vocab_size) *
                                  static_cast<std::size_t>(spec.hidden_size) * width;
    const std::size_t head_bytes = bytes(hidden, spec.head_columns(), spec.has_int8_head());
    region_ = Region(layer * spec.layers.size() + head_bytes + (shares_embedding() ? 0 : embedding));
    layers.resize(spec.layers.size());
    missing_ = {"embed", "norm"};
    if (!spec.tied_head) missing_.emplace_back("head");
    for (std::size_t i = 0; i < layers.size(); i++) {
        layers[i].qkv = matrix_of(hidden, spec.qkv_size(), is_int8);
        layers[i].o = matrix_of(spec.query_size(), hidden, is_int8);
        layers[i].gate_up = matrix_of(hidden, 2 * spec.padded_inner(), is_int8);
        layers[i].down = matrix_of(spec.padded_inner(), hidden, is_int8);
        const std::string prefix = "layers." + std::to_string(i) + ".";
        for (const char* name : {"q", "k", "v", "o", "gate", "up", "down"})
            missing_.push_back(prefix + name);
        if (spec.qk_norm == QkNorm::kNone) continue;
        for (const char* name : {"q_norm", "k_norm"}) missing_.push_back(prefix + name);
    }
    head = matrix_of(hidden, spec.head_columns(), spec.has_int8_head());
    if (!shares_embedding()) embedding_ = region_.data() + used_;
}

Matrix Weights::matrix_of(int depth, int columns, bool is_int8) {
    Matrix matrix;
    matrix.panels = region_.data() + used_;
    matrix.depth = depth;
    matrix.columns = round_up(columns, kPanelColumns);
    if (is_int8) matrix.scales.assign(static_cast<std::size_t>(matrix.columns), 0.0F);
    used_ += static_cast<std::size_t>(depth) * static_cast<std::size_t>(matrix.columns) *
             static_cast<std::size_t>(is_int8 ? 1 : element_bytes(spec_.element));
    return matrix;
}

bool Weights::load(const std::string& name, const Source& source, ThreadPool& pool) {
    std::string local;
    LayerWeights& layer = layer_of(name, local);
    std::atomic<bool> is_finite = true;
    Place place;
    Span span;
    const bool is_bias = local.size() > 5 && local.ends_with(".bias");
    if (name == "embed" && embedding_ != nullptr) {
        check_shape(name, source, spec_.vocab_size, spec_.hidden_size);
        load_embedding(source, pool, is_finite);
    }
    if (name == "embed" && !spec_.tied_head) {
        // It is no matrix of the model too.
    } else if (find_matrix(is_bias ? local.substr(0, local.size() - 5) : local, layer, place)) {
        check_shape(name, source, place.rows, is_bias ? 1 : place.columns);
        if (is_bias) {
            pack_bias(place, source);
            is_finite = weft::is_finite(source, 0, place.rows);
        } else {
            is_finite = pack_matrix(place, source, spec_.element, pool) && is_finite;
        }
    } else if (find_vector(local, layer, span)) {
        check_shape(name, source, span.size, 1);
        load_vector(span, source);
        is_finite = weft::is_finite(source, 0, span.size);
    } else {
        refuse(name, "is not part of this model");
    }
    std::erase(missing_, name);
    return is_finite;
}

// The layer that `name` belongs to; `local` becomes the name within it, or `name` itself.
LayerWeights& Weights::layer_of(const std::string& name, std::string& local) {
    local = name;
    if (!name.starts_with("layers.")) return outside_;
    const std::size_t dot = name.find('.', 7);
    const std::string number = name.substr(7, dot == std::string::npos ? dot : dot - 7);
    const bool is_number = !number.empty() && number.size() < 6 &&
                           number.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || dot == std::string::npos || std::stoul(number) >= layers.size())
        refuse(name, "belongs to no layer");
    local = name.substr(dot);  // with the dot, so that it cannot be mistaken for one outside
    return layers[std::stoul(number)];
}

bool Weights::find_matrix(const std::string& local, LayerWeights& layer, Place& place) {
    const ModelSpec& s = spec_;
    const int q_rows = s.num_heads * s.head_dim;
    const int kv_rows = s.num_kv_heads * s.head_dim;
    const int k_column = s.query_size();
    const int v_column = k_column + s.num_kv_heads * s.padded_dim();
    const int hidden = s.hidden_size;
    const int inner = s.intermediate_size;
    const int dim = s.head_dim;
    if (local == ".q") place = {&layer.qkv, 0, q_rows, hidden, Order::kHeads, dim};
    else if (local == ".k") place = {&layer.qkv, k_column, kv_rows, hidden, Order::kHeads, dim};
    else if (local == ".v") place = {&layer.qkv, v_column, kv_rows, hidden, Order::kHeads, dim};
    else if (local == ".o") place = {&layer.o, 0, hidden, q_rows, Order::kPlain, dim, true};
    else if (local == ".gate") place = {&layer.gate_up, 0, inner, hidden, Order::kGate, dim};
    else if (local == ".up") place = {&layer.gate_up, 0, inner, hidden, Order::kUp, dim};
    else if (local == ".down") place = {&layer.down, 0, hidden, inner, Order::kPlain, dim};
    else if (local == (s.tied_head ? "embed" : "head"))
        place = {&head, 0, s.head_columns(), hidden, Order::kPlain, dim};
    else return false;
    return true;
}

Place Weights::place_of(const std::string& name) {
    if (name == "head") return {&head, 0, spec_.head_columns(), spec_.hidden_size, Order::kPlain, spec_.head_dim};
    std::string local;
    LayerWeights& layer = layer_of(name, local);
    Place place;
    if (name == "embed" || !find_matrix(local, layer, place)) refuse(name, "is not part of this model");
    return place;
}

bool Weights::find_vector(const std::string& local, LayerWeights& layer, Span& span) {
    const ModelSpec& s = spec_;
    const int hidden = s.hidden_size;
    const int padded = s.padded_hidden();
    const bool is_full = s.qk_norm == QkNorm::kFull;
    const int q_heads = is_full ? s.num_heads : 1;
    const int k_heads = is_full ? s.num_kv_heads : 1;
    if (local == "norm") span = {&norm, hidden, hidden, padded};
    else if (local == ".q_norm") span = {&layer.q_norm, q_heads * s.head_dim, s.head_dim, s.padded_dim()};
    else if (local == ".k_norm") span = {&layer.k_norm, k_heads * s.head_dim, s.head_dim, s.padded_dim()};
    else if (local == ".attention_norm_before") span = {&layer.attention_norm_before, hidden, hidden, padded};
    else if (local == ".attention_norm_after") span = {&layer.attention_norm_after, hidden, hidden, padded};
    else if (local == ".mlp_norm_before") span = {&layer.mlp_norm_before, hidden, hidden, padded};
    else if (local == ".mlp_norm_after") span = {&layer.mlp_norm_after, hidden, hidden, padded};
    else return false;
    return true;
}

void Weights::load_vector(const Span& span, const Source& source) const {
    span.vector->assign(static_cast<std::size_t>(span.size / span.group * span.padded), 0.0F);
    for (int i = 0; i < span.size; i++)
        (*span.vector)[static_cast<std::size_t>(i / span.group * span.padded + i % span.group)] =
            element_of(source, i);
}

void Weights::load_embedding(const Source& source, ThreadPool& pool, std::atomic<bool>& is_finite) const {
    const std::int64_t hidden = spec_.hidden_size;
    for_rows(pool, source, spec_.vocab_size, [&](int first, int last) {
        copy_elements(source, first * hidden, last * hidden, spec_.element, embedding_);
        if (!weft::is_finite(source, first * hidden, last * hidden)) is_finite = false;
    });
}

void Weights::embed(int token, float* out) const {
    if (embedding_ == nullptr) return unpack_column(head, spec_.element, token, spec_.hidden_size, out);
    const std::int64_t start = static_cast<std::int64_t>(token) * spec_.hidden_size;
    const bool is_float = spec_.element == Element::kFloat32;
    const Source rows{embedding_, is_float ? Stored::kFloat32 : Stored::kBfloat16, 1, 1};
    for (int i = 0; i < spec_.hidden_size; i++) out[i] = element_of(rows, start + i);
}

}  // namespace weft
