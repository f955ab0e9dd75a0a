// Tables of embeddings: placed, loaded, and looked up by row.
#include <atomic>
#include <cmath>

#include "model/for_rows.h"
#include "model/weights.h"

namespace weft {

void Weights::place_table(const std::string& name, Table& table, int count, int width) {
    if (count == 0) return;
    const auto elements = static_cast<std::size_t>(count) * static_cast<std::size_t>(width);
    table = {take(elements * static_cast<std::size_t>(element_bytes(spec_.element))), count, width};
    tables_.emplace(name, &table);
    missing_.insert(name);
}

bool Weights::load_table(const Table& table, const Source& source, ThreadPool& pool) const {
    const std::int64_t width = table.width;
    std::atomic<bool> is_finite = true;
    for_rows(pool, source, table.count, [&](int first, int last) {
        copy_elements(source, first * width, last * width, spec_.element, table.rows);
        if (!weft::is_finite(source, first * width, last * width)) is_finite = false;
    });
    return is_finite;
}

template <class Put>
void Weights::for_row(const Table& table, int row, const Put& put) const {
    const auto start = static_cast<std::size_t>(row) * static_cast<std::size_t>(table.width);
    if (spec_.element == Element::kFloat32) {
        const float* values = reinterpret_cast<const float*>(table.rows) + start;
        for (int i = 0; i < table.width; i++) put(i, values[i]);
    } else {
        const auto* bits = reinterpret_cast<const std::uint16_t*>(table.rows) + start;
        for (int i = 0; i < table.width; i++) put(i, widen_bfloat16(bits[i]));
    }
}

void Weights::embed(int token, float* out) const {
    if (tokens_.count == 0) unpack_column(head, spec_.element, token, spec_.hidden_size, out);
    else for_row(tokens_, token, [&](int i, float value) { out[i] = value; });
}

void Weights::add_place(int token_type, int position, float* out) const {
    const auto add = [&](int i, float value) { out[i] += value; };
    if (token_types_.count > 0) for_row(token_types_, token_type, add);
    if (positions_.count > 0) for_row(positions_, position + spec_.position_offset, add);
}

void Weights::add_inputs(int token, float* inputs) const {
    const int size = spec_.per_layer_size;
    const float by = 1.0F / std::sqrt(static_cast<float>(spec_.hidden_size));
    for (std::size_t layer = 0; layer < layers.size(); layer++) {
        float* input = inputs + static_cast<std::ptrdiff_t>(layer) * size;
        float squares = 0.0F;
        for (int i = 0; i < size; i++) {
            input[i] *= by;
            squares += input[i] * input[i];
        }
        const float inverse = 1.0F / std::sqrt(squares / static_cast<float>(size) + spec_.norm_eps);
        for (int i = 0; i < size; i++) input[i] *= inverse * inputs_norm.weight[static_cast<std::size_t>(i)];
    }
    const float own = std::sqrt(static_cast<float>(size));
    const float both = std::sqrt(0.5F);
    for_row(inputs_, token, [&](int i, float value) { inputs[i] = (inputs[i] + value * own) * both; });
}

}  // namespace weft
