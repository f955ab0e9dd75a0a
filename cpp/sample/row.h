// One row of logits during sampling: finds its largest logits without sorting the whole row.
#pragma once

#include <span>
#include <vector>

#include "sample/passes.h"

namespace weft {

class Row {
public:
    // `logits` must not change while this is used, and must not be empty.
    Row(const Passes& passes, std::span<const float> logits);

    std::span<const float> logits() const { return logits_; }
    int size() const { return static_cast<int>(logits_.size()); }
    const float* maxima() const { return maxima_.data(); }
    // True if a token can be chosen: there is no NaN, and the maximum is finite.
    bool is_finite() const { return is_finite_; }
    float largest() const { return largest_; }
    // The first token with the largest logit.
    int best() const;

    // The `wanted`-th largest, counted from 1; `wanted` is at most the number of logits.
    float nth_largest(int wanted) const;

    // Tokens whose logits are at least `floor`, ascending.
    std::vector<int> tokens_from(float floor) const;

private:
    std::span<const float> logits_;
    std::vector<float> maxima_;  // maximum of each kScanBlock logits
    bool is_finite_;
    float largest_;
};

}  // namespace weft
