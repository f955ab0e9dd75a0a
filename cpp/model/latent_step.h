// The parts of latent attention beyond the products and the attention of all models; see `LatentSpec`.
#pragma once

#include "kernels/kernels.h"
#include "model/row_buffer.h"
#include "model/thread_pool.h"
#include "model/weights.h"

namespace weft {

// Memory for one step; kept between steps, and enlarged when a step needs more.
struct LatentSpace {
    RowBuffer low;      // activations [padded query_rank]
    RowBuffer by_head;  // activations [heads][key_size], then [heads][padded value_size]
    Region results;  // float, by thread: results of a few rows of a head

    void make_room(const ModelSpec& spec, std::size_t rows, int activation_bytes, int num_threads);
};

class LatentStep {
public:
    LatentStep(const ModelSpec& spec, const Kernels& kernels, ThreadPool& pool, LatentSpace& space)
        : spec_(spec), kernels_(kernels), pool_(pool), space_(space) {}

    // The part of a row's task that does not change from row to row. `wide` is the result of the first product.
    LatentTask task(const LayerWeights& weights) const;

    // Maps each head's part of the queries into the latent space, to where attention reads them.
    void enter(const LayerWeights& weights, int rows, const RowsAt& query) const;
    // Maps the outputs of attention to values of heads, which `by_head` then holds.
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
