#include "model/attention_tasks.h"

#include <algorithm>

namespace weft {
namespace {

// Number of shares of the query heads: more than one if there are few pieces for the threads.
int latent_shares(const ModelSpec& spec, int num_pieces, int num_threads) {
    int shares = 1;
    while (shares < spec.num_heads && (num_pieces * shares < num_threads || spec.num_heads % shares != 0)) shares++;
    return shares;
}

}  // namespace

AttentionTasks::AttentionTasks(const Plan& plan, const ModelSpec& spec, const Heads& of_layer, int num_threads) {
    const auto num_pieces = static_cast<int>(plan.pieces.size());
    if (plan.max_tokens == 1 && num_pieces >= 2 * num_threads) heads = of_layer.kv_count;
    if (spec.latent) latent_shares = weft::latent_shares(spec, num_pieces, num_threads);
    per_piece = of_layer.kv_count / heads * latent_shares;
    count = num_pieces * per_piece;
}

int shares_of_task(const AttentionTasks& tasks, const ModelSpec& spec, const Heads& heads, int num_tiles,
                   int num_threads) {
    if (spec.latent || tasks.count >= 2 * num_threads) return 1;
    const int num_columns = heads.padded_dim() / kLanes;
    // The work of the last thread to finish, in units of a share.
    const auto turns = [&](int shares) { return (tasks.count * shares + num_threads - 1) / num_threads; };
    int best = 1;
    for (int shares = 2; shares <= std::min(num_columns, num_tiles / kTilesOfShare); shares++)
        if (num_columns % shares == 0 && turns(shares) * best < turns(best) * shares) best = shares;
    return best;
}

int visible_tiles(const LayerSpec& layer, int num_tiles) {
    const auto among = [num_tiles](int keys) { return std::min(num_tiles, (keys - 1) / kLanes + 2); };
    const int in_chunk = layer.chunk > 0 ? among(layer.chunk) : num_tiles;
    return layer.window ? std::min(in_chunk, among(*layer.window)) : in_chunk;
}

}  // namespace weft
