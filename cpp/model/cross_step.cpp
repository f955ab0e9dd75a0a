// Attention of all rows to the keys and values that come with their sequences, between attention and MLP of a layer.
#include <cstring>
#include <limits>
#include <stdexcept>

#include "model/share_product.h"
#include "model/step.h"

namespace weft {

void Step::cross(int index) {
    ThreadPool& pool = model_.pool_;
    const LayerWeights& layer = model_.weights_.layers[static_cast<std::size_t>(index)];
    const RowsAt& wide = model_.space_.wide.rows();
    const RowsAt& normed = model_.space_.normed.rows();
    const int at_once = rows_at_once(pool, all_.count, model_.kernels_.pieces);
    linear(layer.o, all_.attended, all_.count, Finish::kStore, wide);
    pool.share(all_.count, at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) residual(all_.hidden, row, wide.floats(row), {none_, none_, layer.cross_norm});
    });
    linear(layer.cross_q, normed, all_.count, Finish::kStore, wide);
    pool.share(all_.count, at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++)
            model_.kernels_.to_activations(wide.floats(row), model_.space_.query.rows().row(row), spec_.query_size());
    });
    lap(Part::kLinear);
    const int num_tasks = static_cast<int>(plan_.cross_pieces.size()) * spec_.num_kv_heads;
    pool.share(num_tasks, 1, [&](int thread, int begin, int end) {
        for (int number = begin; number < end; number++) {
            AttentionTask task = cross_task(index, number);
            task.scratch = model_.space_.scratch.data() + static_cast<std::size_t>(thread) * model_.scratch_bytes_;
            model_.kernels_.attend(task);
        }
    });
    lap(Part::kAttention);
}

// One head of the rows of a piece, which see all keys.
AttentionTask Step::cross_task(int index, int number) const {
    const CrossPiece& piece = plan_.cross_pieces[static_cast<std::size_t>(number / spec_.num_kv_heads)];
    const std::size_t half = static_cast<std::size_t>(spec_.num_cross_tiles()) * spec_.cross_tile_bytes();
    AttentionTask task{};
    task.query = model_.space_.query.rows().first;
    task.out = all_.attended.first;
    task.stride = all_.attended.stride;
    task.keys = batch_.memories[piece.sequence].data() + 2 * static_cast<std::size_t>(index) * half;
    task.values = static_cast<const std::byte*>(task.keys) + half;
    task.tiles = model_.cross_tiles_.data();
    task.positions = batch_.positions.data();
    task.first_row = piece.first_row;
    task.last_row = piece.last_row;
    task.first_head = number % spec_.num_kv_heads;
    task.last_head = task.first_head + 1;
    task.num_kv_heads = spec_.num_kv_heads;
    task.group = 1;
    task.head_dim = spec_.head_dim;
    task.padded_dim = spec_.padded_dim();
    task.before = std::numeric_limits<int>::max();
    task.after = std::numeric_limits<int>::max();
    task.end = spec_.num_cross_keys;
    task.scale = attention_scale_;
    return task;
}

void Model::pack_memory(std::span<const float> rows, std::span<std::byte> out) {
    const std::lock_guard lock(mutex_);
    const auto heads = static_cast<std::size_t>(spec_.num_kv_heads);
    const auto dim = static_cast<std::size_t>(spec_.head_dim);
    const auto padded = static_cast<std::size_t>(spec_.padded_dim());
    const std::size_t width = 2 * spec_.layers.size() * heads * dim;
    if (spec_.num_cross_keys == 0) throw std::invalid_argument("the model attends to no keys that come with sequences");
    if (rows.size() != static_cast<std::size_t>(spec_.num_cross_keys) * width || out.size() != spec_.cross_bytes())
        throw std::invalid_argument("rows and out must have the sizes of the model's keys and values");
    std::memset(out.data(), 0, out.size());
    const std::size_t half = static_cast<std::size_t>(spec_.num_cross_tiles()) * spec_.cross_tile_bytes();
    const auto pack = [&](int key, std::vector<float>& both) {
        const float* from = rows.data() + static_cast<std::size_t>(key) * width;
        for (std::size_t layer = 0; layer < spec_.layers.size(); layer++) {
            for (std::size_t head = 0; head < 2 * heads; head++, from += dim)
                std::copy_n(from, dim, both.data() + head * padded);
            HeadsTask task{};
            task.qkv = both.data();
            task.num_kv_heads = spec_.num_kv_heads;
            task.head_dim = spec_.head_dim;
            task.padded_dim = spec_.padded_dim();
            task.keys = out.data() + 2 * layer * half + static_cast<std::size_t>(key / kLanes) * spec_.cross_tile_bytes();
            task.values = static_cast<std::byte*>(task.keys) + half;
            task.lane = key % kLanes;
            kernels_.heads(task);
        }
    };
    // Keys of one tile share cache lines, so one thread packs them.
    pool_.share(spec_.num_cross_tiles(), 1, [&](int, int begin, int end) {
        std::vector<float> both(2 * heads * padded);
        for (int key = begin * kLanes; key < std::min(end * kLanes, spec_.num_cross_keys); key++) pack(key, both);
    });
}

}  // namespace weft
