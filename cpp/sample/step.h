// Chooses tokens from all rows of a step, and scores the requested ones, on the threads of a pool. Each row's result
// depends only on the row and its choice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/thread_pool.h"
#include "sample/choose.h"
#include "sample/score.h"

namespace weft {

// A list for each choice, or for each scored row; empty if no choice has one.
struct Lists {
    std::span<const std::int32_t> starts;  // one more entry than there are lists
    Tokens values;

    Tokens operator[](std::size_t place) const {
        if (starts.empty()) return {};
        const auto start = static_cast<std::size_t>(starts[place]);
        return values.subspan(start, static_cast<std::size_t>(starts[place + 1]) - start);
    }
};

// `Choices` of `weft.compute.protocols.sampler`; the span of a field that no choice has is empty.
struct Choices {
    std::span<const std::int32_t> rows;
    std::span<const double> temperatures;
    std::span<const std::uint64_t> keys;
    std::span<const std::uint32_t> masks;
    std::span<const std::int32_t> masked;
    std::span<const std::int32_t> forced_token_ids;
    Lists allowed;
    Lists forbidden;
    Lists forbidden_ends;
    Lists biased;
    std::span<const float> bias;
    Lists seen;
    Lists output;
    std::span<const float> repetition_penalty;
    std::span<const float> frequency_penalty;
    std::span<const float> presence_penalty;
    std::span<const double> min_p;
    std::span<const std::int32_t> top_k;
    std::span<const double> top_p;
};

// `Scoring` of `weft.compute.protocols.sampler`.
struct Scoring {
    std::span<const std::int32_t> rows;
    std::span<const std::int32_t> choices;
    Lists given;
    std::span<const std::int32_t> num_best;
};

struct ScoringMode {
    bool is_processed = false;  // True: score the row as the draw sees it
    bool is_normalised = true;  // True: return log-probabilities of the row
};

struct LogitRows {
    std::span<const float> values;
    std::size_t num_rows = 0;
    std::size_t vocab_size = 0;
};

struct Sampled {
    std::vector<Chosen> chosen;
    std::vector<Scores> scores;
};

// Threads that share the rows of a step, with memory that each keeps between steps.
struct Workers {
    explicit Workers(int num_threads) : pool(num_threads), scratch(static_cast<std::size_t>(num_threads)) {}

    ThreadPool pool;
    std::vector<Scratch> scratch;
};

// Throws std::invalid_argument, before any work, for arrays of inconsistent sizes, and for unknown rows or tokens.
Sampled sample(Workers& workers, const Passes& passes, const LogitRows& logits, const Choices& choices,
               const Scoring& scoring, ScoringMode mode);

}  // namespace weft
