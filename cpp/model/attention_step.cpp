// Attention of a layer in a step: rows are written to the cache, and then read by all rows that see them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/share_product.h"
#include "model/step.h"

namespace weft {

// Address of the layer's keys: in the pool, or in tiles that every layer of the step reuses.
std::byte* Step::layer_keys(int index) const {
    if (!spec_.is_causal) return model_.space_.tiles.data();
    return model_.kv_of(index);
}

// Bytes of the layer's keys, or of its values.
std::size_t Step::half_layer(int index) const {
    const std::size_t bytes = spec_.tile_bytes(spec_.layers[static_cast<std::size_t>(index)]);
    if (!spec_.is_causal) return plan_.tiles.size() * bytes;
    return static_cast<std::size_t>(model_.kv_shape_.num_tiles()) * bytes;
}

bool Step::attention(int index, bool is_last) {
    ThreadPool& pool = model_.pool_;
    // Every key and value is written before any row reads, because a row may attend to other rows of this step.
    // Tokens of one tile share cache lines, so one thread writes neighbouring tokens of a prompt.
    const int at_once =
        plan_.is_decode ? 1 : std::max(kLanes, rows_at_once(pool, all_.count, model_.kernels_.pieces));
    pool.share(all_.count, at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) {
            if (spec_.latent) write_latent(index, row, true, spec_.latent->query_rank == 0);
            else write_heads(index, row);
        }
    });
    if (is_last && !has_ends()) return false;
    if (spec_.latent) make_queries(index);
    if (!plan_.gathers.empty())
        pool.share(static_cast<int>(plan_.gathers.size()), 1, [&](int, int begin, int end) {
            for (int tile = begin; tile < end; tile++) gather(index, tile);
        });
    lap(Part::kCache);
    attend(index);
    if (spec_.has_output_gate)
        pool.share(all_.count, rows_at_once(pool, all_.count, model_.kernels_.pieces), [&](int, int begin, int end) {
            for (int row = begin; row < end; row++)
                model_.kernels_.gate_outputs(model_.space_.wide.rows().floats(row) + spec_.first_gate(),
                                             all_.attended.row(row), spec_.query_size());
        });
    lap(Part::kAttention);
    return true;
}

// Writes one row's cached vector, from the result of the first product, and its queries, which may be ready later.
void Step::write_latent(int index, int row, bool has_kept, bool has_queries) {
    const auto at = static_cast<std::size_t>(row);
    const int rope = *spec_.layers[static_cast<std::size_t>(index)].rope;
    LatentTask task = latent_.task(model_.weights_.layers[static_cast<std::size_t>(index)]);
    task.half = static_cast<int>(spec_.ropes[static_cast<std::size_t>(rope)].frequencies.size());
    task.cosine = rotations(rope, row);
    task.sine = task.cosine + task.half;
    float* wide = model_.space_.wide.rows().floats(row);
    if (has_kept) {
        task.kept = wide + spec_.queries_size();
        const int slot = plan_.slots[at];
        task.keys = layer_keys(index) + static_cast<std::size_t>(slot / kLanes) * spec_.tile_bytes(spec_.layers[static_cast<std::size_t>(index)]);
        task.lane = slot % kLanes;
        if (!has_queries) task.low = wide;
        task.low_out = model_.space_.latent.low.rows().row(row);
    }
    if (has_queries) {
        task.queries = wide;
        task.own = model_.space_.latent.by_head.rows().row(row);
        task.query = model_.space_.query.rows().row(row);
    }
    model_.kernels_.latent(task);
}

void Step::make_queries(int index) {
    ThreadPool& pool = model_.pool_;
    const LayerWeights& weights = model_.weights_.layers[static_cast<std::size_t>(index)];
    if (spec_.latent->query_rank > 0) {
        linear(weights.q_b, model_.space_.latent.low.rows(), all_.count, Finish::kStore, model_.space_.wide.rows());
        pool.share(all_.count, rows_at_once(pool, all_.count, model_.kernels_.pieces), [&](int, int begin, int end) {
            for (int row = begin; row < end; row++) write_latent(index, row, false, true);
        });
    }
    latent_.enter(weights, all_.count, model_.space_.query.rows());
}

void Step::write_heads(int index, int row) {
    const auto at = static_cast<std::size_t>(row);
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(index)];
    const LayerWeights& weights = model_.weights_.layers[static_cast<std::size_t>(index)];
    const Heads heads = spec_.heads_of(layer);
    HeadsTask task{};
    task.qkv = model_.space_.wide.rows().floats(row);
    task.num_heads = heads.count;
    task.num_kv_heads = heads.kv_count;
    task.head_dim = heads.dim;
    task.padded_dim = heads.padded_dim();
    task.norm = layer.has_qk_norm ? spec_.qk_norm : QkNorm::kNone;
    task.norms_values = spec_.has_value_norm;
    task.q_norm = weights.q_norm.vectors().weight;
    task.k_norm = weights.k_norm.vectors().weight;
    task.eps = spec_.norm_eps;
    if (layer.rope) {
        task.half = static_cast<int>(spec_.ropes[static_cast<std::size_t>(*layer.rope)].frequencies.size());
        task.cosine = rotations(*layer.rope, row);
        task.sine = task.cosine + task.half;
    }
    if (layer.temperature_interval > 0) heat(layer, batch_.positions[at], task.qkv);
    task.query = model_.space_.query.rows().row(row);
    if (!layer.kv_layer) {
        const int slot = plan_.slots[at];
        const std::size_t tile = static_cast<std::size_t>(slot / kLanes) * spec_.tile_bytes(layer);
        task.keys = layer_keys(index) + tile;
        task.values = layer_values(index) + tile;
        task.lane = slot % kLanes;
    }
    (spec_.has_int8_cache ? model_.kernels_.int8_heads : model_.kernels_.heads)(task);
}

// Multiplies a row's queries by the factor of its position. They have no norm, and a rotation changes no factor.
void Step::heat(const LayerSpec& layer, int position, float* queries) const {
    const float intervals = std::floor((static_cast<float>(position) + 1.0F) / static_cast<float>(layer.temperature_interval));
    const float factor = std::log1p(intervals) * layer.temperature_slope + 1.0F;
    for (int i = 0; i < spec_.heads_of(layer).query_size(); i++) queries[i] *= factor;
}

// Gathers a tile of a sequence from the tiles that contain its slots.
void Step::gather(int index, int tile) {
    const Gather& from = plan_.gathers[static_cast<std::size_t>(tile)];
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(index)];
    const std::size_t bytes = spec_.tile_bytes(layer);
    const auto width = static_cast<std::size_t>(spec_.kv_element_bytes());
    const std::size_t step = spec_.element == Element::kBfloat16 ? 2 : 1;  // elements in a pair
    const auto size = static_cast<std::size_t>(spec_.heads_of(layer).kv_size()) * kLanes;
    std::byte* keys = model_.space_.gathered.data() + static_cast<std::size_t>(tile) * bytes;
    std::byte* values = keys + plan_.gathers.size() * bytes;
    for (int token = 0; token < from.num_tokens; token++) {
        const auto slot = static_cast<std::size_t>(
            plan_.gather_slots[static_cast<std::size_t>(from.first_slot + token)]);
        const std::byte* from_keys = layer_keys(index) + slot / kLanes * bytes;
        const std::byte* from_values = layer_values(index) + slot / kLanes * bytes;
        const std::size_t there = slot % kLanes;
        const auto here = static_cast<std::size_t>(token);
        for (std::size_t cell = 0; cell < size / step; cell += kLanes)  // keys: pairs of depth by token
            std::memcpy(keys + (cell + here) * step * width, from_keys + (cell + there) * step * width,
                        step * width);
        if (spec_.latent) continue;
        constexpr std::size_t kPart = kLanes * kLanes;  // values: tokens in pairs, by 16 columns
        for (std::size_t part = 0; part < size; part += kPart)
            for (std::size_t column = 0; column < kLanes; column++) {
                const std::size_t into = part + here / step * step * kLanes + column * step + here % step;
                const std::size_t out = part + there / step * step * kLanes + column * step + there % step;
                std::memcpy(values + into * width, from_values + out * width, width);
            }
        for (std::size_t scale = size * width; scale < bytes; scale += kInt8ScaleBytes) {
            std::memcpy(keys + scale + here * 4, from_keys + scale + there * 4, 4);
            std::memcpy(values + scale + here * 4, from_values + scale + there * 4, 4);
        }
    }
}

// Runs each task on one thread, or on several, stage after stage.
void Step::attend(int index) {
    ThreadPool& pool = model_.pool_;
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(index)];
    const Heads heads = spec_.heads_of(layer);
    const AttentionTasks tasks(plan_, spec_, heads, pool.size());
    const int num_shares = shares_of_task(tasks, spec_, heads, visible_tiles(layer, plan_.max_tiles), pool.size());
    const auto do_stage = [&](AttentionStage stage) {
        pool.share(tasks.count * num_shares, 1, [&](int thread, int begin, int end) {
            for (int at = begin; at < end; at++) {
                AttentionTask task = attention_task(index, tasks, at / num_shares);
                task.stage = stage;
                task.share = at % num_shares;
                task.num_shares = num_shares;
                const auto place = static_cast<std::size_t>(num_shares == 1 ? thread : at / num_shares);
                task.scratch = model_.space_.scratch.data() + place * model_.scratch_bytes_;
                (spec_.has_int8_cache ? model_.kernels_.int8_attend : model_.kernels_.attend)(task);
            }
        });
    };
    if (num_shares == 1) return do_stage(AttentionStage::kWhole);
    do_stage(AttentionStage::kScore);
    do_stage(AttentionStage::kWeigh);
    do_stage(AttentionStage::kCombine);
}

AttentionTask Step::attention_task(int index, const AttentionTasks& tasks, int number) const {
    const int num_groups = tasks.per_piece;
    const Piece& piece = plan_.pieces[static_cast<std::size_t>(number / num_groups)];
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(index)];
    const Heads heads = spec_.heads_of(layer);
    AttentionTask task{};
    task.query = model_.space_.query.rows().first;
    task.out = all_.attended.first;
    task.stride = all_.attended.stride;
    const bool is_gathered = !plan_.gathers.empty();
    const std::byte* gathered = model_.space_.gathered.data();
    task.keys = is_gathered ? gathered : layer_keys(index);
    task.values = is_gathered ? gathered + plan_.gathers.size() * spec_.tile_bytes(layer) : layer_values(index);
    task.tiles = plan_.tiles.data() + piece.first_tile;
    task.positions = batch_.positions.data();
    task.ends = batch_.attend_ends.empty() ? nullptr : batch_.attend_ends.data();
    task.first_row = piece.first_row;
    task.last_row = piece.last_row;
    if (piece.shared_tiles > 0) {
        task.order = plan_.order.data();
        task.row_tiles = plan_.row_tiles.data();
        task.shared_tiles = piece.shared_tiles;
    }
    task.first_head = number % num_groups * tasks.heads;
    task.last_head = task.first_head + tasks.heads;
    task.num_kv_heads = heads.kv_count;
    task.group = heads.group();
    task.head_dim = heads.dim;
    task.padded_dim = heads.padded_dim();
    if (spec_.latent) {  // some query heads of the one KV head, whose keys are its values
        task.values = nullptr;
        task.group = heads.group() / tasks.latent_shares;
        const std::ptrdiff_t elements = static_cast<std::ptrdiff_t>(number % num_groups) * task.group * task.padded_dim;
        const std::ptrdiff_t first = elements * model_.kernels_.activation_bytes;
        task.query = model_.space_.query.rows().first + first;
        task.out = all_.attended.first + first;
        task.first_head = 0;
        task.last_head = 1;
    }
    task.before = layer.window ? *layer.window - 1 : std::numeric_limits<int>::max();
    task.chunk = layer.chunk;
    task.after = spec_.is_causal ? 0 : task.before;
    task.end = piece.end;
    task.scale = attention_scale_;
    task.cap = spec_.attention_soft_cap;
    if (spec_.has_sinks) task.sinks = model_.weights_.layers[static_cast<std::size_t>(index)].sinks.data();
    return task;
}

}  // namespace weft
