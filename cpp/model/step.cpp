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
      attention_scale_(spec_.attention_scale > 0 ? spec_.attention_scale
                                                 : 1.0F / std::sqrt(static_cast<float>(spec_.head_dim))),
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
    if (spec_.per_layer_size > 0) make_inputs();
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

void Step::layer(int index) {
    const auto at = static_cast<std::size_t>(index);
    const LayerWeights& weights = model_.weights_.layers[at];
    const bool is_last = index + 1 == end_layer();
    const LayerSpec& of_layer = spec_.layers[at];
    const auto multiply = [&](const Matrix& matrix) {
        linear(matrix, model_.space_.normed.rows(), all_.count, Finish::kStore, model_.space_.wide.rows());
        lap(Part::kLinear);
    };
    if (of_layer.is_beside) {
        multiply(weights.beside_in);
        recurrence(index, is_last);
    }
    multiply(weights.qkv);
    const bool goes_on = of_layer.has_attention() ? attention(index, is_last)
                         : of_layer.recurrence    ? recurrence(index, is_last)
                                                  : convolution(index, is_last);
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
    recurrence_.run(spec, weights, wide, mixed_by_recurrence(index, all_.attended), model_.slots_of(index), goes_on);
    lap(Part::kAttention);
    return goes_on;
}

// The part of rows for the next product that the layer's recurrence makes.
RowsAt Step::mixed_by_recurrence(int index, const RowsAt& rows) const {
    const int first = spec_.first_mixed(spec_.layers[static_cast<std::size_t>(index)]);
    return {rows.first + static_cast<std::ptrdiff_t>(first) * rows.element_bytes, rows.stride, rows.element_bytes};
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

// Adds the last product to the rows, with norms around the sum; without `adds` only the norms are computed.
void Step::add_rows(const LayerRows& rows, const Norms& norms, bool adds) {
    const RowsAt& wide = model_.space_.wide.rows();
    const int at_once = rows_at_once(model_.pool_, rows.count, model_.kernels_.pieces);
    model_.pool_.share(rows.count, at_once, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) residual(rows.hidden, row, adds ? wide.floats(row) : nullptr, norms);
    });
}

// The last products of attention and of a recurrence beside it; the first of two is added to the rows.
void Step::add_mixed(int index, const LayerRows& rows) {
    const auto at = static_cast<std::size_t>(index);
    const LayerSpec& of_layer = spec_.layers[at];
    const LayerWeights& layer = model_.weights_.layers[at];
    const RowsAt& wide = model_.space_.wide.rows();
    RowsAt attended = rows.attended;
    if (spec_.latent) {
        latent_.leave(layer, attended, rows.count);
        attended = model_.space_.latent.by_head.rows();
    }
    linear(spec_.num_cross_keys > 0 ? layer.cross_o : layer.o, attended, rows.count, Finish::kStore, wide);
    if (!of_layer.is_beside) return;
    add_rows(rows, {none_, none_, none_, true});
    linear(layer.beside_out, mixed_by_recurrence(index, rows.attended), rows.count, Finish::kStore, wide);
}

// The part of a layer after attention: o, the MLP, and the norms around them.
void Step::finish_layer(int index, const LayerRows& rows) {
    const auto at = static_cast<std::size_t>(index);
    const LayerWeights& layer = model_.weights_.layers[at];
    const LayerSpec& of_layer = spec_.layers[at];
    const RowsAt& normed = model_.space_.normed.rows();
    const RowsAt& inner = model_.space_.inner.rows();
    add_mixed(index, rows);
    if (spec_.is_parallel()) {
        add_rows(rows, {none_, none_, layer.mlp_norm_before}, false);
        add_rows(rows, {none_, none_, none_, true});
    } else if (of_layer.has_second_part()) {
        add_rows(rows, {layer.attention_norm_after, layer.attention_norm_sum, layer.mlp_norm_before});
    }
    if (!batch_.deep_embeds.empty()) add_deep(index);
    if (spec_.mlp_size(of_layer) > 0) {
        set_xielu(layer);
        linear(layer.up, normed, rows.count, spec_.is_gated ? Finish::kActivate : Finish::kActivateAll, inner);
        linear(layer.down, inner, rows.count, Finish::kStore, model_.space_.wide.rows());
    }
    if (of_layer.experts) add_experts(index, rows);
    leave_layer(index, rows);
}

// Adds the layer's last product to the rows, and computes the input of the next product.
void Step::leave_layer(int index, const LayerRows& rows) {
    const auto at = static_cast<std::size_t>(index);
    const Weights& weights = model_.weights_;
    const LayerWeights& layer = weights.layers[at];
    const float whole = spec_.has_layer_scales ? layer.scale.front() : 1.0F;
    const bool has_input = spec_.per_layer_size > 0;
    if (has_input) {
        add_rows(rows, {layer.mlp_norm_after, layer.mlp_norm_sum, none_});
        add_input(index, rows);
    }
    const NormWeights& after = has_input ? layer.input_norm : layer.mlp_norm_after;
    const NormWeights& sum = has_input ? none_ : layer.mlp_norm_sum;
    if (index + 1 < end_layer()) add_rows(rows, {after, sum, weights.layers[at + 1].attention_norm_before, false, whole});
    else if (spec_.has_head) add_rows(rows, {after, sum, weights.norm, false, whole});
    else add_rows(rows, {after, spec_.has_norm_of_sum() || at + 1 < spec_.layers.size() ? sum : weights.norm, none_, true, whole});
}

void Step::set_xielu(const LayerWeights& layer) {
    if (spec_.activation != Activation::kXielu) return;
    const auto positive = [](float x) { return std::log1p(std::exp(x)); };
    const float linear = layer.xielu[2].front();
    xielu_ = {positive(layer.xielu[0].front()), linear + positive(layer.xielu[1].front()), linear};
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
               spec_.padded_hidden(), spec_.residual_multiplier, spec_.norm_eps, norms.whole});
}

void Step::linear(const Matrix& matrix, const RowsAt& x, int rows, Finish finish, const RowsAt& out) {
    GemmTask task = gemm_task(matrix, x, rows, finish, out);
    task.activation = spec_.activation;
    task.swiglu_limit = spec_.swiglu_limit;
    task.swiglu_alpha = spec_.swiglu_alpha;
    task.xielu = xielu_;
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
