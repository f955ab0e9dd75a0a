#include "encoder/encoder.h"

#include <algorithm>
#include <stdexcept>

#include "encoder/step.h"
#include "kernels/select.h"

namespace weft {
namespace {

const EncoderSpec& checked(const EncoderSpec& spec) {
    check(spec);
    return spec;
}

}  // namespace

Encoder::Encoder(const EncoderSpec& spec, const std::string& path, int num_threads)
    : spec_(checked(spec)),
      kernels_(kernels_of(path, spec.element)),
      pool_(checked_threads(num_threads)),
      weights_(spec_) {}

bool Encoder::load(const std::string& name, const Source& source) {
    const std::lock_guard lock(mutex_);
    return weights_.load(name, source, pool_);
}

std::size_t Encoder::tile_bytes() const {
    return static_cast<std::size_t>(spec_.query_size()) * kLanes *
           static_cast<std::size_t>(element_bytes(spec_.element));
}

void Encoder::make_room(const EncoderPlan& plan, std::size_t num_wanted) {
    const auto rows = static_cast<std::size_t>(plan.rows);
    const auto most = std::max(rows, num_wanted);  // a row may be wanted twice
    const int act = kernels_.activation_bytes;
    const int hidden = spec_.padded_hidden();
    const int query = spec_.query_size();
    space_.hidden.make_room(rows, hidden, sizeof(float));
    space_.normed.make_room(most, hidden, act);
    space_.wide.make_room(most, std::max(spec_.qkv_columns(), hidden), sizeof(float));
    space_.query.make_room(rows, query, act);
    space_.attended.make_room(rows, query, act);
    space_.inner.make_room(most, spec_.padded_inner(), act);
    std::size_t pairs = 0;
    for (const Rope& rope : spec_.ropes) pairs += rope.frequencies.size();
    grow(space_.rotations, rows * 2 * pairs * sizeof(float));
    grow(space_.keys, static_cast<std::size_t>(plan.num_tiles) * tile_bytes());
    grow(space_.values, static_cast<std::size_t>(plan.num_tiles) * tile_bytes());
    space_.last_hidden.make_room(num_wanted, hidden, sizeof(float));
    space_.last_attended.make_room(num_wanted, query, act);
    scratch_bytes_ = attention_scratch(1, plan.max_tokens, spec_.padded_dim(), plan.max_tiles);
    scratch_bytes_ = (scratch_bytes_ + 4095) / 4096 * 4096;
    grow(space_.scratch, scratch_bytes_ * static_cast<std::size_t>(pool_.size()));
}

void Encoder::forward(const EncoderBatch& batch, std::span<float> states) {
    const std::lock_guard lock(mutex_);
    if (const std::string name = weights_.missing(); !name.empty())
        throw std::invalid_argument("tensor " + name + " was not loaded");
    const EncoderPlan plan = make_encoder_plan(spec_, batch, kernels_.attention_rows);
    if (states.size() != batch.wanted.size() * static_cast<std::size_t>(spec_.hidden_size))
        throw std::invalid_argument("states must have a row of hidden_size for each of logit_rows");
    if (batch.wanted.empty()) return;
    make_room(plan, batch.wanted.size());
    EncoderStep(*this, batch, plan, states).run();
}

}  // namespace weft
