#include "model/expert_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "model/share_product.h"

namespace weft {
namespace {

// Number of rows that a thread takes at once for small pieces of work.
constexpr int kFewRows = 8;

bool is_rounded(const Matrix& matrix) { return matrix.is_int8() || matrix.groups; }

// Sets the keys of all but the best groups to the lowest value. Groups are ranked by the sum of their best two keys,
// or by their best key.
void leave_best_groups(const ExpertsSpec& experts, std::vector<float>& keys) {
    if (experts.groups_per_token == experts.num_groups) return;
    const auto size = keys.size() / static_cast<std::size_t>(experts.num_groups);
    std::vector<std::pair<float, std::size_t>> groups;
    for (std::size_t first = 0; first < keys.size(); first += size) {
        float best[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
        for (std::size_t i = first; i < first + size; i++) {
            if (keys[i] > best[0]) best[1] = best[0], best[0] = keys[i];
            else if (keys[i] > best[1]) best[1] = keys[i];
        }
        groups.emplace_back(experts.is_sigmoid ? best[0] + best[1] : best[0], first);
    }
    std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (auto group = groups.begin() + experts.groups_per_token; group != groups.end(); group++)
        std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(group->second), size,
                    -std::numeric_limits<float>::infinity());
}

}  // namespace

void ExpertSpace::make_room(const ModelSpec& spec, std::size_t rows, int activation_bytes, int most_groups) {
    std::size_t most = 0;  // experts per row
    int columns = 0;
    int size = 0;
    for (const LayerSpec& layer : spec.layers) {
        if (!layer.experts) continue;
        most = std::max(most, static_cast<std::size_t>(layer.experts->per_token));
        columns = std::max(columns, round_up(layer.experts->router_columns(), kPanelColumns));
        size = std::max(size, spec.padded_inner(layer.experts->inner_size));
    }
    if (most == 0) return;
    const int hidden = spec.padded_hidden();
    const std::size_t pairs = rows * most;
    if (activation_bytes != sizeof(float)) widened.make_room(rows, hidden, sizeof(float));
    routed.make_room(rows, hidden, activation_bytes);
    logits.make_room(rows, columns, sizeof(float));
    taken.make_room(pairs, hidden, activation_bytes);
    inner.make_room(pairs, size, spec.is_int8() ? sizeof(float) : activation_bytes);
    results.make_room(pairs, hidden, sizeof(float));
    if (!spec.is_int8()) return;
    rounded.make_room(pairs, std::max(hidden, size), most_groups);
}

void ExpertStep::run(const ExpertsSpec& experts, const LayerWeights& weights, const RowsAt& x, const RowsAt& routed,
                     int rows, const RowsAt& out, ExpertLoads& loads) {
    const RowsAt& taken = parts_.space.taken.rows();
    const RowsAt& inner = parts_.space.inner.rows();
    route(experts, weights, routed, rows);
    sort(experts);
    count(loads);
    for_each_row(static_cast<int>(rows_.size()), [&](int place) {
        std::memcpy(taken.row(place), x.row(rows_[static_cast<std::size_t>(place)]),
                    static_cast<std::size_t>(parts_.spec.padded_hidden() * x.element_bytes));
    });
    if (experts.weighs_inputs) weigh_inputs();
    multiply(weights.expert_up, taken, parts_.spec.is_gated ? Finish::kActivate : Finish::kActivateAll, inner);
    multiply(weights.expert_down, inner, Finish::kStore, parts_.space.results.rows());
    for_each_row(rows, [&](int row) { add_up(experts, weights, row, out.floats(row)); });
}

template <class Work>
void ExpertStep::for_each_row(int rows, const Work& work) {
    parts_.pool.share(rows, kFewRows, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) work(row);
    });
}

// Computes logits in float32, whatever the model's type: the choice of experts may depend on the last bit.
void ExpertStep::route(const ExpertsSpec& experts, const LayerWeights& weights, const RowsAt& x, int rows) {
    const Matrix& router = weights.router;
    const bool is_float = x.element_bytes == sizeof(float);
    const RowsAt& wide = is_float ? x : parts_.space.widened.rows();
    if (!is_float)
        for_each_row(rows, [&](int row) {
            const auto* from = reinterpret_cast<const std::uint16_t*>(x.row(row));
            for (int i = 0; i < router.depth; i++) wide.floats(row)[i] = widen_bfloat16(from[i]);
        });
    const GemmTask task = gemm_task(router, wide, rows, Finish::kStore, parts_.space.logits.rows());
    share_panels(parts_.pool, router, task, [&](int, const GemmTask& part) { parts_.float32_kernels.gemm(part); });
    choices_.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(experts.per_token));
    for_each_row(rows, [&](int row) {
        float* logits = parts_.space.logits.rows().floats(row);
        if (experts.is_sigmoid || experts.has_correction) choose_by_scores(experts, weights.router_correction, logits, row);
        else choose_by_logits(experts, logits, row);
        if (experts.has_norms) scale(experts, weights.router_scales, row);
    });
}

// Chooses the experts with the highest `keys`, of equal keys the first, in order of number. Returns the highest key.
float ExpertStep::choose(const ExpertsSpec& experts, const float* keys, Choice* choices) {
    Choice* const end = choices + experts.per_token;
    for (Choice* next = choices; next < end; next++) {
        int best = -1;
        for (int i = 0; i < experts.count; i++) {
            if (best >= 0 && !(keys[i] > keys[best])) continue;
            if (std::none_of(choices, next, [i](const Choice& one) { return one.expert == i; })) best = i;
        }
        *next = {best, 0.0F, 0};
    }
    const float largest = keys[choices->expert];
    std::sort(choices, end, [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
    return largest;
}

// Computes the weights of the chosen experts. NaN logits give NaN weights.
void ExpertStep::choose_by_logits(const ExpertsSpec& experts, const float* logits, int row) {
    Choice* choices = choices_.data() + static_cast<std::ptrdiff_t>(row) * experts.per_token;
    Choice* const end = choices + experts.per_token;
    std::vector<float> left;
    if (experts.groups_per_token < experts.num_groups) {
        left.assign(logits, logits + experts.count);
        leave_best_groups(experts, left);
    }
    const float largest = choose(experts, left.empty() ? logits : left.data(), choices);
    float sum = 0.0F;
    if (experts.is_normalized)
        for (const Choice* one = choices; one < end; one++) sum += std::exp(logits[one->expert] - largest);
    else
        for (int i = 0; i < experts.count; i++) sum += std::exp(logits[i] - largest);
    for (Choice* one = choices; one < end; one++)
        one->weight = std::exp(logits[one->expert] - largest) / sum * experts.scale;
}

// Multiplies the inputs of experts by their weights, which are 1 from then on.
void ExpertStep::weigh_inputs() {
    const RowsAt& taken = parts_.space.taken.rows();
    const bool is_float = taken.element_bytes == sizeof(float);
    for_each_row(static_cast<int>(choices_.size()), [&](int at) {
        Choice& one = choices_[static_cast<std::size_t>(at)];
        for (int i = 0; i < parts_.spec.padded_hidden(); i++) {
            if (is_float) {
                taken.floats(one.place)[i] *= one.weight;
            } else {
                auto& bits = reinterpret_cast<std::uint16_t*>(taken.row(one.place))[i];
                bits = narrow_bfloat16(widen_bfloat16(bits) * one.weight);
            }
        }
        one.weight = 1.0F;
    });
}

// Replaces logits by scores: by logistic functions, or by a softmax over all experts.
void ExpertStep::make_scores(const ExpertsSpec& experts, float* logits) {
    if (experts.is_sigmoid) {
        for (int i = 0; i < experts.count; i++) logits[i] = 1.0F / (1.0F + std::exp(-logits[i]));
        return;
    }
    const float largest = *std::max_element(logits, logits + experts.count);
    float sum = 0.0F;
    for (int i = 0; i < experts.count; i++) {
        logits[i] = std::exp(logits[i] - largest);
        sum += logits[i];
    }
    for (int i = 0; i < experts.count; i++) logits[i] /= sum;
}

// Replaces logits by scores in place.
void ExpertStep::choose_by_scores(const ExpertsSpec& experts, const std::vector<float>& correction, float* logits,
                                  int row) {
    Choice* choices = choices_.data() + static_cast<std::ptrdiff_t>(row) * experts.per_token;
    Choice* const end = choices + experts.per_token;
    std::vector<float> keys(logits, logits + experts.count);
    make_scores(experts, logits);
    for (std::size_t i = 0; i < correction.size(); i++) keys[i] = logits[i] + correction[i];
    leave_best_groups(experts, keys);
    choose(experts, keys.data(), choices);
    float sum = 0.0F;
    for (const Choice* one = choices; one < end; one++) sum += logits[one->expert];
    const float divisor = experts.is_sigmoid ? sum + experts.epsilon : std::max(sum, experts.epsilon);
    for (Choice* one = choices; one < end; one++)
        one->weight = (experts.is_normalized ? logits[one->expert] / divisor : logits[one->expert]) * experts.scale;
}

// Multiplies the weights of a row's experts by the experts' own factors.
void ExpertStep::scale(const ExpertsSpec& experts, const std::vector<float>& scales, int row) {
    Choice* choices = choices_.data() + static_cast<std::ptrdiff_t>(row) * experts.per_token;
    for (Choice* one = choices; one < choices + experts.per_token; one++)
        one->weight *= scales[static_cast<std::size_t>(one->expert)];
}

void ExpertStep::sort(const ExpertsSpec& experts) {
    std::vector<int> starts(static_cast<std::size_t>(experts.count) + 1, 0);
    for (const Choice& one : choices_) starts[static_cast<std::size_t>(one.expert) + 1]++;
    runs_.clear();
    for (std::size_t i = 1; i < starts.size(); i++) {
        const int first = starts[i - 1];
        starts[i] += first;
        if (starts[i] > first) runs_.push_back({static_cast<int>(i) - 1, first, starts[i]});
    }
    rows_.resize(choices_.size());
    for (std::size_t i = 0; i < choices_.size(); i++) {
        Choice& one = choices_[i];
        one.place = starts[static_cast<std::size_t>(one.expert)]++;
        rows_[static_cast<std::size_t>(one.place)] = static_cast<int>(i) / experts.per_token;
    }
}

void ExpertStep::count(ExpertLoads& loads) const {
    int most = 0;
    for (const Run& run : runs_) {
        loads.rows[static_cast<std::size_t>(run.expert)] += run.last - run.first;
        most = std::max(most, run.last - run.first);
    }
    loads.most += most;
}

// Multiplies the panels of all experts with rows, as if they were one matrix.
void ExpertStep::multiply(const std::vector<Matrix>& matrices, const RowsAt& x, Finish finish, const RowsAt& out) {
    const Matrix& any = matrices.front();
    if (is_rounded(any)) round(any, x);
    const int panels = any.num_panels();
    const int all = panels * static_cast<int>(runs_.size());
    const int chunks = parts_.pool.size() * (static_cast<int>(rows_.size()) <= kRowsThatWait ? 3 : 8);
    parts_.pool.share(all, std::max(all / chunks, 1), [&](int, int begin, int end) {
        for (int at = begin; at < end;) {
            const Run& run = runs_[static_cast<std::size_t>(at / panels)];
            const Matrix& matrix = matrices[static_cast<std::size_t>(run.expert)];
            GemmTask task = gemm_task(matrix, x.from(run.first), run.last - run.first, finish, out.from(run.first));
            task.activation = parts_.spec.activation;
            task.swiglu_limit = parts_.spec.swiglu_limit;
            task.swiglu_alpha = parts_.spec.swiglu_alpha;
            task.first_panel = at % panels;
            task.last_panel = std::min(panels, task.first_panel + end - at);
            at += task.last_panel - task.first_panel;
            multiply(matrix, task, run);
        }
    });
}

void ExpertStep::multiply(const Matrix& matrix, const GemmTask& task, const Run& run) const {
    if (!is_rounded(matrix)) return parts_.kernels.gemm(task);
    const RoundedRows& rounded = parts_.space.rounded;
    if (matrix.groups) parts_.int8_kernels.grouped_gemm(rounded.grouped_task(matrix, task, run.first));
    else parts_.int8_kernels.gemm(rounded.int8_task(matrix, task, run.first));
}

void ExpertStep::round(const Matrix& matrix, const RowsAt& x) {
    for_each_row(static_cast<int>(rows_.size()),
                 [&](int place) { parts_.space.rounded.round(parts_.int8_kernels, matrix, x, place); });
}

void ExpertStep::add_up(const ExpertsSpec& experts, const LayerWeights& weights, int row, float* out) const {
    const int hidden = parts_.spec.padded_hidden();
    const RowsAt& results = parts_.space.results.rows();
    const Choice* choices = choices_.data() + static_cast<std::ptrdiff_t>(row) * experts.per_token;
    float* sum = results.floats(choices->place);
    for (int i = 0; i < hidden; i++) sum[i] *= choices->weight;
    for (const Choice* one = choices + 1; one < choices + experts.per_token; one++) {
        const float* result = results.floats(one->place);
        for (int i = 0; i < hidden; i++) sum[i] += result[i] * one->weight;
    }
    if (experts.has_norms)
        parts_.kernels.rms_residual({sum, nullptr, {}, weights.expert_norm_after.vectors(), {}, nullptr,
                                     parts_.spec.hidden_size, hidden, 1.0F, parts_.spec.norm_eps});
    if (experts.shared_size == 0) {
        std::memcpy(out, sum, static_cast<std::size_t>(hidden) * sizeof(float));
        return;
    }
    const float* logits = parts_.space.logits.rows().floats(row);
    const float weight = experts.weighs_shared() ? 1.0F / (1.0F + std::exp(-logits[experts.count])) : 1.0F;
    for (int i = 0; i < hidden; i++) out[i] = sum[i] + out[i] * weight;
}

}  // namespace weft
