#include "sample/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sample/row.h"

namespace weft {
namespace {

// Returns the best tokens of a row, best first.
std::vector<int> best_of(const Row& row, int wanted) {
    const float floor = std::max(row.nth_largest(wanted), std::numeric_limits<float>::lowest());
    std::vector<int> best = row.tokens_from(floor);
    const auto is_better = [&](int a, int b) {
        const float left = row.logits()[static_cast<std::size_t>(a)];
        const float right = row.logits()[static_cast<std::size_t>(b)];
        return left > right;
    };
    std::stable_sort(best.begin(), best.end(), is_better);
    best.resize(std::min(best.size(), static_cast<std::size_t>(wanted)));
    return best;
}

}  // namespace

Scores score(const Passes& passes, std::span<const float> logits, std::span<const std::int32_t> given, int num_best,
             bool is_normalised, std::vector<float>& space) {
    Scores scores;
    const auto count = static_cast<int>(logits.size());
    const Row row(passes, logits);
    if (!row.is_finite()) return scores;
    scores.is_finite = true;
    std::span<const float> values = logits;
    if (is_normalised) {
        space.resize(logits.size());
        const double log_sum = std::log(passes.sum_exp(logits.data(), count, row.largest()));
        passes.log_softmax(logits.data(), count, static_cast<double>(row.largest()), log_sum, space.data());
        values = space;
    }
    const auto add = [&](std::int32_t token, std::int32_t rank) {
        scores.tokens.push_back(token);
        scores.values.push_back(values[static_cast<std::size_t>(token)]);
        scores.ranks.push_back(rank);
    };
    for (const std::int32_t token : given)
        add(token, passes.count_from(values.data(), count, values[static_cast<std::size_t>(token)]));
    const int wanted = num_best < 0 ? count : std::min(num_best, count);
    if (wanted == 0) return scores;
    // Ranks are those of the values, not of logits: different logits may have equal values.
    std::int32_t rank = 0;
    for (const int token : best_of(Row(passes, values), wanted)) add(token, ++rank);
    return scores;
}

}  // namespace weft
