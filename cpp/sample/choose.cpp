#include "sample/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "sample/row.h"

namespace weft {
namespace {

constexpr std::size_t kFew = 1024;
constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr float kNever = -std::numeric_limits<float>::infinity();

void check_tokens(Tokens tokens, std::size_t vocab_size, const char* field) {
    for (const std::int32_t token : tokens)
        if (token < 0 || static_cast<std::size_t>(token) >= vocab_size)
            throw std::invalid_argument(std::string(field) + " has token " + std::to_string(token) +
                                        "; the vocabulary has " + std::to_string(vocab_size));
}

bool has_any(std::span<const float> row) {
    return std::any_of(row.begin(), row.end(), [](float logit) { return logit > kNever; });
}

// A mask that would leave nothing is passed over, here and below.
void keep_only(std::vector<float>& row, Tokens allowed) {
    std::vector<float> kept(row.size(), kNever);
    for (const std::int32_t token : allowed)
        kept[static_cast<std::size_t>(token)] = row[static_cast<std::size_t>(token)];
    if (has_any(kept)) row.swap(kept);
}

void take_out(std::vector<float>& row, Tokens forbidden) {
    if (forbidden.empty()) return;
    std::vector<float> before;
    for (const std::int32_t token : forbidden) before.push_back(row[static_cast<std::size_t>(token)]);
    for (const std::int32_t token : forbidden) row[static_cast<std::size_t>(token)] = kNever;
    if (has_any(row)) return;
    for (std::size_t i = 0; i < forbidden.size(); i++)
        row[static_cast<std::size_t>(forbidden[i])] = before[i];
}

// Repetition over all that was seen, each token once; frequency and presence over the output.
void penalise(std::vector<float>& row, const Choice& choice) {
    if (choice.repetition_penalty != 1.0F) {
        std::vector<std::int32_t> seen(choice.seen.begin(), choice.seen.end());
        std::sort(seen.begin(), seen.end());
        seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
        for (const std::int32_t token : seen) {
            float& logit = row[static_cast<std::size_t>(token)];
            logit = logit > 0 ? logit / choice.repetition_penalty : logit * choice.repetition_penalty;
        }
    }
    if (choice.frequency_penalty == 0.0F && choice.presence_penalty == 0.0F) return;
    std::unordered_map<std::int32_t, int> counts;
    for (const std::int32_t token : choice.output) counts[token]++;
    for (const auto& [token, count] : counts) {
        float& logit = row[static_cast<std::size_t>(token)];
        logit -= choice.frequency_penalty * static_cast<float>(count);
        logit -= choice.presence_penalty;
    }
}

void constrain(std::vector<float>& row, const Choice& choice) {
    if (choice.allowed) keep_only(row, *choice.allowed);
    take_out(row, choice.forbidden);
    take_out(row, choice.forbidden_ends);
    for (std::size_t i = 0; i < choice.biased.size(); i++)
        row[static_cast<std::size_t>(choice.biased[i])] += choice.bias[i];
    penalise(row, choice);
}

struct Scored {
    int token;
    double score;
    double weight;  // e^(score - the best)
};

// What a choice by temperature goes through, from the row to the token.
struct Draw {
    const Kernels& kernels;
    const Row& row;
    const Choice& choice;

    double score_of(float logit) const { return static_cast<double>(logit) / choice.temperature; }
    double score_of(int token) const { return score_of(row.logits()[static_cast<std::size_t>(token)]); }
    double best() const { return score_of(row.largest()); }

    int run() const {
        const double floor = lowest_score();
        if (choice.top_p < 1.0) return draw_among(nucleus(floor));
        if (floor > kNever) return draw_among(tokens_of(scored_from(floor)));
        return draw_from(row.logits());
    }

    // Of min-p and top-k; ties with the k-th best stay.
    double lowest_score() const {
        double floor = kNever;
        if (choice.min_p > 0.0) floor = best() + std::log(choice.min_p);
        if (choice.top_k > 0 && static_cast<std::size_t>(choice.top_k) < row.logits().size())
            floor = std::max(floor, score_of(row.nth_largest(static_cast<int>(choice.top_k))));
        return floor;
    }

    // Tokens that may come and score at least `floor` but less than `below`, ascending.
    std::vector<Scored> scored_from(double floor, double below = kEndless) const {
        // In float32, with room for its rounding; then exactly.
        float from = static_cast<float>(floor * choice.temperature);
        for (int i = 0; i < 2; i++) from = std::nextafter(from, kNever);
        std::vector<Scored> scored;
        for (const int token : row.tokens_from(std::max(from, std::numeric_limits<float>::lowest())))
            if (const double score = score_of(token); score >= floor && score < below)
                scored.push_back({token, score, std::exp(score - best())});
        return scored;
    }

    // The fewest best tokens whose weights reach top-p of all; at least one. Of equals the smaller first.
    std::vector<int> nucleus(double floor) const {
        if (floor == kNever) return nucleus_of_row();
        std::vector<Scored> scored = scored_from(floor);
        double total = 0.0;
        for (const Scored& one : scored) total += one.weight;
        keep_until(choice.top_p * total, 0.0, scored);
        return tokens_of(scored);
    }

    // The best come in bands of the row, of which only the last has to be sorted.
    std::vector<int> nucleus_of_row() const {
        const std::span<const float> logits = row.logits();
        const double goal = choice.top_p * kernels.sum_weights(logits.data(), static_cast<int>(logits.size()),
                                                               choice.temperature, best(), kNever);
        const double end = score_of(row.smallest());
        std::vector<Scored> kept;
        double before = 0.0;
        double above = kEndless;
        for (double depth = 1.0;; depth += std::max(1.0, depth / 8.0)) {
            const double lowest = std::max(end, best() - depth);
            std::vector<Scored> band = scored_from(lowest, above);
            double sum = before;
            for (const Scored& one : band) sum += one.weight;
            const bool is_last = !(sum < goal) || lowest == end;
            if (is_last) keep_until(goal, before, band);
            kept.insert(kept.end(), band.begin(), band.end());
            if (is_last) return tokens_of(kept);
            before = sum;
            above = lowest;
        }
    }

    // Leaves the fewest best by which the sum of weights, from `before` on, reaches the goal.
    static void keep_until(double goal, double before, std::vector<Scored>& scored) {
        std::stable_sort(scored.begin(), scored.end(),
                         [](const Scored& a, const Scored& b) { return a.score > b.score; });
        const bool needs_one = before == 0.0;
        double sum = before;
        std::size_t count = 0;
        for (; count < scored.size(); count++) {
            sum += scored[count].weight;
            if (!(sum - scored[count].weight < goal) && !(needs_one && count == 0)) break;
        }
        scored.resize(count);
    }

    static std::vector<int> tokens_of(const std::vector<Scored>& scored) {
        std::vector<int> tokens;
        for (const Scored& one : scored) tokens.push_back(one.token);
        std::sort(tokens.begin(), tokens.end());
        return tokens;
    }

    int draw_from(std::span<const float> logits) const {
        int token = 0;
        kernels.draw({logits.data(), static_cast<int>(logits.size()), choice.temperature, choice.key}, token);
        return token;
    }

    int draw_among(const std::vector<int>& tokens) const {
        const std::span<const float> logits = row.logits();
        if (tokens.size() <= kFew) {
            const DrawTask task{logits.data(), static_cast<int>(logits.size()), choice.temperature, choice.key};
            return kernels.draw_among(task, tokens.data(), static_cast<int>(tokens.size()));
        }
        // A draw from a whole row looks at the noise of few tokens only.
        std::vector<float> left(logits.size(), kNever);
        for (const int token : tokens)
            left[static_cast<std::size_t>(token)] = logits[static_cast<std::size_t>(token)];
        return draw_from(left);
    }
};

int pick(const Kernels& kernels, const Row& row, const Choice& choice) {
    const std::span<const float> logits = row.logits();
    if (choice.temperature == 0.0 || !row.is_finite())
        return static_cast<int>(std::find(logits.begin(), logits.end(), row.largest()) - logits.begin());
    return Draw{kernels, row, choice}.run();
}

}  // namespace

std::optional<int> choose(const Kernels& kernels, std::span<const float> logits, const Choice& choice) {
    check_tokens(choice.allowed.value_or(Tokens{}), logits.size(), "allowed");
    check_tokens(choice.forbidden, logits.size(), "forbidden");
    check_tokens(choice.forbidden_ends, logits.size(), "forbidden_ends");
    check_tokens(choice.biased, logits.size(), "biased");
    check_tokens(choice.seen, logits.size(), "seen");
    check_tokens(choice.output, logits.size(), "output");
    if (choice.bias.size() != choice.biased.size())
        throw std::invalid_argument("bias must have an entry for each of biased");
    if (!Row(kernels, logits).is_finite()) return std::nullopt;
    std::vector<float> constrained(logits.begin(), logits.end());
    constrain(constrained, choice);
    return pick(kernels, Row(kernels, constrained), choice);
}

}  // namespace weft
