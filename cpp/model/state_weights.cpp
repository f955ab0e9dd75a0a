// Where the weights of layers lie that have a convolution or Mamba-2 in place of attention.
#include <string>

#include "model/weights.h"

namespace weft {

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

void Weights::place_mamba(const std::string& prefix, LayerWeights& layer, const MambaSpec& mamba) {
    const int hidden = spec_.hidden_size;
    const int dim = spec_.head_dim;
    place_matrix(prefix + "mamba_in", {&layer.qkv, 0, mamba.in_size(), hidden, Order::kPlain, dim});
    place_matrix(prefix + "mamba_out", {&layer.o, 0, hidden, mamba.inner_size(), Order::kPlain, dim});
    place_channels(prefix, layer, mamba.conv_width, mamba.conv_size());
    place_vector(prefix + "mamba_step_bias", layer.mamba.step_bias, mamba.num_heads);
    place_vector(prefix + "mamba_a_log", layer.mamba.a_log, mamba.num_heads);
    place_vector(prefix + "mamba_skip", layer.mamba.skip, mamba.num_heads);
    place_vector(prefix + "mamba_norm", layer.mamba.norm, mamba.inner_size());
}

}  // namespace weft
