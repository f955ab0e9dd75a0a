// Sampling and scoring: turns the logits of a step into tokens and log-probabilities.
#include <algorithm>
#include <memory>
#include <mutex>

#include "kernels/select.h"
#include "model/thread_pool.h"
#include "python/arrays.h"
#include "sample/select.h"
#include "sample/step.h"

namespace {

using Masks = nb::ndarray<const std::uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const weft::Passes& best_passes() {
    static const weft::Passes& passes = weft::passes_of(weft::usable_paths().front());
    return passes;
}

// The threads that sample in this process: as many as a step has, and idle while one is computed. They start with the
// first call, and are never joined: an exiting process does not wait for them.
class SharedWorkers {
public:
    // Sets the number of threads from the next call on; existing threads end, so that new ones inherit the caller's
    // CPU affinity.
    void use(int num_threads) {
        const std::lock_guard lock(mutex_);
        num_threads_ = weft::checked_threads(num_threads);
        workers_.reset();
    }

    template <class Work>
    auto run(const Work& work) {
        const std::lock_guard lock(mutex_);
        if (!workers_) workers_ = std::make_unique<weft::Workers>(num_threads_ > 0 ? num_threads_ : weft::available_cpus());
        return work(*workers_);
    }

private:
    std::mutex mutex_;
    int num_threads_ = 0;  // 0 means all CPUs
    std::unique_ptr<weft::Workers> workers_;
};

SharedWorkers& shared_workers() {
    static auto* const workers = new SharedWorkers();
    return *workers;
}

// An array attribute of `from`; empty if it is None. Not converted, because a conversion would read a copy.
template <class Array>
std::optional<Array> array_of(const nb::handle& from, const char* name) {
    const nb::object value = from.attr(name);
    if (value.is_none()) return std::nullopt;
    Array array;
    if (!nb::try_cast<Array>(value, array, false))
        throw std::invalid_argument(std::string(name) + " must be an array of the type that `Choices` names, in C order");
    return array;
}

// Spans of arrays; this object keeps the arrays alive.
class Arrays {
public:
    template <class Array>
    auto span(const nb::handle& from, const char* name) {
        using Value = typename Array::Scalar;
        const std::optional<Array> array = array_of<Array>(from, name);
        if (!array) return std::span<Value>();
        kept_.push_back(from.attr(name));
        return std::span<Value>(array->data(), array->size());
    }

    weft::Lists lists(const nb::handle& from, const char* name) {
        const nb::object value = from.attr(name);
        if (value.is_none()) return {};
        return {span<Ints>(value, "starts"), span<Ints>(value, "values")};
    }

private:
    std::vector<nb::object> kept_;
};

weft::Choices read_choices(const nb::handle& from, Arrays& arrays) {
    weft::Choices choices;
    choices.rows = arrays.span<Ints>(from, "rows");
    choices.temperatures = arrays.span<Doubles>(from, "temperatures");
    choices.keys = arrays.span<Keys>(from, "keys");
    choices.masks = arrays.span<Masks>(from, "masks");
    choices.masked = arrays.span<Ints>(from, "masked");
    choices.forced_token_ids = arrays.span<Ints>(from, "forced_token_ids");
    choices.allowed = arrays.lists(from, "allowed");
    choices.forbidden = arrays.lists(from, "forbidden");
    choices.forbidden_ends = arrays.lists(from, "forbidden_ends");
    choices.biased = arrays.lists(from, "biased");
    choices.bias = arrays.span<Row>(from, "bias");
    choices.seen = arrays.lists(from, "seen");
    choices.output = arrays.lists(from, "output");
    choices.repetition_penalty = arrays.span<Row>(from, "repetition_penalty");
    choices.frequency_penalty = arrays.span<Row>(from, "frequency_penalty");
    choices.presence_penalty = arrays.span<Row>(from, "presence_penalty");
    choices.min_p = arrays.span<Doubles>(from, "min_p");
    choices.top_k = arrays.span<Ints>(from, "top_k");
    choices.top_p = arrays.span<Doubles>(from, "top_p");
    return choices;
}

weft::Scoring read_scoring(const nb::handle& from, Arrays& arrays) {
    if (from.is_none()) return {};
    return {arrays.span<Ints>(from, "rows"), arrays.span<Ints>(from, "choices"), arrays.lists(from, "given"),
            arrays.span<Ints>(from, "num_best")};
}

// An array of `size` values from `fill(i)`.
template <class Value, class Fill>
nb::object array_by(std::size_t size, const Fill& fill) {
    auto values = std::make_unique<Value[]>(std::max<std::size_t>(size, 1));
    for (std::size_t i = 0; i < size; i++) values[i] = fill(i);
    Value* const data = values.release();
    const nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<Value*>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, Value, nb::ndim<1>>(data, {size}, owner));
}

// Concatenates a member of all rows.
template <class Value, class Member>
nb::object joined(const std::vector<weft::Scores>& rows, const Member& member) {
    std::vector<Value> all;
    for (const weft::Scores& row : rows) all.insert(all.end(), (row.*member).begin(), (row.*member).end());
    return array_by<Value>(all.size(), [&](std::size_t i) { return all[i]; });
}

nb::object to_scores(const std::vector<weft::Scores>& rows) {
    std::int32_t end = 0;
    const auto next = [&](std::size_t i) { return i == 0 ? 0 : end += static_cast<std::int32_t>(rows[i - 1].tokens.size()); };
    const nb::object starts = array_by<std::int32_t>(rows.size() + 1, next);
    const nb::object is_finite = array_by<bool>(rows.size(), [&](std::size_t i) { return rows[i].is_finite; });
    return nb::make_tuple(starts, joined<std::int32_t>(rows, &weft::Scores::tokens),
                          joined<float>(rows, &weft::Scores::values), joined<std::int32_t>(rows, &weft::Scores::ranks),
                          is_finite);
}

// See `weft::sample`; `choices` is a `Choices` of Python. Returns tokens, whether their rows are finite, and the
// arrays of `Scores`.
nb::tuple sample(const Rows& logits, const nb::object& choices, bool is_processed, bool is_normalised) {
    if (logits.shape(1) < 1 || logits.shape(1) > 1 << 24)
        throw std::invalid_argument("logits must have from 1 to 2^24 columns");
    const weft::LogitRows rows{{logits.data(), logits.size()}, logits.shape(0), logits.shape(1)};
    Arrays arrays;
    const weft::Choices read = read_choices(choices, arrays);
    const nb::object scoring = choices.attr("scoring");
    const weft::Scoring read_scores = read_scoring(scoring, arrays);
    weft::Sampled sampled;
    {
        const nb::gil_scoped_release release;
        sampled = shared_workers().run([&](weft::Workers& workers) {
            return weft::sample(workers, best_passes(), rows, read, read_scores, {is_processed, is_normalised});
        });
    }
    const std::vector<weft::Chosen>& chosen = sampled.chosen;
    return nb::make_tuple(
        array_by<std::int32_t>(chosen.size(), [&](std::size_t i) { return chosen[i].token; }),
        array_by<bool>(chosen.size(), [&](std::size_t i) { return chosen[i].is_finite; }),
        scoring.is_none() ? nb::object(nb::none()) : to_scores(sampled.scores));
}

}  // namespace

void bind_sampling(nb::module_& module) {
    module.def("sample", &sample, nb::arg("logits").noconvert(), nb::arg("choices"), nb::arg("is_processed"),
               nb::arg("is_normalised"));
    module.def("use_sampling_threads", [](int num_threads) { shared_workers().use(num_threads); },
               nb::arg("num_threads"), nb::call_guard<nb::gil_scoped_release>());
}
