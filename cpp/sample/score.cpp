#include "sample/score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "sample/row.h"

namespace weft {

std::optional<Scores> score(const Kernels& kernels, std::span<const float> logits,
                            std::span<const std::int32_t> given, int num_best) {
    const auto count = static_cast<int>(logits.size());
    for (const std::int32_t token : given)
        if (token < 0 || token >= count) throw std::invalid_argument("given has a token that the row has not");
    if (num_best < 0) throw std::invalid_argument("num_best must be at least 0");
    const Row row(kernels, logits);
    if (!row.is_finite()) return std::nullopt;
    std::vector<float> logprobs(logits.size());
    const double log_sum = std::log(kernels.sum_exp(logits.data(), count, row.largest()));
    kernels.log_softmax(logits.data(), count, static_cast<double>(row.largest()), log_sum, logprobs.data());
    const auto of = [&](std::int32_t token) { return logprobs[static_cast<std::size_t>(token)]; };
    Scores scores;
    for (const std::int32_t token : given) {
        scores.tokens.push_back(token);
        scores.logprobs.push_back(of(token));
        scores.ranks.push_back(kernels.count_from(logprobs.data(), count, of(token)));
    }
    const int wanted = std::min(num_best, count);
    if (wanted == 0) return scores;
    // Of log-probabilities, not of logits: different logits may have become equal.
    const Row rounded(kernels, logprobs);
    const float floor = std::max(rounded.nth_largest(wanted), std::numeric_limits<float>::lowest());
    std::vector<int> best = rounded.tokens_from(floor);
    std::stable_sort(best.begin(), best.end(), [&](int a, int b) { return of(a) > of(b); });
    best.resize(std::min(best.size(), static_cast<std::size_t>(wanted)));
    for (std::size_t i = 0; i < best.size(); i++) {
        scores.tokens.push_back(best[i]);
        scores.logprobs.push_back(of(best[i]));
        scores.ranks.push_back(static_cast<std::int32_t>(i + 1));
    }
    return scores;
}

}  // namespace weft
