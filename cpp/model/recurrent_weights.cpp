// Places of the weights of layers with a convolution or a recurrence instead of attention.
#include <string>
#include <utility>
#include <vector>

#include "model/weights.h"

namespace weft {
namespace {

// A matrix of the checkpoint among the columns of a packed one.
struct Part {
    const char* name;
    int rows;
    int first_column;
    std::vector<Run> runs{};  // set if its rows alternate with those of other parts
};

// Parts of the first product, parts of the product that is never quantized, and the name of the last product.
struct Products {
    std::vector<Part> made;
    std::vector<Part> unrounded;
    const char* out;
};

Products products_of(const MambaSpec& mamba) { return {{{"mamba_in", sizes(mamba).made, 0}}, {}, "mamba_out"}; }

Products products_of(const Mamba1Spec& mamba) { return {{{"mamba_in", sizes(mamba).made, 0}}, {}, "mamba_out"}; }

Products products_of(const DeltaSpec& delta) {
    const int keys = delta.keys_size();
    const int inner = delta.inner_size();
    const int heads = delta.num_value_heads;
    const int channels = 2 * keys + inner;
    if (!delta.is_by_key_head)
        return {{{"delta_qkv", channels, 0}, {"delta_z", inner, channels}},
                {{"delta_b", heads, 0}, {"delta_a", heads, heads}},
                "delta_out"};
    const int key = delta.key_size;
    const int values = delta.group() * delta.value_size;
    const int group = delta.group();
    return {{{"delta_qkvz",
              channels + inner,
              0,
              {{key, 0, key}, {key, keys, key}, {values, 2 * keys, values}, {values, channels, values}}}},
            {{"delta_ba", 2 * heads, 0, {{group, 0, group}, {group, heads, group}}}},
            "delta_out"};
}

}  // namespace

// Places attention, and what a layer has instead of it or beside it.
void Weights::place_mixing(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec,
                           const LayerShapes& shapes) {
    layer.beside_in = matrix_of(shapes.beside_in);
    layer.beside_out = matrix_of(shapes.beside_out);
    if (spec.recurrence) place_recurrence(prefix, layer, spec);
    if (spec.conv_width > 0) place_convolution(prefix, layer, spec.conv_width);
    if (spec.has_attention()) place_attention(prefix, layer, spec, shapes);
}

void Weights::place_convolution(const std::string& prefix, LayerWeights& layer, int width) {
    const int hidden = spec_.hidden_size;
    const int dim = spec_.head_dim;
    place_matrix(prefix + "conv_in", {&layer.qkv, 0, 3 * hidden, hidden, Order::kPlain, dim});
    place_matrix(prefix + "conv_out", {&layer.o, 0, hidden, hidden, Order::kPlain, dim});
    place_channels(prefix, layer, width, hidden);
}

void Weights::place_channels(const std::string& prefix, LayerWeights& layer, int width, int channels) {
    place_vector(prefix + "conv", layer.conv, width * channels);
    vectors_.insert({prefix + "conv.bias", {&layer.conv_bias, channels, channels, channels}});
}

void Weights::place_recurrence(const std::string& prefix, LayerWeights& layer, const LayerSpec& of_layer) {
    const RecurrentSpec& spec = *of_layer.recurrence;
    Matrix& first = of_layer.is_beside ? layer.beside_in : layer.qkv;
    Matrix& last = of_layer.is_beside ? layer.beside_out : layer.o;
    const int hidden = spec_.hidden_size;
    const int dim = spec_.head_dim;
    const RecurrentSizes of = sizes(spec);
    const Products products = std::visit([](const auto& kind) { return products_of(kind); }, spec);
    for (const auto& [matrix, parts] : {std::pair{&first, &products.made}, {&layer.unrounded, &products.unrounded}})
        for (const Part& part : *parts)
            place_matrix(prefix + part.name,
                         {matrix, part.first_column, part.rows, hidden,
                          part.runs.empty() ? Order::kPlain : Order::kRuns, dim, false, true, part.runs});
    place_matrix(prefix + products.out, {&last, 0, hidden, of.inner_size, Order::kPlain, dim});
    place_channels(prefix, layer, of.conv_width, of.conv_size);
    RecurrentWeights& vectors = layer.recurrent;
    place_vector(prefix + "a_log", vectors.a_log, of.num_decays);
    place_vector(prefix + "step_bias", vectors.step_bias, of.num_steps);
    if (of.num_scales > 0) place_vector(prefix + "output_scale", vectors.output_scale, of.num_scales);
    if (of.num_skips > 0) place_vector(prefix + "skip", vectors.skip, of.num_skips);
    if (of.num_step_in == 0) return;
    place_vector(prefix + "step_in", vectors.step_in, static_cast<int>(of.num_step_in));
    place_vector(prefix + "step_out", vectors.step_out, static_cast<int>(of.num_step_out));
}

}  // namespace weft
