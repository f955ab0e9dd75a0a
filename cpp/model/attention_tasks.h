// Division of a step's attention into tasks, and of tasks among threads.
#pragma once

#include "model/plan.h"

namespace weft {

// Minimum number of key tiles in a share, because threads that share a task wait for each other twice more.
constexpr int kTilesOfShare = 32;

struct AttentionTasks {
    // Number of KV heads per task: all of them if there are enough tasks for every thread, because a thread then
    // reads each tile from one end to the other.
    int heads = 1;
    // Number of shares of the query heads, for latent attention, whose one KV head serves all of them: a task has one
    // share.
    int latent_shares = 1;
    int per_piece = 1;
    int count = 0;

    AttentionTasks(const Plan& plan, const ModelSpec& spec, const Heads& of_layer, int num_threads);
};

// Number of threads that share a task, if each row sees up to `num_tiles`: the smallest number with which all threads
// finish soonest. 1 if there are enough tasks, if shares would be too small to gain anything, and for latent
// attention.
int shares_of_task(const AttentionTasks& tasks, const ModelSpec& spec, const Heads& heads, int num_tiles,
                   int num_threads);

// Number of tiles that a row sees of a sequence with `num_tiles` tiles.
int visible_tiles(const LayerSpec& layer, int num_tiles);

}  // namespace weft
