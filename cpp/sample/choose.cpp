#include "sample/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft {
namespace {

constexpr double kNoScore = -std::numeric_limits<double>::infinity();
constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();

float& logit_of(std::vector<float>& row, std::int32_t token) { return row[static_cast<std::size_t>(token)]; }

bool has_any(std::span<const float> row) {
    return std::any_of(row.begin(), row.end(), [](float logit) { return logit > kNever; });
}

// A restriction that would leave no token is skipped, here and below.
void keep_only(std::vector<float>& row, Tokens allowed) {
    if (std::none_of(allowed.begin(), allowed.end(), [&](std::int32_t token) { return logit_of(row, token) > kNever; }))
        return;
    std::vector<float> kept;
    kept.reserve(allowed.size());
    for (const std::int32_t token : allowed) kept.push_back(logit_of(row, token));
    std::fill(row.begin(), row.end(), kNever);
    for (std::size_t i = 0; i < allowed.size(); i++) logit_of(row, allowed[i]) = kept[i];
}

void take_out(std::vector<float>& row, Tokens forbidden) {
    if (forbidden.empty()) return;
    std::vector<float> before;
    before.reserve(forbidden.size());
    for (const std::int32_t token : forbidden) before.push_back(logit_of(row, token));
    for (const std::int32_t token : forbidden) logit_of(row, token) = kNever;
    if (has_any(row)) return;
    for (std::size_t i = 0; i < forbidden.size(); i++) logit_of(row, forbidden[i]) = before[i];
}

// Calls `work` once per distinct token, with its number of occurrences.
template <class Work>
void count(Tokens tokens, std::size_t vocab_size, std::vector<std::int32_t>& counts, const Work& work) {
    counts.resize(vocab_size);
    for (const std::int32_t token : tokens) counts[static_cast<std::size_t>(token)]++;
    for (const std::int32_t token : tokens) {
        std::int32_t& times = counts[static_cast<std::size_t>(token)];
        if (times > 0) work(token, times);
        times = 0;
    }
}

// Applies the repetition penalty to all seen tokens, each once; frequency and presence penalties to the output.
void penalise(std::vector<float>& row, const Choice& choice, std::vector<std::int32_t>& counts) {
    if (choice.repetition_penalty != 1.0F) {
        count(choice.seen, row.size(), counts, [&](std::int32_t token, std::int32_t) {
            float& logit = logit_of(row, token);
            logit = logit > 0 ? logit / choice.repetition_penalty : logit * choice.repetition_penalty;
        });
    }
    if (choice.frequency_penalty == 0.0F && choice.presence_penalty == 0.0F) return;
    count(choice.output, row.size(), counts, [&](std::int32_t token, std::int32_t times) {
        float& logit = logit_of(row, token);
        logit -= choice.frequency_penalty * static_cast<float>(times);
        logit -= choice.presence_penalty;
    });
}

void constrain(const Choice& choice, Scratch& scratch) {
    std::vector<float>& row = scratch.row;
    keep_only(row, choice.allowed);
    take_out(row, choice.forbidden);
    take_out(row, choice.forbidden_ends);
    for (std::size_t i = 0; i < choice.biased.size(); i++) logit_of(row, choice.biased[i]) += choice.bias[i];
    penalise(row, choice, scratch.counts);
}

void copy_masked(const Passes& passes, std::span<const float> logits, const Choice& choice, Scratch& scratch) {
    scratch.row.resize(logits.size());
    if (choice.mask.empty())
        std::copy(logits.begin(), logits.end(), scratch.row.begin());
    else
        passes.apply_mask(logits.data(), choice.mask.data(), static_cast<int>(logits.size()), scratch.row.data());
}

// A random choice by temperature, from a row with a finite maximum.
class Draw {
public:
    Draw(const Passes& passes, const Row& row, const Choice& choice) : passes_(passes), row_(row), choice_(choice) {
        task_ = {row.logits().data(), row.maxima(), row.size(), row.best(), choice.temperature, choice.key,
                 lowest_logit(), kLowest, row.size()};
    }

    // The winner of a draw from all tokens also wins a draw from the nucleus, if it belongs to it; otherwise the
    // tokens before it are drawn from.
    int run() {
        for (;;) {
            const int token = passes_.draw(task_);
            if (token == task_.best || choice_.top_p >= 1.0 || is_in_nucleus(token)) return token;
            task_.end = logit_of(token);
            task_.end_token = token;
        }
    }

    // Returns the tokens that may be drawn, ascending.
    std::vector<int> candidates() const {
        return choice_.top_p < 1.0 ? nucleus() : row_.tokens_from(task_.floor);
    }

    double score_of(int token) const { return to_score(logit_of(token)); }

private:
    float logit_of(int token) const { return row_.logits()[static_cast<std::size_t>(token)]; }
    double to_score(float logit) const { return static_cast<double>(logit) / choice_.temperature; }

    // The bound of min-p and top-k, as the lowest logit whose score is not below it; ties with the k-th best stay.
    float lowest_logit() const {
        const double best = to_score(row_.largest());
        double floor = choice_.min_p > 0.0 ? best + std::log(choice_.min_p) : kNoScore;
        if (choice_.top_k > 0 && choice_.top_k < row_.size())
            floor = std::max(floor, to_score(row_.nth_largest(choice_.top_k)));
        floor = std::min(floor, best);
        if (!(floor > to_score(kLowest))) return kLowest;
        float logit = static_cast<float>(floor * choice_.temperature);
        while (to_score(logit) >= floor) logit = std::nextafter(logit, kNever);
        while (to_score(logit) < floor) logit = std::nextafter(logit, row_.largest());
        return logit;
    }

    // Adds parts of the row until the sum of weights is certainly large enough; only all parts show that it is not.
    bool is_in_nucleus(int token) const {
        const Weights from = passes_.weigh(task_, token, Part::kFrom);
        for (const Part part : {Part::kFrom, Part::kMaxima, Part::kBelow}) {
            const double rest = part == Part::kFrom ? 0.0 : passes_.weigh(task_, token, part).all;
            const double all = from.all + rest;
            const double spare = choice_.top_p * all - from.before;
            const double unsure = 2.0 * kWeightsError * all;
            if (spare > unsure) return true;
            if (spare < -unsure && part == Part::kBelow) return false;
        }
        const std::vector<int> tokens = nucleus();
        return std::binary_search(tokens.begin(), tokens.end(), token);
    }

    // The smallest set of best tokens whose weights reach top-p of the total; at least one. Of equal logits, smaller
    // ids come first.
    std::vector<int> nucleus() const {
        std::vector<int> tokens = row_.tokens_from(task_.floor);
        std::stable_sort(tokens.begin(), tokens.end(), [this](int a, int b) { return logit_of(a) > logit_of(b); });
        const double best = to_score(row_.largest());
        std::vector<double> weights;
        weights.reserve(tokens.size());
        double all = 0.0;
        for (const int token : tokens) all += weights.emplace_back(std::exp(score_of(token) - best));
        double sum = 0.0;
        std::size_t size = 0;
        for (; size < tokens.size(); size++) {
            sum += weights[size];
            if (size > 0 && !(sum - weights[size] < choice_.top_p * all)) break;
        }
        tokens.resize(size);
        std::sort(tokens.begin(), tokens.end());
        return tokens;
    }

    const Passes& passes_;
    const Row& row_;
    const Choice& choice_;
    DrawTask task_;
};

bool is_drawn(const Row& row, const Choice& choice) { return choice.temperature != 0.0 && row.is_finite(); }

int pick(const Passes& passes, const Row& row, const Choice& choice) {
    return is_drawn(row, choice) ? Draw(passes, row, choice).run() : row.best();
}

}  // namespace

Chosen choose(const Passes& passes, std::span<const float> logits, const Choice& choice, Scratch& scratch) {
    const Row row(passes, logits);
    if (!row.is_finite()) return {};
    if (choice.forced >= 0) return {choice.forced, true};
    if (!choice.changes_row()) return {pick(passes, row, choice), true};
    copy_masked(passes, logits, choice, scratch);
    if (!has_any(scratch.row)) return {};
    constrain(choice, scratch);
    return {pick(passes, Row(passes, scratch.row), choice), true};
}

std::span<const float> masked(const Passes& passes, std::span<const float> logits, const Choice& choice,
                              Scratch& scratch) {
    if (choice.mask.empty()) return logits;
    copy_masked(passes, logits, choice, scratch);
    return scratch.row;
}

std::span<const float> processed(const Passes& passes, std::span<const float> logits, const Choice& choice,
                                 Scratch& scratch) {
    copy_masked(passes, logits, choice, scratch);
    if (choice.forced >= 0) {
        keep_only(scratch.row, {&choice.forced, 1});
        return scratch.row;
    }
    constrain(choice, scratch);
    const Row row(passes, scratch.row);
    if (!is_drawn(row, choice)) return scratch.row;
    const Draw draw(passes, row, choice);
    const std::vector<int> tokens = draw.candidates();
    std::vector<float> scores;
    scores.reserve(tokens.size());
    for (const int token : tokens) scores.push_back(static_cast<float>(draw.score_of(token)));
    std::fill(scratch.row.begin(), scratch.row.end(), kNever);
    for (std::size_t i = 0; i < tokens.size(); i++) logit_of(scratch.row, tokens[i]) = scores[i];
    return scratch.row;
}

}  // namespace weft
