#include "sample/row.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

namespace weft {

Row::Row(const Passes& passes, std::span<const float> logits)
    : logits_(logits), maxima_((logits.size() + kScanBlock - 1) / kScanBlock) {
    const bool has_numbers =
        passes.find_maxima(logits.data(), static_cast<int>(logits.size()), maxima_.data(), largest_);
    is_finite_ = has_numbers && std::isfinite(largest_);
}

int Row::best() const {
    const auto block = std::find(maxima_.begin(), maxima_.end(), largest_) - maxima_.begin();
    const auto first = logits_.begin() + std::min(block * kScanBlock, std::ssize(logits_) - 1);
    const auto found = std::find(first, logits_.end(), largest_);
    return found == logits_.end() ? 0 : static_cast<int>(found - logits_.begin());
}

float Row::nth_largest(int wanted) const {
    const auto nth = static_cast<std::ptrdiff_t>(wanted) - 1;
    std::vector<float> values;
    if (static_cast<std::size_t>(wanted) > maxima_.size()) {
        values.assign(logits_.begin(), logits_.end());
    } else {
        // The nth largest of the block maxima is at most the nth largest logit, so only logits from it on matter.
        std::vector<float> maxima = maxima_;
        std::nth_element(maxima.begin(), maxima.begin() + nth, maxima.end(), std::greater<>());
        for (const int token : tokens_from(maxima[static_cast<std::size_t>(nth)]))
            values.push_back(logits_[static_cast<std::size_t>(token)]);
    }
    std::nth_element(values.begin(), values.begin() + nth, values.end(), std::greater<>());
    return values[static_cast<std::size_t>(nth)];
}

std::vector<int> Row::tokens_from(float floor) const {
    std::vector<int> tokens;
    for (std::size_t block = 0; block < maxima_.size(); block++) {
        if (!(maxima_[block] >= floor)) continue;
        const std::size_t end = std::min(logits_.size(), (block + 1) * kScanBlock);
        for (std::size_t i = block * kScanBlock; i < end; i++)
            if (logits_[i] >= floor) tokens.push_back(static_cast<int>(i));
    }
    return tokens;
}

}  // namespace weft
