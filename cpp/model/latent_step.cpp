#include "model/latent_step.h"

#include <algorithm>

#include "model/share_product.h"

namespace weft {
namespace {

// Number of rows of a head that are multiplied at once: their results stay in the second cache.
constexpr int kRowsOfHead = 64;

int result_columns(const ModelSpec& spec) {
    return round_up(std::max(spec.latent->rank, spec.padded_value()), kPanelColumns);
}

}  // namespace

void LatentSpace::make_room(const ModelSpec& spec, std::size_t rows, int activation_bytes, int num_threads) {
    if (!spec.latent) return;
    low.make_room(rows, round_up(spec.latent->query_rank, kLanes), activation_bytes);
    by_head.make_room(rows, spec.num_heads * std::max(spec.latent->key_size, spec.padded_value()), activation_bytes);
    grow(results, static_cast<std::size_t>(num_threads) * kRowsOfHead *
                      static_cast<std::size_t>(result_columns(spec)) * sizeof(float));
}

LatentTask LatentStep::task(const LayerWeights& weights) const {
    const LatentSpec& latent = *spec_.latent;
    LatentTask task{};
    task.low_norm = weights.q_a_norm.data();
    task.low_size = latent.query_rank;
    task.low_padded = round_up(latent.query_rank, kLanes);
    task.norm = weights.kv_a_norm.data();
    task.rank = latent.rank;
    task.padded_dim = spec_.padded_dim();
    task.num_heads = spec_.num_heads;
    task.key_size = latent.key_size;
    task.query_size = spec_.padded_query();
    task.is_interleaved = latent.is_interleaved;
    task.eps = latent.norm_eps;
    return task;
}

void LatentStep::enter(const LayerWeights& weights, int rows, const RowsAt& query) const {
    const LatentSpec& latent = *spec_.latent;
    by_head(weights.head_keys, space_.by_head.rows(), latent.key_size, query, spec_.padded_dim(), latent.rank, rows);
}

void LatentStep::leave(const LayerWeights& weights, const RowsAt& attended, int rows) const {
    const int size = spec_.padded_value();
    by_head(weights.head_values, attended, spec_.padded_dim(), space_.by_head.rows(), size, size, rows);
}

// A head's part of a row is `from_size` elements after the previous head's; `count` elements of each result are kept.
void LatentStep::by_head(const std::vector<Matrix>& matrices, const RowsAt& from, int from_size, const RowsAt& to,
                         int to_size, int count, int rows) const {
    const int columns = result_columns(spec_);
    const int runs = (rows + kRowsOfHead - 1) / kRowsOfHead;
    pool_.share(spec_.num_heads * runs, 1, [&](int thread, int begin, int end) {
        float* results = reinterpret_cast<float*>(space_.results.data()) +
                         static_cast<std::ptrdiff_t>(thread) * kRowsOfHead * columns;
        const RowsAt out{reinterpret_cast<std::byte*>(results), columns, sizeof(float)};
        for (int at = begin; at < end; at++) {
            const int head = at / runs;
            const int first = at % runs * kRowsOfHead;
            const int num_rows = std::min(kRowsOfHead, rows - first);
            RowsAt x = from.from(first);
            x.first += static_cast<std::ptrdiff_t>(head) * from_size * x.element_bytes;
            kernels_.gemm(gemm_task(matrices[static_cast<std::size_t>(head)], x, num_rows, Finish::kStore, out));
            for (int row = 0; row < num_rows; row++)
                kernels_.to_activations(out.floats(row),
                                        to.row(first + row) + static_cast<std::ptrdiff_t>(head) * to_size * to.element_bytes,
                                        count);
        }
    });
}

}  // namespace weft
