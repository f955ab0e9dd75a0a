#include "sample/step.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>

namespace weft {
namespace {

constexpr std::size_t kMaskBits = 32;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

template <class Span>
void check_size(const Span& values, std::size_t size, const char* field) {
    if (!values.empty() && values.size() != size)
        refuse(std::string(field) + " must have " + std::to_string(size) + " entries, not " + std::to_string(values.size()));
}

// Checks that each value is from `least` to below `end`.
void check_range(std::span<const std::int32_t> values, std::int32_t least, std::size_t end, const char* field) {
    for (const std::int32_t value : values)
        if (value < least || value >= static_cast<std::int64_t>(end))
            refuse(std::string(field) + " has " + std::to_string(value) + "; it must be from " + std::to_string(least) +
                   " to " + std::to_string(static_cast<std::int64_t>(end) - 1));
}

void check_lists(const Lists& lists, std::size_t size, std::size_t vocab_size, const char* field) {
    if (lists.starts.empty()) {
        if (!lists.values.empty()) refuse(std::string(field) + " has values and no starts");
        return;
    }
    const bool is_whole = lists.starts.size() == size + 1 && lists.starts.front() == 0 &&
                          static_cast<std::size_t>(lists.starts.back()) == lists.values.size() &&
                          std::is_sorted(lists.starts.begin(), lists.starts.end());
    if (!is_whole) refuse(std::string(field) + ": starts must rise from 0 to the number of values, one for each list and one more");
    check_range(lists.values, 0, vocab_size, field);
}

void check_masks(const Choices& choices, std::size_t vocab_size) {
    const std::size_t num_words = (vocab_size + kMaskBits - 1) / kMaskBits;
    if (choices.masks.size() != choices.masked.size() * num_words)
        refuse("masks must have " + std::to_string(num_words) + " words for each entry of masked");
    check_range(choices.masked, 0, choices.rows.size(), "masked");
    if (std::adjacent_find(choices.masked.begin(), choices.masked.end(), std::greater_equal<>()) != choices.masked.end())
        refuse("masked must ascend");
}

void check_numbers(const Choices& choices) {
    const std::size_t size = choices.rows.size();
    check_size(choices.repetition_penalty, size, "repetition_penalty");
    check_size(choices.frequency_penalty, size, "frequency_penalty");
    check_size(choices.presence_penalty, size, "presence_penalty");
    check_size(choices.min_p, size, "min_p");
    check_size(choices.top_k, size, "top_k");
    check_size(choices.top_p, size, "top_p");
    for (const double temperature : choices.temperatures)
        if (!(temperature >= 0.0)) refuse("temperatures must be at least 0");
}

void check(const LogitRows& logits, const Choices& choices) {
    const std::size_t size = choices.rows.size();
    check_range(choices.rows, 0, logits.num_rows, "rows");
    if (choices.temperatures.size() != size || choices.keys.size() != size)
        refuse("temperatures and keys must have an entry for each of rows");
    check_numbers(choices);
    check_size(choices.forced_token_ids, size, "forced_token_ids");
    check_range(choices.forced_token_ids, -1, logits.vocab_size, "forced_token_ids");
    check_lists(choices.allowed, size, logits.vocab_size, "allowed");
    check_lists(choices.forbidden, size, logits.vocab_size, "forbidden");
    check_lists(choices.forbidden_ends, size, logits.vocab_size, "forbidden_ends");
    check_lists(choices.biased, size, logits.vocab_size, "biased");
    check_lists(choices.seen, size, logits.vocab_size, "seen");
    check_lists(choices.output, size, logits.vocab_size, "output");
    if (choices.bias.size() != choices.biased.values.size()) refuse("bias must have an entry for each value of biased");
    check_masks(choices, logits.vocab_size);
}

void check(const LogitRows& logits, const Choices& choices, const Scoring& scoring) {
    const std::size_t size = scoring.rows.size();
    check_range(scoring.rows, 0, logits.num_rows, "scoring.rows");
    check_range(scoring.choices, -1, choices.rows.size(), "scoring.choices");
    if (scoring.choices.size() != size || scoring.num_best.size() != size)
        refuse("scoring.choices and scoring.num_best must have an entry for each of scoring.rows");
    for (const std::int32_t count : scoring.num_best)
        if (count < -1) refuse("scoring.num_best must be at least -1");
    check_lists(scoring.given, size, logits.vocab_size, "scoring.given");
}

template <class Value>
Value value_at(std::span<const Value> values, std::size_t place, Value neutral) {
    return values.empty() ? neutral : values[place];
}

class Step {
public:
    Step(Workers& workers, const Passes& passes, const LogitRows& logits, const Choices& choices)
        : workers_(workers), passes_(passes), logits_(logits), choices_(choices) {}

    std::vector<Chosen> choose_all() {
        std::vector<Chosen> chosen(choices_.rows.size());
        share(chosen.size(), [&](std::size_t place, Scratch& scratch) {
            chosen[place] = choose(passes_, row(choices_.rows[place]), choice(place), scratch);
        });
        return chosen;
    }

    std::vector<Scores> score_all(const Scoring& scoring, const std::vector<Chosen>& chosen, ScoringMode mode) {
        std::vector<Scores> scores(scoring.rows.size());
        share(scores.size(), [&](std::size_t place, Scratch& scratch) {
            scores[place] = score_one(scoring, place, chosen, mode, scratch);
        });
        return scores;
    }

private:
    std::span<const float> row(std::int32_t place) const {
        return logits_.values.subspan(static_cast<std::size_t>(place) * logits_.vocab_size, logits_.vocab_size);
    }

    Choice choice(std::size_t place) const {
        Choice choice;
        choice.mask = mask(place);
        choice.forced = value_at(choices_.forced_token_ids, place, -1);
        choice.allowed = choices_.allowed[place];
        choice.forbidden = choices_.forbidden[place];
        choice.forbidden_ends = choices_.forbidden_ends[place];
        choice.biased = choices_.biased[place];
        if (!choice.biased.empty())
            choice.bias = choices_.bias.subspan(static_cast<std::size_t>(choices_.biased.starts[place]), choice.biased.size());
        choice.seen = choices_.seen[place];
        choice.output = choices_.output[place];
        choice.repetition_penalty = value_at(choices_.repetition_penalty, place, 1.0F);
        choice.frequency_penalty = value_at(choices_.frequency_penalty, place, 0.0F);
        choice.presence_penalty = value_at(choices_.presence_penalty, place, 0.0F);
        choice.temperature = choices_.temperatures[place];
        choice.min_p = value_at(choices_.min_p, place, 0.0);
        choice.top_k = value_at(choices_.top_k, place, 0);
        choice.top_p = value_at(choices_.top_p, place, 1.0);
        choice.key = choices_.keys[place];
        return choice;
    }

    std::span<const std::uint32_t> mask(std::size_t place) const {
        const auto wanted = static_cast<std::int32_t>(place);
        const auto found = std::lower_bound(choices_.masked.begin(), choices_.masked.end(), wanted);
        if (found == choices_.masked.end() || *found != wanted) return {};
        const std::size_t num_words = choices_.masks.size() / choices_.masked.size();
        return choices_.masks.subspan(static_cast<std::size_t>(found - choices_.masked.begin()) * num_words, num_words);
    }

    Scores score_one(const Scoring& scoring, std::size_t place, const std::vector<Chosen>& chosen, ScoringMode mode,
                     Scratch& scratch) const {
        std::span<const float> values = row(scoring.rows[place]);
        std::vector<std::int32_t> given;
        if (const std::int32_t of = scoring.choices[place]; of >= 0) {
            const Chosen& one = chosen[static_cast<std::size_t>(of)];
            if (!one.is_finite) return {};
            given.push_back(one.token);
            const Choice how = choice(static_cast<std::size_t>(of));
            values = mode.is_processed ? processed(passes_, values, how, scratch) : masked(passes_, values, how, scratch);
        }
        const Tokens more = scoring.given[place];
        given.insert(given.end(), more.begin(), more.end());
        return score(passes_, values, given, scoring.num_best[place], mode.is_normalised, scratch.scores);
    }

    // Calls `work(place, scratch)` for each place. An exception from it is rethrown here once all places are done.
    template <class Work>
    void share(std::size_t count, const Work& work) {
        std::exception_ptr failure;
        std::mutex mutex;
        workers_.pool.share(static_cast<int>(count), 1, [&](int thread, int begin, int end) {
            try {
                for (int place = begin; place < end; place++)
                    work(static_cast<std::size_t>(place), workers_.scratch[static_cast<std::size_t>(thread)]);
            } catch (...) {  // includes failed allocations
                const std::lock_guard lock(mutex);
                failure = std::current_exception();
            }
        });
        if (failure) std::rethrow_exception(failure);
    }

    Workers& workers_;
    const Passes& passes_;
    const LogitRows& logits_;
    const Choices& choices_;
};

}  // namespace

Sampled sample(Workers& workers, const Passes& passes, const LogitRows& logits, const Choices& choices,
               const Scoring& scoring, ScoringMode mode) {
    check(logits, choices);
    check(logits, choices, scoring);
    Step step(workers, passes, logits, choices);
    Sampled sampled;
    sampled.chosen = step.choose_all();
    sampled.scores = step.score_all(scoring, sampled.chosen, mode);
    return sampled;
}

}  // namespace weft
