// Places of the weights of latent attention, and the packing of the weights of heads.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/weights.h"

namespace weft {

void Weights::place_latent(const std::string& prefix, LayerWeights& layer, const LayerShapes& shapes) {
    const LatentSpec& latent = *spec_.latent;
    const int head = latent.key_size + latent.rope_size;
    const int q_rows = spec_.num_heads * head;
    if (latent.query_rank > 0) {
        layer.q_b = matrix_of(shapes.q_b);
        place_matrix(prefix + "q_a", {&layer.qkv, 0, latent.query_rank, spec_.hidden_size, Order::kPlain, head});
        place_matrix(prefix + "q_b", {&layer.q_b, 0, q_rows, latent.query_rank, Order::kHeads, head});
        vectors_.insert({prefix + "q_a_norm", {&layer.q_a_norm, latent.query_rank, latent.query_rank,
                                               round_up(latent.query_rank, kLanes)}});
        missing_.insert(prefix + "q_a_norm");
    } else {
        place_matrix(prefix + "q", {&layer.qkv, 0, q_rows, spec_.hidden_size, Order::kHeads, head});
    }
    place_matrix(prefix + "kv_a", {&layer.qkv, spec_.queries_size(), spec_.head_dim, spec_.hidden_size, Order::kPlain, head});
    place_vector(prefix + "kv_a_norm", layer.kv_a_norm, latent.rank);
    for (std::size_t i = 0; i < shapes.num_latent_heads; i++) {
        layer.head_keys.push_back(matrix_of(shapes.head_key));
        layer.head_values.push_back(matrix_of(shapes.head_value));
    }
    latents_.emplace(prefix + "kv_b", &layer);
    missing_.insert(prefix + "kv_b");
}

// Packs the rows of a head's keys and of its values, widened; those of keys are transposed.
bool Weights::load_heads(LayerWeights& layer, const Source& source, ThreadPool& pool) const {
    const LatentSpec& latent = *spec_.latent;
    const int columns = latent.rank;
    bool is_finite = true;
    std::vector<float> keys(static_cast<std::size_t>(latent.key_size) * static_cast<std::size_t>(columns));
    std::vector<float> values(static_cast<std::size_t>(latent.value_size) * static_cast<std::size_t>(columns));
    std::int64_t at = 0;
    for (std::size_t head = 0; head < layer.head_keys.size(); head++) {
        for (int row = 0; row < latent.key_size; row++)
            for (int column = 0; column < columns; column++)
                keys[static_cast<std::size_t>(column * latent.key_size + row)] = element_of(source, at++);
        for (float& value : values) value = element_of(source, at++);
        is_finite &= pack_matrix({&layer.head_keys[head], 0, columns, latent.key_size, Order::kPlain, columns},
                                 {keys.data(), Stored::kFloat32, columns, latent.key_size}, spec_.element, pool);
        is_finite &= pack_matrix({&layer.head_values[head], 0, latent.value_size, columns, Order::kPlain, columns},
                                 {values.data(), Stored::kFloat32, latent.value_size, columns}, spec_.element, pool);
    }
    return is_finite;
}

}  // namespace weft
