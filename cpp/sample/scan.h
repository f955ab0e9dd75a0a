// Passes over one row of logits, for choosing and scoring; passes.h describes their results. choose.cpp and score.cpp
// process the few tokens that remain.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math.h"
#include "sample/passes.h"

namespace weft {
namespace {

constexpr int kSumBlock = 1024;
// Prefetch distance in logits: a page, where the hardware prefetcher stops.
constexpr int kAhead = 1024;
constexpr double kFarBelow = -708.0;  // e to this power is almost too small for a normal double

// e^x for x <= 0, within 1 unit in the last place; results too small to be normal are close to 0. Plain arithmetic,
// so that the compiler vectorizes it.
inline double exp_of(double x) {
    constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves no fraction
    x = x > kFarBelow ? x : kFarBelow;
    const double shifted = x * 1.4426950408889634 + kMagic;
    const double n = shifted - kMagic;
    const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const std::uint64_t power = __builtin_bit_cast(std::uint64_t, shifted) -
                                __builtin_bit_cast(std::uint64_t, kMagic) + 1023;
    return p * __builtin_bit_cast(double, power << 52);
}

// Clamps a number to [-1, 1]; NaN stays NaN.
inline Lanes clamped(Lanes value) { return min(splat(1.0F), max(splat(-1.0F), value)); }

// Returns the maximum of up to a block of logits, by lane; a lane of `trace` becomes NaN if one of its logits is NaN.
inline Lanes block_max(const float* logits, int count, Lanes& trace) {
    float rest[kScanBlock];
    if (count < kScanBlock) {
        for (int i = 0; i < kScanBlock; i++) rest[i] = i < count ? logits[i] : -INFINITY;
        logits = rest;
    }
    static_assert(kScanBlock == 4 * kLanes);
    const Lanes first = load(logits);
    const Lanes second = load(logits + kLanes);
    const Lanes third = load(logits + 2 * kLanes);
    const Lanes fourth = load(logits + 3 * kLanes);
    trace = add(trace, add(add(clamped(first), clamped(second)), add(clamped(third), clamped(fourth))));
    return max(max(first, second), max(third, fourth));
}

bool find_maxima(const float* row, int count, float* maxima, float& largest) {
    Lanes trace = splat(0.0F);
    Lanes highest = splat(-INFINITY);
    for (int first = 0; first < count; first += kScanBlock) {
        const int left = count - first;
        if (left >= kAhead + kScanBlock)
            for (int i = 0; i < kScanBlock; i += kLanes) prefetch(row + first + kAhead + i);
        const Lanes block = block_max(row + first, left < kScanBlock ? left : kScanBlock, trace);
        maxima[first / kScanBlock] = max_of(block);
        highest = max(highest, block);
    }
    largest = max_of(highest);
    const float sum = sum_of(trace);
    return sum == sum;
}

// Factors for the weights of a row, and sums of weights by lane: of all tokens, and of those before a token.
class Weighing {
public:
    Weighing(const DrawTask& task, int token)
        : task_(task),
          token_(token),
          bound_(task.logits[token]),
          below_(__builtin_nextafterf(bound_, -INFINITY)),
          inverse_(splat(static_cast<float>(1.4426950408889634 / task.temperature))),
          largest_(splat(task.logits[task.best])) {}

    // Adds a block with logits of at least the token's.
    void add_block(int first) {
        const int end = first + kScanBlock;
        if (end > task_.size || (first <= token_ && token_ < end))
            add_mixed(first);
        else
            add_sides(task_.logits + first, end <= token_ ? below_ : bound_);
        move_if_many();
    }

    // Adds a block whose logits are all below the token's.
    void add_below(int first) {
        float rest[kScanBlock];
        const float* logits = task_.logits + first;
        if (first + kScanBlock > task_.size) {
            for (int i = 0; i < kScanBlock; i++) rest[i] = first + i < task_.size ? logits[i] : -INFINITY;
            logits = rest;
        }
        for (int i = 0; i < kScanBlock; i += kLanes)
            all_ = add(all_, keep<false>(logits + i, task_.floor, weights_of(logits + i)));
        move_if_many();
    }

    // Adds the maxima of up to 16 blocks, of those whose logits are all below the token's.
    void add_maxima(int first_block, int count) {
        float maxima[kLanes];
        for (int i = 0; i < kLanes; i++) {
            const float top = i < count ? task_.maxima[first_block + i] : -INFINITY;
            maxima[i] = top >= task_.floor && top < bound_ ? top : -INFINITY;
        }
        all_ = add(all_, keep<true>(maxima, -INFINITY, weights_of(maxima)));
        move_if_many();
    }

    Weights sums() {
        move();
        return sums_;
    }

private:
    static constexpr int kMaxAdded = 16;  // parts of the row whose weights are summed in float32

    Lanes weights_of(const float* logits) const { return exp2(mul(sub(load(logits), largest_), inverse_)); }

    // Keeps the weights of logits above `bound`, or at least `bound`.
    template <bool kIsAbove>
    static Lanes keep(const float* logits, float bound, Lanes weights) {
        alignas(64) float kept[kLanes];
        store(kept, weights);
        for (int i = 0; i < kLanes; i++)
            kept[i] = (kIsAbove ? logits[i] > bound : logits[i] >= bound) ? kept[i] : 0.0F;
        return load(kept);
    }

    // Adds a block in which exactly the logits above `bound` precede the token.
    void add_sides(const float* logits, float bound) {
        for (int i = 0; i < kScanBlock; i += kLanes) {
            const Lanes weights = weights_of(logits + i);
            all_ = add(all_, keep<false>(logits + i, task_.floor, weights));
            before_ = add(before_, keep<true>(logits + i, bound, weights));
        }
    }

    // Adds the block that contains the token, or that is at the row's end.
    void add_mixed(int first) {
        float logits[kScanBlock];
        // The logits that are equal to the token's and before it; minus infinity elsewhere.
        float equals[kScanBlock];
        for (int i = 0; i < kScanBlock; i++) {
            logits[i] = first + i < task_.size ? task_.logits[first + i] : -INFINITY;
            equals[i] = first + i < token_ && logits[i] == bound_ ? bound_ : -INFINITY;
        }
        add_sides(logits, bound_);
        for (int i = 0; i < kScanBlock; i += kLanes)
            before_ = add(before_, keep<true>(equals + i, -INFINITY, weights_of(equals + i)));
    }

    void move_if_many() {
        if (++num_added_ == kMaxAdded) move();
    }

    void move() {
        sums_.all += static_cast<double>(sum_of(all_));
        sums_.before += static_cast<double>(sum_of(before_));
        all_ = before_ = splat(0.0F);
        num_added_ = 0;
    }

    const DrawTask& task_;
    int token_;
    float bound_;  // the token's logit
    float below_;  // the largest number below it
    Lanes inverse_;
    Lanes largest_;
    Lanes all_ = splat(0.0F);
    Lanes before_ = splat(0.0F);
    int num_added_ = 0;
    Weights sums_{0.0, 0.0};
};

Weights weigh(const DrawTask& task, int token, Part part) {
    const float bound = task.logits[token];
    const int num_blocks = (task.size + kScanBlock - 1) / kScanBlock;
    Weighing weighing(task, token);
    if (part == Part::kMaxima) {
        for (int first = 0; first < num_blocks; first += kLanes)
            weighing.add_maxima(first, num_blocks - first < kLanes ? num_blocks - first : kLanes);
    } else if (part == Part::kFrom) {
        for (int block = 0; block < num_blocks; block++)
            if (task.maxima[block] >= bound) weighing.add_block(block * kScanBlock);
    } else {
        for (int block = 0; block < num_blocks; block++)
            if (task.maxima[block] >= task.floor && task.maxima[block] < bound) weighing.add_below(block * kScanBlock);
    }
    return weighing.sums();
}

void apply_mask(const float* row, const std::uint32_t* words, int count, float* out) {
    constexpr int kBits = 32;
    int first = 0;
    for (; first + kBits <= count; first += kBits) {
        const std::uint32_t word = words[first / kBits];
        for (int i = 0; i < kBits; i++) out[first + i] = ((word >> i) & 1U) != 0 ? row[first + i] : -INFINITY;
    }
    for (int i = first; i < count; i++) out[i] = ((words[i / kBits] >> (i % kBits)) & 1U) != 0 ? row[i] : -INFINITY;
}

// The sum of e^x over numbers that `fill(first, count, x)` writes, a block at a time: each pass over a block is one
// loop that the compiler vectorizes, and no small number is lost in a large sum.
template <class Fill>
inline double sum_of_powers(int count, const Fill& fill) {
    double total = 0.0;
    for (int first = 0; first < count; first += kSumBlock) {
        alignas(64) double x[kSumBlock];
        const int size = count - first < kSumBlock ? count - first : kSumBlock;
        fill(first, size, x);
        for (int i = size; i < kSumBlock; i++) x[i] = kFarBelow;
        for (int i = 0; i < kSumBlock; i++) {
            const double power = exp_of(x[i]);
            x[i] = x[i] > kFarBelow ? power : 0.0;
        }
        for (int width = kSumBlock / 2; width > 0; width /= 2)
            for (int i = 0; i < width; i++) x[i] += x[i + width];
        total += x[0];
    }
    return total;
}

double sum_exp(const float* row, int count, float largest) {
    return sum_of_powers(count, [=](int first, int size, double* x) {
        for (int i = 0; i < size; i++) x[i] = static_cast<double>(row[first + i] - largest);
    });
}

void log_softmax(const float* row, int count, double largest, double log_sum, float* out) {
    for (int i = 0; i < count; i++)
        out[i] = static_cast<float>(static_cast<double>(row[i]) - largest - log_sum);
}

int count_from(const float* row, int count, float floor) {
    int found = 0;
    for (int i = 0; i < count; i++) found += row[i] >= floor ? 1 : 0;
    return found;
}

}  // namespace
}  // namespace weft
