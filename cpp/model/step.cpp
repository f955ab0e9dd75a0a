#include "model/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/rope.h"
#include "model/share_product.h"

namespace weft {
namespace {

// Number of rows quantized to int8 per thread: fewer take less time than another thread needs to start.
constexpr int kRowsToRound = 8;

float* floats(const Region& region) { return reinterpret_cast<float*>(region.data()); }

}  // namespace

Step::Step(Model& model, const Batch& batch, const Plan& plan, std::span<float> outputs,
           std::vector<const Adapter*> adapters)
    : model_(model),
      spec_(model.spec_),
      batch_(batch),
      plan_(plan),
      outputs_(outputs),
      residual_(spec_.norm == Norm::kRms ? model.kernels_.rms_residual : model.kernels_.layer_residual),
      attention_tasks_(plan, model.spec_, model.pool_.size()),
      attention_scale_(spec_.attention_scale > 0 ? spec_.attention_scale
                                                 : 1.0F / std::sqrt(static_cast<float>(spec_.head_dim))),
      half_layer_(spec_.is_causal ? model.layer_bytes() / static_cast<std::size_t>(spec_.kv_parts())
                                  : plan.tiles.size() * spec_.tile_bytes()),
      adapter_by_row_(std::move(adapters)),
      adapters_(spec_, model.kernels_, model.pool_, model.space_.adapters),
      experts_({spec_, model.kernels_, model.float32_kernels_, model.int8_kernels_, model.pool_,
                model.space_.experts}),
      latent_(spec_, model.kernels_, model.pool_, model.space_.latent),
      convolution_({spec_, model.kv_shape_, batch, plan, model.pool_, model.space_.convolution,
                    rows_at_once(model.pool_, plan.rows, model.kernels_.pieces)}),
      recurrence_({spec_, model.kernels_, batch, plan, model.pool_, model.space_.convolved.rows(),
                   rows_at_once(model.pool_, plan.rows, model.kernels_.pieces)}),
      all_{plan.rows, model.space_.hidden.rows(), model.space_.attended.rows()},
      last_{static_cast<int>(batch.logit_rows.size()), model.space_.last_hidden.rows(),
            model.space_.last_attended.rows()},
      since_(Clock::now()) {
    std::ptrdiff_t at = 0;
    for (const Rope& rope : spec_.ropes) {
        rope_starts_.push_back(at);
        at += plan.rows * 2 * static_cast<std::ptrdiff_t>(rope.frequencies.size());
    }
    if (!batch.embed_rows.empty()) embed_by_row_.resize(static_cast<std::size_t>(plan.rows));
    const float* given = batch.embeds.data();
    for (const std::int32_t row : batch.embed_rows) {
        embed_by_row_[static_cast<std::size_t>(row)] = given;
        given += spec_.input_size();
    }
}

void Step::run(std::span<float> hidden) {
    ThreadPool& pool = model_.pool_;
    if (!adapter_by_row_.empty()) {
        adapters_.take(adapter_by_row_);
        adapters_.begin_embedding(batch_.token_ids);
    }
    pool.share(plan_.rows, 1, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) {
            turn_row(row);
            if (!spec_.joins_hidden) prepare(row);
        }
    });
    if (spec_.joins_hidden) join();
    lap(Part::kPrepare);
    for (int index = batch_.first_layer; index < end_layer(); index++) layer(index);
    if (batch_.wants_hidden) give_hidden(hidden);
    if (last_.count == 0) return;
    if (spec_.has_head) head();
    else give_states();
    lap(Part::kHead);
}

// Computes the rotations of the row's position.
void Step::turn_row(int row) {
    const auto at = static_cast<std::size_t>(row);
    const std::int32_t position = batch_.positions[at];
    const std::int32_t same[] = {position, position, position};
    const std::int32_t* positions = batch_.rope_positions.empty() ? same : &batch_.rope_positions[3 * at];
    for (std::size_t rope = 0; rope < spec_.ropes.size(); rope++) {
        const auto pairs = static_cast<std::ptrdiff_t>(spec_.ropes[rope].frequencies.size());
        turn(spec_.ropes[rope], positions,
             floats(model_.space_.rotations) + rope_starts_[rope] + row * 2 * pairs);
    }
}

// Computes a row's embedding, and the input of the first layer.
void Step::prepare(int row) {
    const auto at = static_cast<std::size_t>(row);
    const Weights& weights = model_.weights_;
    float* hidden = all_.hidden.floats(row);
    const std::int32_t type = batch_.token_types.empty() ? 0 : batch_.token_types[at];
    const float* given = embed_by_row_.empty() ? nullptr : embed_by_row_[at];
    if (given != nullptr) std::copy_n(given, spec_.hidden_size, hidden);
    else weights.embed(batch_.token_ids[at], hidden);
    if (given == nullptr && !adapters_.is_idle()) adapters_.embed(row, batch_.token_ids[at], hidden);
    std::fill(hidden + spec_.hidden_size, hidden + spec_.padded_hidden(), 0.0F);
    const auto first = static_cast<std::size_t>(batch_.first_layer);
    const NormWeights& before = weights.layers[first].attention_norm_before;
    if (first > 0) return residual(all_.hidden, row, nullptr, {none_, none_, before});
    weights.add_place(type, batch_.positions[at], hidden);
    for (int i = 0; i < spec_.hidden_size; i++) hidden[i] *= spec_.embedding_multiplier;
    residual(all_.hidden, row, nullptr, {none_, weights.embed_norm, before});
}

const float* Step::rotations(int rope, int row) const {
    const auto at = static_cast<std::size_t>(rope);
    const auto pairs = static_cast<std::ptrdiff_t>(spec_.ropes[at].frequencies.size());
    return floats(model_.space_.rotations) + rope_starts_[at] + row * 2 * pairs;
}

// Address of the layer's keys: in the pool, or in tiles that every layer of the step reuses.
std::byte* Step::layer_keys(int index) const {
    if (!spec_.is_causal) return model_.space_.tiles.data();
    return model_.kv_of(index);
}

void Step::layer(int index) {
    const auto at = static_cast<std::size_t>(index);
    const LayerWeights& weights = model_.weights_.layers[at];
    const bool is_last = index + 1 == end_layer();
    linear(weights.qkv, model_.space_.normed.rows(), all_.count, Finish::kStore, model_.space_.wide.rows());
    lap(Part::kLinear);
    const LayerSpec& of_layer = spec_.layers[at];
    const bool goes_on = of_layer.recurrence       ? recurrence(index, is_last)
                         : of_layer.conv_width > 0 ? convolution(index, is_last)
                                                   : attention(index, is_last);
    if (!goes_on) return;
    if (spec_.num_cross_keys > 0) cross(index);
    if (is_last && !batch_.wants_hidden) {
        const auto attended = static_cast<std::size_t>(spec_.mixed_size(of_layer) * model_.kernels_.activation_bytes);
        model_.pool_.share(last_.count, 1, [&](int, int begin, int end) {
            for (int wanted = begin; wanted < end; wanted++) pick(wanted, attended);
        });
        if (!adapters_.is_idle()) pick_adapters();
    }
    finish_layer(index, is_last && !batch_.wants_hidden ? last_ : all_);
    lap(Part::kLinear);
}

// Returns false if nothing is left to do: in the last layer of a step that wants no rows.
bool Step::convolution(int index, bool is_last) {
    const auto at = static_cast<std::size_t>(index);
    const bool goes_on = !is_last || has_ends();
    convolution_.run(spec_.layers[at], model_.weights_.layers[at], model_.space_.wide.rows(), all_.attended,
                     model_.states_of(index), goes_on);
    lap(Part::kAttention);
    return goes_on;
}

// Like `convolution`, for a layer with a recurrence.
bool Step::recurrence(int index, bool is_last) {
    const auto at = static_cast<std::size_t>(index);
    const bool goes_on = !is_last || has_ends();
    const RecurrentSpec& spec = *spec_.layers[at].recurrence;
    const LayerWeights& weights = model_.weights_.layers[at];
    const RowsAt& wide = model_.space_.wide.rows();
    if (weights.unrounded.columns > 0) {
        const RowsAt made{wide.first + sizes(spec).first_unrounded() * wide.element_bytes, wide.stride,
                          wide.element_bytes};
        linear(weights.unrounded, model_.space_.normed.rows(), all_.count, Finish::kStore, made);
        lap(Part::kLinear);
    }
    recurrence_.run(spec, weights, wide, all_.attended, model_.slots_of(index), goes_on);
    lap(Part::kAttention);
    return goes_on;
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
        task.keys = layer_keys(index) + static_cast<std::size_t>(slot / kLanes) * spec_.tile_bytes();
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
    const int slot = plan_.slots[at];
    HeadsTask task{};
    task.qkv = model_.space_.wide.rows().floats(row);
    task.num_heads = spec_.num_heads;
    task.num_kv_heads = spec_.num_kv_heads;
    task.head_dim = spec_.head_dim;
    task.padded_dim = spec_.padded_dim();
    task.norm = spec_.qk_norm;
    task.q_norm = weights.q_norm.vectors().weight;
    task.k_norm = weights.k_norm.vectors().weight;
    task.eps = spec_.norm_eps;
    if (layer.rope) {
        task.half = static_cast<int>(spec_.ropes[static_cast<std::size_t>(*layer.rope)].frequencies.size());
        task.cosine = rotations(*layer.rope, row);
        task.sine = task.cosine + task.half;
    }
    task.query = model_.space_.query.rows().row(row);
    const std::size_t tile = static_cast<std::size_t>(slot / kLanes) * spec_.tile_bytes();
    task.keys = layer_keys(index) + tile;
    task.values = layer_values(index) + tile;
    task.lane = slot % kLanes;
    (spec_.has_int8_cache ? model_.kernels_.int8_heads : model_.kernels_.heads)(task);
}

// Gathers a tile of a sequence from the tiles that contain its slots.
void Step::gather(int index, int tile) {
    const Gather& from = plan_.gathers[static_cast<std::size_t>(tile)];
    const std::size_t bytes = spec_.tile_bytes();
    const auto width = static_cast<std::size_t>(spec_.kv_element_bytes());
    const std::size_t step = spec_.element == Element::kBfloat16 ? 2 : 1;  // elements in a pair
    const auto size = static_cast<std::size_t>(spec_.num_kv_heads * spec_.padded_dim()) * kLanes;
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
    const int num_shares =
        shares_of_task(attention_tasks_, spec_, visible_tiles(layer, plan_.max_tiles), pool.size());
    const auto do_stage = [&](AttentionStage stage) {
        pool.share(attention_tasks_.count * num_shares, 1, [&](int thread, int begin, int end) {
            for (int at = begin; at < end; at++) {
                AttentionTask task = attention_task(index, at / num_shares);
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

AttentionTask Step::attention_task(int index, int number) const {
    const int num_groups = attention_tasks_.per_piece(spec_);
    const Piece& piece = plan_.pieces[static_cast<std::size_t>(number / num_groups)];
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(index)];
    AttentionTask task{};
    task.query = model_.space_.query.rows().first;
    task.out = all_.attended.first;
    task.stride = all_.attended.stride;
    const bool is_gathered = !plan_.gathers.empty();
    const std::byte* gathered = model_.space_.gathered.data();
    task.keys = is_gathered ? gathered : layer_keys(index);
    task.values = is_gathered ? gathered + plan_.gathers.size() * spec_.tile_bytes() : layer_values(index);
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
    task.first_head = number % num_groups * attention_tasks_.heads;
    task.last_head = task.first_head + attention_tasks_.heads;
    task.num_kv_heads = spec_.num_kv_heads;
    task.group = spec_.group();
    task.head_dim = spec_.head_dim;
    task.padded_dim = spec_.padded_dim();
    if (spec_.latent) {  // some query heads of the one KV head, whose keys are its values
        task.values = nullptr;
        task.group = spec_.group() / attention_tasks_.latent_shares;
        const std::ptrdiff_t elements = static_cast<std::ptrdiff_t>(number % num_groups) * task.group * task.padded_dim;
        const std::ptrdiff_t first = elements * model_.kernels_.activation_bytes;
        task.query = model_.space_.query.rows().first + first;
        task.out = all_.attended.first + first;
        task.first_head = 0;
        task.last_head = 1;
    }
    task.before = layer.window ? *layer.window - 1 : std::numeric_limits<int>::max();
    task.after = spec_.is_causal ? 0 : task.before;
    task.end = piece.end;
    task.scale = attention_scale_;
    task.cap = spec_.attention_soft_cap;
    if (spec_.has_sinks) task.sinks = model_.weights_.layers[static_cast<std::size_t>(index)].sinks.data();
    return task;
}

// Keeps only the wanted rows after the attention of the last layer.
void Step::pick(int wanted, std::size_t attended_bytes) {
    const std::int32_t row = batch_.logit_rows[static_cast<std::size_t>(wanted)];
    const auto hidden = static_cast<std::size_t>(spec_.padded_hidden());
    std::memcpy(last_.hidden.row(wanted), all_.hidden.row(row), hidden * sizeof(float));
    std::memcpy(last_.attended.row(wanted), all_.attended.row(row), attended_bytes);
}

void Step::pick_adapters() {
    std::vector<const Adapter*> picked;
    for (const std::int32_t row : batch_.logit_rows)
        picked.push_back(adapter_by_row_[static_cast<std::size_t>(row)]);
    adapters_.take(std::move(picked));
}

// The part of a layer after attention: o, the MLP, and the norms around them.
void Step::finish_layer(int index, const LayerRows& rows) {
    ThreadPool& pool = model_.pool_;
    const auto at = static_cast<std::size_t>(index);
    const Weights& weights = model_.weights_;
    const LayerWeights& layer = weights.layers[at];
    const RowsAt& normed = model_.space_.normed.rows();
    const RowsAt& wide = model_.space_.wide.rows();
    const RowsAt& inner = model_.space_.inner.rows();
    const int at_once = rows_at_once(pool, rows.count, model_.kernels_.pieces);
    const auto add_rows = [&](const Norms& norms, bool adds = true) {
        pool.share(rows.count, at_once, [&](int, int begin, int end) {
            for (int row = begin; row < end; row++) residual(rows.hidden, row, adds ? wide.floats(row) : nullptr, norms);
        });
    };
    RowsAt attended = rows.attended;
    if (spec_.latent) {
        latent_.leave(layer, attended, rows.count);
        attended = model_.space_.latent.by_head.rows();
    }
    linear(spec_.num_cross_keys > 0 ? layer.cross_o : layer.o, attended, rows.count, Finish::kStore, wide);
    if (spec_.is_parallel()) {
        add_rows({none_, none_, layer.mlp_norm_before}, false);
        add_rows({none_, none_, none_, true});
    } else {
        add_rows({layer.attention_norm_after, layer.attention_norm_sum, layer.mlp_norm_before});
    }
    if (!batch_.deep_embeds.empty()) add_deep(index);
    const LayerSpec& of_layer = spec_.layers[at];
    if (spec_.mlp_size(of_layer) > 0) {
        linear(layer.up, normed, rows.count, spec_.is_gated ? Finish::kActivate : Finish::kActivateAll, inner);
        linear(layer.down, inner, rows.count, Finish::kStore, wide);
    }
    if (of_layer.experts)
        experts_.run(*of_layer.experts, layer, normed, rows.count, wide, model_.expert_loads_[at]);
    const NormWeights& after = layer.mlp_norm_after;
    const NormWeights& sum = layer.mlp_norm_sum;
    if (index + 1 < end_layer()) add_rows({after, sum, weights.layers[at + 1].attention_norm_before});
    else if (spec_.has_head) add_rows({after, sum, weights.norm});
    else add_rows({after, spec_.has_norm_of_sum() || at + 1 < spec_.layers.size() ? sum : weights.norm, none_, true});
}

// Adds the rows that come with the batch for this layer's output. The MLP reads hidden states no more: they have
// been normed for it already.
void Step::add_deep(int index) {
    const std::size_t level = batch_.embeds.size();
    const std::size_t begin = static_cast<std::size_t>(index) * level;
    if (begin >= batch_.deep_embeds.size()) return;
    const auto size = static_cast<std::size_t>(spec_.hidden_size);
    model_.pool_.share(static_cast<int>(batch_.embed_rows.size()), kLanes, [&](int, int first, int end) {
        for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(end); i++) {
            float* hidden = all_.hidden.floats(batch_.embed_rows[i]);
            const float* added = batch_.deep_embeds.data() + begin + i * size;
            for (std::size_t at = 0; at < size; at++) hidden[at] += added[at];
        }
    });
}

void Step::residual(const RowsAt& hidden, int row, const float* added, const Norms& norms) {
    residual_({hidden.floats(row), added, norms.after.vectors(), norms.sum.vectors(), norms.before.vectors(),
               norms.is_end ? nullptr : model_.space_.normed.rows().row(row), spec_.hidden_size,
               spec_.padded_hidden(), spec_.residual_multiplier, spec_.norm_eps});
}

void Step::linear(const Matrix& matrix, const RowsAt& x, int rows, Finish finish, const RowsAt& out) {
    GemmTask task = gemm_task(matrix, x, rows, finish, out);
    task.activation = spec_.activation;
    task.swiglu_limit = spec_.swiglu_limit;
    task.swiglu_alpha = spec_.swiglu_alpha;
    task.columns = spec_.head_columns();
    task.divisor = spec_.logits_divisor;
    task.cap = spec_.final_soft_cap;
    if (!adapters_.is_idle()) adapters_.begin(matrix, x);
    if (matrix.is_int8() || matrix.groups) int8_linear(matrix, x, task);
    else share(matrix, task, model_.kernels_.gemm);
    adapters_.end();
}

// Quantizes the rows to int8, then multiplies.
void Step::int8_linear(const Matrix& matrix, const RowsAt& x, const GemmTask& task) {
    const RoundedRows& rounded = model_.space_.rounded;
    const Int8Kernels& kernels = model_.int8_kernels_;
    model_.pool_.share(task.last_row, kRowsToRound, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) rounded.round(kernels, matrix, x, row);
    });
    if (matrix.groups) share(matrix, rounded.grouped_task(matrix, task, 0), kernels.grouped_gemm);
    else share(matrix, rounded.int8_task(matrix, task, 0), kernels.gemm);
}

template <class Task, class Gemm>
void Step::share(const Matrix& matrix, const Task& task, Gemm gemm) {
    if (adapters_.has_begun())
        share_panels(model_.pool_, matrix, task,
                     [&](int thread, const Task& part) { adapters_.multiply(thread, part, gemm); });
    else if (spec_.is_causal)
        share_product(model_.pool_, matrix, task, model_.kernels_.pieces,
                      [&](int, const Task& part) { gemm(part); });
    else
        share_slabs(model_.pool_, matrix, task, matrix.depth * model_.kernels_.activation_bytes,
                    [&](int, const Task& part) { gemm(part); });
}

void Step::head() {
    const RowsAt& normed = model_.space_.normed.rows();
    const RowsAt logits{reinterpret_cast<std::byte*>(outputs_.data()), spec_.head_columns(), sizeof(float)};
    const std::vector<AdapterStep::HeadRun> runs = adapters_.head_runs();
    int num_others = last_.count;
    for (const AdapterStep::HeadRun& run : runs) num_others -= run.num_rows;
    if (num_others > 0) linear(model_.weights_.head, normed, last_.count, Finish::kLogits, logits);
    // Rows whose adapter has a head of its own are multiplied again, with this head.
    for (const AdapterStep::HeadRun& run : runs) {
        adapters_.take(std::vector<const Adapter*>(static_cast<std::size_t>(run.num_rows), run.adapter));
        linear(*run.adapter->head(), normed.from(run.first_row), run.num_rows, Finish::kLogits,
               logits.from(run.first_row));
    }
}

void Step::give_states() {
    const auto size = static_cast<std::size_t>(spec_.hidden_size);
    for (int wanted = 0; wanted < last_.count; wanted++)
        std::memcpy(outputs_.data() + static_cast<std::size_t>(wanted) * size, last_.hidden.row(wanted),
                    size * sizeof(float));
}

void Step::lap(Part part) {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<std::size_t>(part)] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
}

}  // namespace weft
