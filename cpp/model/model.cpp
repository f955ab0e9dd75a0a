#include "model/model.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "int8/select.h"
#include "kernels/select.h"
#include "model/step.h"

namespace weft {
namespace {

const ModelSpec& checked(const ModelSpec& spec) {
    check(spec);
    return spec;
}

}  // namespace

Model::Model(const ModelSpec& spec, const std::string& path, int num_threads,
             const std::optional<SharedFile>& file)
    : spec_(checked(spec)),
      kernels_(kernels_of(path, spec.element)),
      float32_kernels_(kernels_of(path, Element::kFloat32)),
      int8_kernels_(int8_kernels_of(path)),
      pool_(checked_threads(num_threads)),
      weights_(spec_, file, pool_),
      expert_loads_(spec_.layers.size()) {
    std::size_t num_convolutions = 0;
    std::size_t kv_start = 0;
    std::size_t slot_start = 0;
    for (const LayerSpec& layer : spec_.layers) {
        places_.push_back(num_convolutions);
        if (layer.conv_width > 0) num_convolutions++;
        kv_starts_.push_back(layer.kv_layer ? kv_starts_[static_cast<std::size_t>(*layer.kv_layer)] : kv_start);
        if (layer.stores_kv()) kv_start += static_cast<std::size_t>(spec_.kv_parts()) * spec_.tile_bytes(layer);
        slot_starts_.push_back(slot_start);
        if (layer.recurrence) slot_start += static_cast<std::size_t>(sizes(*layer.recurrence).state_size());
    }
    cross_tiles_.resize(static_cast<std::size_t>(spec_.num_cross_tiles()));
    std::iota(cross_tiles_.begin(), cross_tiles_.end(), 0);
    for (std::size_t i = 0; i < expert_loads_.size(); i++)
        if (spec_.layers[i].experts)
            expert_loads_[i].rows.assign(static_cast<std::size_t>(spec_.layers[i].experts->count), 0);
}

bool Model::load(const std::string& name, const Source& source) {
    const std::lock_guard lock(mutex_);
    return weights_.load(name, source, pool_);
}

bool Model::publish() {
    const std::lock_guard lock(mutex_);
    return weights_.publish();
}

std::string Model::vector_bytes() {
    const std::lock_guard lock(mutex_);
    return weights_.vector_bytes();
}

void Model::set_num_threads(int num_threads) {
    const std::lock_guard lock(mutex_);
    pool_.resize(checked_threads(num_threads));
}

void Model::add_adapter(int id, const AdapterParts& parts) {
    const std::lock_guard lock(mutex_);
    if (id < 1) throw std::invalid_argument("adapter_id must be at least 1");
    if (adapters_.contains(id)) throw std::invalid_argument("adapter_id " + std::to_string(id) + " is taken");
    adapters_.try_emplace(id, spec_, weights_, parts, pool_);
}

void Model::remove_adapter(int id) {
    const std::lock_guard lock(mutex_);
    if (adapters_.erase(id) == 0)
        throw std::invalid_argument("adapter_id " + std::to_string(id) + " is that of no adapter");
}

// Adapters by row of the step; empty if no sequence has one.
std::vector<const Adapter*> Model::adapters_of(const Batch& batch) const {
    std::vector<const Adapter*> by_row;
    bool is_any = false;
    for (std::size_t i = 0; i < batch.adapter_ids.size(); i++) {
        const int id = batch.adapter_ids[i];
        const auto found = adapters_.find(id);
        if (id != 0 && found == adapters_.end())
            throw std::invalid_argument("adapter_ids[" + std::to_string(i) + "] is " + std::to_string(id) +
                                        "; it must be 0 or that of an adapter");
        is_any = is_any || id != 0;
        const auto rows = static_cast<std::size_t>(batch.query_starts[i + 1] - batch.query_starts[i]);
        by_row.insert(by_row.end(), rows, id == 0 ? nullptr : &found->second);
    }
    if (!is_any) by_row.clear();
    return by_row;
}

std::byte* Model::kv_of(int layer) const {
    return kv_.data() + kv_starts_[static_cast<std::size_t>(layer)] * static_cast<std::size_t>(kv_shape_.num_tiles());
}

std::byte* Model::states_of(int layer) const {
    return states_.data() + places_[static_cast<std::size_t>(layer)] *
                                static_cast<std::size_t>(kv_shape_.num_blocks) * spec_.state_bytes();
}

float* Model::slots_of(int layer) const {
    return reinterpret_cast<float*>(slots_.data()) +
           slot_starts_[static_cast<std::size_t>(layer)] * static_cast<std::size_t>(kv_shape_.num_state_slots);
}

void Model::allocate_kv(std::int64_t num_blocks, std::int64_t block_size, std::int64_t num_state_slots) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (!spec_.is_causal) throw std::invalid_argument("a model that is not causal keeps no keys and values");
    if (num_blocks < 1 || num_blocks > kMost) throw std::invalid_argument("num_blocks must be at least 1");
    if (block_size < 1 || block_size > kMost) throw std::invalid_argument("block_size must be at least 1");
    if (num_state_slots < 0 || num_state_slots > kMost) throw std::invalid_argument("num_state_slots must be at least 0");
    const std::size_t slot_bytes = spec_.slot_size() * sizeof(float);
    constexpr std::size_t kMostBytes = std::size_t{1} << 48;
    if (slot_bytes > 0 && static_cast<std::size_t>(num_state_slots) > kMostBytes / slot_bytes)
        throw std::invalid_argument("num_state_slots must be small enough for 2^48 bytes");
    const KvShape shape{num_blocks, block_size, num_state_slots};
    if (shape.num_slots() > kMost - kLanes)
        throw std::invalid_argument("num_blocks * block_size must be less than 2^31 - 16");
    const std::lock_guard lock(mutex_);
    kv_ = Region();  // released first, so that two pools never exist at once
    states_ = Region();
    slots_ = Region();
    kv_shape_ = {};
    const auto num_tiles = static_cast<std::size_t>(shape.num_tiles());
    kv_ = Region(num_tiles * kLanes * spec_.kv_bytes_per_token(), false);
    if (spec_.has_states())
        states_ = Region(spec_.num_convolutions() * static_cast<std::size_t>(num_blocks) * spec_.state_bytes(), false);
    if (slot_bytes > 0 && num_state_slots > 0)
        slots_ = Region(static_cast<std::size_t>(num_state_slots) * slot_bytes, false);
    // The first keys and values of a layer use small pages: otherwise the first token would allocate, and clear, a
    // huge page in each, 120 MB for 30 layers, whatever the model's size.
    std::size_t begin = 0;
    for (const LayerSpec& layer : spec_.layers)
        for (int part = 0; layer.stores_kv() && part < spec_.kv_parts(); part++) {
            const std::size_t end = begin + num_tiles * spec_.tile_bytes(layer);
            kv_.use_huge_pages(begin + kHugePage, end);
            begin = end;
        }
    kv_shape_ = shape;
}

void Model::make_room(const Plan& plan, std::size_t num_sequences, std::size_t num_logits) {
    const auto rows = static_cast<std::size_t>(plan.rows);
    const std::size_t most = std::max(rows, num_logits);  // a row may be requested twice
    const int act = kernels_.activation_bytes;
    const int hidden = spec_.padded_hidden();
    const int mixed = spec_.most_mixed();
    space_.hidden.make_room(rows, hidden, sizeof(float));
    space_.normed.make_room(most, hidden, act);
    const int made = spec_.latent ? spec_.num_heads * spec_.padded_query() : 0;
    const int widest = round_up(std::max(spec_.most_made(), made), kPanelColumns);
    space_.wide.make_room(most, std::max(widest, hidden), sizeof(float));
    // As wide as the output, because both have the same stride.
    space_.query.make_room(rows, mixed, act);
    space_.attended.make_room(rows, mixed, act);
    space_.inner.make_room(most, spec_.most_inner(), spec_.is_int8() ? sizeof(float) : act);
    if (spec_.is_int8()) {
        const int low = spec_.latent ? round_up(spec_.latent->query_rank, kLanes) : 0;
        space_.rounded.make_room(most, std::max({hidden, spec_.most_inner(), spec_.most_out_depth(), low}),
                                 weights_.most_groups());
    }
    space_.experts.make_room(spec_, most, act, weights_.most_groups());
    space_.latent.make_room(spec_, most, act, pool_.size());
    space_.convolution.make_room(spec_, num_sequences, pool_.size());
    if (spec_.has_recurrences()) space_.convolved.make_room(rows, spec_.most_convolved(), sizeof(float));
    std::size_t pairs = 0;
    for (const Rope& rope : spec_.ropes) pairs += rope.frequencies.size();
    grow(space_.rotations, rows * 2 * pairs * sizeof(float));
    if (!spec_.is_causal) grow(space_.tiles, 2 * plan.tiles.size() * spec_.most_tile_bytes());
    grow(space_.gathered, 2 * plan.gathers.size() * spec_.most_tile_bytes());
    if (spec_.per_layer_size > 0) {
        space_.inputs.make_room(rows, spec_.padded_inputs(), sizeof(float));
        space_.gated.make_room(most, spec_.padded_input(), act);
    }
    space_.last_hidden.make_room(num_logits, hidden, sizeof(float));
    space_.last_attended.make_room(num_logits, mixed, act);
    make_scratch(plan);
}

// Makes room for the memory of attention, which is the same for all layers.
void Model::make_scratch(const Plan& plan) {
    scratch_bytes_ = 0;
    int places = pool_.size();
    for (const LayerSpec& layer : spec_.layers) {
        if (!layer.has_attention()) continue;
        const Heads heads = spec_.heads_of(layer);
        const AttentionTasks tasks(plan, spec_, heads, pool_.size());
        const int num_shares = shares_of_task(tasks, spec_, heads, plan.max_tiles, pool_.size());
        scratch_bytes_ = std::max(scratch_bytes_, attention_scratch(tasks.heads, plan.max_tokens * heads.group(),
                                                                    heads.padded_dim(), plan.max_tiles, num_shares));
        // One place per thread if each thread has its own task, one per task if threads share tasks.
        if (num_shares > 1) places = std::max(places, tasks.count);
        if (spec_.has_like_heads()) break;
    }
    if (spec_.num_cross_keys > 0)
        scratch_bytes_ = std::max(scratch_bytes_, attention_scratch(1, plan.max_tokens, spec_.padded_dim(),
                                                                    spec_.num_cross_tiles(), 1));
    scratch_bytes_ = (scratch_bytes_ + 4095) / 4096 * 4096;
    grow(space_.scratch, scratch_bytes_ * static_cast<std::size_t>(places));
}

void Model::check_loaded() const {
    if (const std::string name = weights_.missing(); !name.empty())
        throw std::invalid_argument("tensor " + name + " was not loaded");
}

void Model::embed(std::span<const std::int32_t> token_ids, std::span<float> out) {
    const std::lock_guard lock(mutex_);
    check_loaded();
    const auto size = static_cast<std::size_t>(spec_.hidden_size);
    if (spec_.joins_hidden || out.size() != token_ids.size() * size)
        throw std::invalid_argument("out must have a row of hidden_size for each token, of a model that has embeddings");
    for (const std::int32_t token : token_ids)
        if (token < 0 || token >= spec_.vocab_size) throw std::invalid_argument("token_ids must be of the vocabulary");
    for (std::size_t i = 0; i < token_ids.size(); i++) weights_.embed(token_ids[i], out.data() + i * size);
}

void Model::logits(std::span<const float> hidden, std::span<float> outputs) {
    const std::lock_guard lock(mutex_);
    check_loaded();
    const auto size = static_cast<std::size_t>(spec_.hidden_size);
    const std::size_t rows = hidden.size() / size;
    if (!spec_.has_head || rows == 0 || rows > 1 << 20 || hidden.size() != rows * size ||
        outputs.size() != rows * static_cast<std::size_t>(spec_.output_columns()))
        throw std::invalid_argument("hidden and outputs must have as many rows, of a model that has a head");
    const Batch batch;
    Plan plan;
    plan.rows = static_cast<int>(rows);
    plan.max_tokens = 1;
    make_room(plan, 0, rows);
    Step step(*this, batch, plan, outputs, {});
    step.run_head(hidden);
}

void Model::forward(const Batch& batch, std::span<float> outputs, std::span<float> hidden) {
    const std::lock_guard lock(mutex_);
    check_loaded();
    const Plan plan = make_plan(spec_, kv_shape_, batch, kernels_.attention_rows, pool_.size());
    if (outputs.size() != batch.logit_rows.size() * static_cast<std::size_t>(spec_.output_columns()))
        throw std::invalid_argument("the result must have a row of output columns for each of logit_rows");
    const std::size_t wanted = batch.wants_hidden ? batch.token_ids.size() : 0;
    if (hidden.size() != wanted * static_cast<std::size_t>(spec_.hidden_size))
        throw std::invalid_argument("hidden must have a row of hidden_size for each row, where it is wanted");
    if (batch.wants_hidden && (!spec_.has_head || spec_.has_norm_of_sum()))
        throw std::invalid_argument("hidden is of a model that has a head, and a norm before it");
    std::vector<const Adapter*> adapters = adapters_of(batch);
    make_room(plan, batch.query_starts.size() - 1, batch.logit_rows.size());
    Step step(*this, batch, plan, outputs, std::move(adapters));
    step.run(hidden);
    for (int part = 0; part < kNumParts; part++)
        seconds_[static_cast<std::size_t>(part)] += step.seconds()[static_cast<std::size_t>(part)];
}

}  // namespace weft
