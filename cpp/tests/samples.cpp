#include "tests/samples.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <vector>

#include "sample/select.h"
#include "sample/step.h"
#include "tests/parts.h"

namespace weft {
namespace {

using Random = std::mt19937;
using Ints = std::vector<std::int32_t>;

// Lists that hold their numbers.
struct OwnLists {
    Ints starts;
    Ints values;

    Lists view() const { return {starts, values}; }
};

// A step that holds its arrays.
struct Arrays {
    std::size_t vocab_size = 1;
    std::vector<float> logits;
    Ints rows;
    std::vector<double> temperatures;
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> masks;
    Ints masked;
    Ints forced;
    OwnLists allowed;
    OwnLists forbidden;
    OwnLists forbidden_ends;
    OwnLists biased;
    std::vector<float> bias;
    OwnLists seen;
    OwnLists output;
    std::vector<float> repetition_penalty;
    std::vector<float> frequency_penalty;
    std::vector<float> presence_penalty;
    std::vector<double> min_p;
    Ints top_k;
    std::vector<double> top_p;
    Ints scored_rows;
    Ints scored_choices;
    OwnLists given;
    Ints num_best;

    LogitRows view() const { return {logits, logits.size() / vocab_size, vocab_size}; }

    Choices choices() const {
        return {rows,          temperatures,       keys,          masks,         masked,
                forced,        allowed.view(),     forbidden.view(), forbidden_ends.view(), biased.view(),
                bias,          seen.view(),        output.view(), repetition_penalty, frequency_penalty,
                presence_penalty, min_p,           top_k,         top_p};
    }

    Scoring scoring() const { return {scored_rows, scored_choices, given.view(), num_best}; }
};

class Drawing {
public:
    explicit Drawing(unsigned seed) : random_(seed) {}

    Arrays arrays() {
        Arrays arrays;
        num_rows_ = static_cast<std::size_t>(draw(random_, 1, 5));
        arrays.vocab_size = vocab_size_ = static_cast<std::size_t>(draw(random_, 1, draw(random_, 0, 2) == 0 ? 5000 : 200));
        const float step = draw(random_, 0, 1) == 1 ? 4.0F : 1e-4F;  // few values, or many
        for (std::size_t i = 0; i < num_rows_ * vocab_size_; i++)
            arrays.logits.push_back(static_cast<float>(draw(random_, -40, 40)) / step * 1e-3F);
        for (int i = draw(random_, 0, static_cast<int>(vocab_size_)); i > 0; i--)
            arrays.logits[place(arrays.logits.size())] = -INFINITY;
        for (std::size_t i = 0; i < num_rows_; i++) arrays.logits[i * vocab_size_ + place(vocab_size_)] = 1.0F;
        const int num_choices = draw(random_, 0, 7);
        for (int i = 0; i < num_choices; i++) {
            arrays.rows.push_back(draw(random_, 0, static_cast<int>(num_rows_) - 1));
            arrays.temperatures.push_back(draw(random_, 0, 3) / 2.0);
            arrays.keys.push_back(random_() * 0x100000001ULL);
        }
        draw_lists(arrays);
        draw_numbers(arrays);
        draw_scoring(arrays);
        return arrays;
    }

    Random& random() { return random_; }

private:
    std::size_t place(std::size_t count) { return static_cast<std::size_t>(draw(random_, 0, static_cast<int>(count) - 1)); }

    OwnLists lists(std::size_t count) {
        OwnLists lists;
        if (draw(random_, 0, 2) == 0) return lists;
        lists.starts.push_back(0);
        for (std::size_t i = 0; i < count; i++) {
            for (int j = draw(random_, 0, 9) - 4; j > 0; j--) lists.values.push_back(static_cast<std::int32_t>(place(vocab_size_)));
            lists.starts.push_back(static_cast<std::int32_t>(lists.values.size()));
        }
        return lists;
    }

    template <class Value, class Give>
    std::vector<Value> some(std::size_t count, const Give& give) {
        std::vector<Value> values;
        if (draw(random_, 0, 1) == 0) return values;
        for (std::size_t i = 0; i < count; i++) values.push_back(static_cast<Value>(give()));
        return values;
    }

    void draw_lists(Arrays& arrays) {
        const std::size_t count = arrays.rows.size();
        const std::size_t num_words = (vocab_size_ + 31) / 32;
        for (std::size_t i = 0; i < count; i++) {
            if (draw(random_, 0, 3) > 0) continue;
            arrays.masked.push_back(static_cast<std::int32_t>(i));
            for (std::size_t word = 0; word < num_words; word++) arrays.masks.push_back(random_());
        }
        arrays.allowed = lists(count);
        arrays.forbidden = lists(count);
        arrays.forbidden_ends = lists(count);
        arrays.biased = lists(count);
        arrays.bias.assign(arrays.biased.values.size(), 2.5F);
        arrays.seen = lists(count);
        arrays.output = lists(count);
    }

    void draw_numbers(Arrays& arrays) {
        const std::size_t count = arrays.rows.size();
        arrays.forced = some<std::int32_t>(count, [&] { return draw(random_, 0, 3) > 0 ? -1 : static_cast<int>(place(vocab_size_)); });
        arrays.repetition_penalty = some<float>(count, [&] { return draw(random_, 1, 3) / 2.0; });
        arrays.frequency_penalty = some<float>(count, [&] { return draw(random_, -2, 2) / 2.0; });
        arrays.presence_penalty = some<float>(count, [&] { return draw(random_, -2, 2) / 2.0; });
        arrays.min_p = some<double>(count, [&] { return draw(random_, 0, 4) / 4.0; });
        arrays.top_k = some<std::int32_t>(count, [&] { return draw(random_, 0, 2) * draw(random_, 0, 400); });
        arrays.top_p = some<double>(count, [&] { return draw(random_, 1, 8) / 8.0; });
    }

    void draw_scoring(Arrays& arrays) {
        for (int i = draw(random_, 0, 6); i > 0; i--) {
            arrays.scored_rows.push_back(draw(random_, 0, static_cast<int>(num_rows_) - 1));
            arrays.scored_choices.push_back(draw(random_, -1, static_cast<int>(arrays.rows.size()) - 1));
            if (const int of = arrays.scored_choices.back(); of >= 0) arrays.scored_rows.back() = arrays.rows[static_cast<std::size_t>(of)];
            arrays.num_best.push_back(draw(random_, -1, 400));
        }
        arrays.given = lists(arrays.scored_rows.size());
    }

    Random random_;
    std::size_t num_rows_ = 1;
    std::size_t vocab_size_ = 1;
};

bool are_same(const Chosen& one, const Chosen& other) {
    return one.is_finite == other.is_finite && (!one.is_finite || one.token == other.token);
}

bool are_same(const Scores& one, const Scores& other) {
    return one.is_finite == other.is_finite && one.tokens == other.tokens && one.values == other.values && one.ranks == other.ranks;
}

template <class Value>
bool are_all_same(const std::vector<Value>& one, const std::vector<Value>& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const Value& a, const Value& b) { return are_same(a, b); });
}

bool may_come(const Arrays& arrays, std::size_t place, std::int32_t token) {
    if (token < 0 || static_cast<std::size_t>(token) >= arrays.vocab_size) return false;
    if (!arrays.forced.empty() && arrays.forced[place] >= 0) return token == arrays.forced[place];
    const std::size_t row = static_cast<std::size_t>(arrays.rows[place]) * arrays.vocab_size;
    return arrays.logits[row + static_cast<std::size_t>(token)] > -INFINITY;
}

bool is_refused(const std::function<void()>& act) {
    try {
        act();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

}  // namespace

void check_samples(unsigned seed, const std::string& path) {
    Drawing drawing(seed);
    const Passes& passes = passes_of(path);
    Workers one(1);
    Workers several(3);
    for (int round = 0; round < 30; round++) {
        Arrays arrays = drawing.arrays();
        const ScoringMode mode{draw(drawing.random(), 0, 1) == 1, draw(drawing.random(), 0, 1) == 1};
        const Sampled sampled = sample(one, passes, arrays.view(), arrays.choices(), arrays.scoring(), mode);
        for (std::size_t i = 0; i < sampled.chosen.size(); i++)
            need(!sampled.chosen[i].is_finite || may_come(arrays, i, sampled.chosen[i].token), "a token that cannot come", seed);
        const Sampled shared = sample(several, passes, arrays.view(), arrays.choices(), arrays.scoring(), mode);
        need(are_all_same(sampled.chosen, shared.chosen) && are_all_same(sampled.scores, shared.scores),
             "threads give something else", seed);
        const Sampled plain = sample(one, passes_of("portable"), arrays.view(), arrays.choices(), arrays.scoring(), mode);
        need(are_all_same(sampled.chosen, plain.chosen), "paths choose different tokens", seed);
        const auto broken = static_cast<std::int32_t>(draw(drawing.random(), 0, static_cast<int>(arrays.view().num_rows) - 1));
        const std::size_t first = static_cast<std::size_t>(broken) * arrays.vocab_size;
        arrays.logits[first + static_cast<std::size_t>(draw(drawing.random(), 0, static_cast<int>(arrays.vocab_size) - 1))] =
            draw(drawing.random(), 0, 1) == 1 ? NAN : INFINITY;
        const Sampled beside = sample(several, passes, arrays.view(), arrays.choices(), arrays.scoring(), mode);
        for (std::size_t i = 0; i < beside.chosen.size(); i++)
            need(arrays.rows[i] == broken ? !beside.chosen[i].is_finite : are_same(beside.chosen[i], sampled.chosen[i]),
                 "a row that is not finite was chosen from, or changed others", seed);
    }
}

void check_strange_samples(unsigned seed, const std::string& path) {
    Drawing drawing(seed);
    Workers workers(1);
    const auto refuses = [&](const Arrays& arrays) {
        return is_refused([&] { (void)sample(workers, passes_of(path), arrays.view(), arrays.choices(), arrays.scoring(), {}); });
    };
    Arrays good = drawing.arrays();
    while (good.rows.empty() || good.scored_rows.empty()) good = drawing.arrays();
    const auto size = static_cast<std::int32_t>(good.vocab_size);
    for (const std::int32_t token : {-1, size, size + 1, 2147483647, -2147483647 - 1}) {
        OwnLists strange;
        strange.starts.assign(good.rows.size() + 1, 1);
        strange.starts.front() = 0;
        strange.values = {token};
        for (OwnLists Arrays::*field : {&Arrays::allowed, &Arrays::forbidden, &Arrays::forbidden_ends, &Arrays::seen, &Arrays::output}) {
            Arrays arrays = good;
            arrays.*field = strange;
            need(refuses(arrays), "a strange token was taken", seed);
        }
        Arrays arrays = good;
        arrays.given = strange;
        arrays.given.starts.assign(good.scored_rows.size() + 1, 1);
        arrays.given.starts.front() = 0;
        need(refuses(arrays), "a strange token was scored", seed);
    }
    for (Ints Arrays::*field : {&Arrays::rows, &Arrays::scored_rows, &Arrays::scored_choices, &Arrays::num_best}) {
        Arrays arrays = good;
        (arrays.*field).back() = -2;
        need(refuses(arrays), "a place before the first was taken", seed);
        (arrays.*field).clear();
        need(refuses(arrays), "an array without entries was taken", seed);
    }
    for (OwnLists Arrays::*field : {&Arrays::allowed, &Arrays::biased, &Arrays::seen}) {
        Arrays arrays = good;
        (arrays.*field).starts = {0, 5};
        (arrays.*field).values = {0};
        need(refuses(arrays), "starts beyond the values were taken", seed);
    }
    Arrays arrays = good;
    arrays.masked = {0, 0};
    need(refuses(arrays), "masks that are not there were taken", seed);
    arrays = good;
    arrays.temperatures.back() = NAN;
    need(refuses(arrays), "a temperature that is no number was taken", seed);
}

}  // namespace weft
