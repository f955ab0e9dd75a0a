// From a row of logits to a token, and to log-probabilities.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "kernels/select.h"
#include "python/arrays.h"
#include "sample/choose.h"
#include "sample/score.h"

namespace {

const weft::Kernels& best_kernels() {
    return weft::kernels_of(weft::usable_paths().front(), weft::Element::kFloat32);
}

// Chooses from each row; `is_finite` tells the rows that could be chosen from.
void draw_rows(const Rows& logits, const Doubles& temperatures, const Keys& keys, Chosen& tokens,
               Flags& is_finite) {
    const std::size_t count = logits.shape(0);
    if (temperatures.size() != count || keys.size() != count || tokens.size() != count ||
        is_finite.size() != count)
        throw std::invalid_argument("every array must have an entry for each row of logits");
    if (logits.shape(1) < 1 || logits.shape(1) > 1 << 24)
        throw std::invalid_argument("logits must have from 1 to 2^24 columns");
    const weft::Kernels& kernels = best_kernels();
    const nb::gil_scoped_release release;
    for (std::size_t row = 0; row < count; row++) {
        int token = 0;
        const weft::DrawTask task{logits.data() + row * logits.shape(1), static_cast<int>(logits.shape(1)),
                                  temperatures.data()[row], keys.data()[row]};
        is_finite.data()[row] = kernels.draw(task, token);
        tokens.data()[row] = token;
    }
}

std::span<const float> row_of(const Row& row) {
    if (row.size() < 1 || row.size() > 1 << 24)
        throw std::invalid_argument("logits must have from 1 to 2^24 columns");
    return {row.data(), row.size()};
}

// See `weft::Choice`, whose plain numbers are attributes of `numbers`.
std::optional<int> choose(const Row& logits, const std::optional<Ints>& allowed, const Ints& forbidden,
                          const Ints& forbidden_ends, const Ints& biased, const Row& bias, const Ints& seen,
                          const Ints& output, const nb::object& numbers) {
    weft::Choice choice;
    if (allowed) choice.allowed = span_of(*allowed);
    choice.forbidden = span_of(forbidden);
    choice.forbidden_ends = span_of(forbidden_ends);
    choice.biased = span_of(biased);
    choice.bias = {bias.data(), bias.size()};
    choice.seen = span_of(seen);
    choice.output = span_of(output);
    choice.read_numbers([&](const char* name, auto& value) {
        value = nb::cast<std::remove_reference_t<decltype(value)>>(numbers.attr(name));
    });
    const std::span<const float> row = row_of(logits);
    const nb::gil_scoped_release release;
    return weft::choose(best_kernels(), row, choice);
}

std::optional<std::tuple<std::vector<std::int32_t>, std::vector<float>, std::vector<std::int32_t>>> score(
    const Row& logits, const Ints& given, int num_best) {
    const std::span<const float> row = row_of(logits);
    std::optional<weft::Scores> scores;
    {
        const nb::gil_scoped_release release;
        scores = weft::score(best_kernels(), row, span_of(given), num_best);
    }
    if (!scores) return std::nullopt;
    return std::make_tuple(std::move(scores->tokens), std::move(scores->logprobs), std::move(scores->ranks));
}

}  // namespace

void bind_sampling(nb::module_& module) {
    module.def("draw_rows", &draw_rows, nb::arg("logits").noconvert(), nb::arg("temperatures").noconvert(),
               nb::arg("keys").noconvert(), nb::arg("tokens").noconvert(), nb::arg("is_finite").noconvert());
    module.def("choose", &choose, nb::arg("logits").noconvert(), nb::arg("allowed").noconvert().none(),
               nb::arg("forbidden").noconvert(), nb::arg("forbidden_ends").noconvert(),
               nb::arg("biased").noconvert(), nb::arg("bias").noconvert(), nb::arg("seen").noconvert(),
               nb::arg("output").noconvert(), nb::arg("numbers"));
    module.def("score", &score, nb::arg("logits").noconvert(), nb::arg("given").noconvert(), nb::arg("num_best"));
}
