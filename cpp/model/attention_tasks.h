// How a step's attention is divided into tasks, and tasks among threads.
#pragma once

#include "model/plan.h"

namespace weft {

// Threads wait for each other twice more where they share a task: a share has keys of so many tiles at least.
constexpr int kTilesOfShare = 32;

struct AttentionTasks {
    // KV heads that one does: all of them where there are tasks enough for every thread, because then a thread
    // reads each tile from one end to the other.
    int heads = 1;
    // Of the query heads, where they have one KV head, whose keys are its values: a task has one.
    int latent_shares = 1;
    int count = 0;

    AttentionTasks(const Plan& plan, const ModelSpec& spec, int num_threads);

    int per_piece(const ModelSpec& spec) const { return spec.num_kv_heads / heads * latent_shares; }
};

// Threads that do a task together where each row sees up to `num_tiles`: as few as let all end soonest. 1 where
// there are tasks enough, where a share would be so small that nothing is gained, and with latent attention.
int shares_of_task(const AttentionTasks& tasks, const ModelSpec& spec, int num_tiles, int num_threads);

// Tiles that a row sees of a sequence that has `num_tiles`.
int visible_tiles(const LayerSpec& layer, int num_tiles);

}  // namespace weft
