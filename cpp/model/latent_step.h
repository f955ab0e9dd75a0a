// What latent attention has beside the products and the attention that all kinds have: see `LatentSpec`.
#pragma once

#include "kernels/kernels.h"
#include "model/row_buffer.h"
#include "model/thread_pool.h"
#include "model/weights.h"

namespace weft {

// Memory of one step; kept, and made larger when a step needs more.
struct LatentSpace {
    RowBuffer low;      // activations [padded query_rank]
    RowBuffer by_head;  // activations [heads][key_size], then [heads][padded value_size]
    Region results;     // float, by thread: some rows of a head

    void make_room(const ModelSpec& spec, std::size_t rows, int activation_bytes, int num_threads);
};

class LatentStep {
public:
    LatentStep(const ModelSpec& spec, const Kernels& kernels, ThreadPool& pool, LatentSpace& space)
        : spec_(spec), kernels_(kernels), pool_(pool), space_(space) {}

    // The part of a row's task that does not change from row to row. `wide` is what the first product gave.
    LatentTask task(const LayerWeights& weights) const;

    // Queries' own parts into the latent space, where attention takes them from.
    void enter(const LayerWeights& weights, int rows, const RowsAt& query) const;
    // What attention gave, to values of heads; they lie where `by_head` says.
    void leave(const LayerWeights& weights, const RowsAt& attended, int rows) const;

private:
    void by_head(const std::vector<Matrix>& matrices, const RowsAt& from, int from_size, const RowsAt& to, int to_size,
                 int count, int rows) const;

    const ModelSpec& spec_;
    const Kernels& kernels_;
    ThreadPool& pool_;
    LatentSpace& space_;
};

}  // namespace weft
