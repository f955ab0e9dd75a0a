#include "tests/parts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/select.h"
#include "model/int8_product.h"
#include "sample/choose.h"
#include "sample/score.h"

namespace weft {
namespace {

using Random = std::mt19937;

int draw(Random& random, int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

void need(bool holds, const char* what, unsigned seed) {
    if (holds) return;
    std::fprintf(stderr, "seed %u: %s\n", seed, what);
    std::exit(1);
}

std::vector<float> draw_floats(Random& random, int count) {
    std::vector<float> floats(static_cast<std::size_t>(count));
    for (float& value : floats) value = static_cast<float>(draw(random, -100, 100)) / 30.0F;
    return floats;
}

template <class Act>
bool is_refused(const Act& act) {
    try {
        act();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

}  // namespace

void check_products(unsigned seed, const std::string& path) {
    Random random(seed);
    for (int round = 0; round < 6; round++) {
        const int rows = draw(random, 1, 40);
        const int depth = draw(random, 1, 300);
        const int columns = draw(random, 1, 100);
        std::vector<float> x = draw_floats(random, rows * depth);
        std::vector<float> weights = draw_floats(random, columns * depth);
        const float strange[] = {NAN, INFINITY, 1e-38F, 3e38F, 0.0F};
        if (round % 2 == 1) x[static_cast<std::size_t>(draw(random, 0, rows * depth - 1))] = strange[draw(random, 0, 4)];
        if (round % 3 == 2) std::fill_n(weights.begin(), depth, 0.0F);
        const Source source{weights.data(), Stored::kFloat32, columns, depth};
        std::vector<float> expected(static_cast<std::size_t>(rows * columns));
        std::vector<float> got(expected.size());
        multiply_int8("portable", x, source, expected);
        multiply_int8(path, x, source, got);
        for (std::size_t i = 0; i < got.size(); i++) {
            const bool is_same = std::memcmp(&got[i], &expected[i], sizeof(float)) == 0;
            need(is_same || (std::isnan(got[i]) && std::isnan(expected[i])), "int8 products differ", seed);
        }
        const std::span<const float> fewer(x.data(), x.size() - 1);
        const std::span<float> short_out(got.data(), got.size() - 1);
        const bool is_one_deep = depth == 1;  // then fewer numbers are fewer rows
        need(is_one_deep || is_refused([&] { multiply_int8(path, fewer, source, got); }), "a cut row", seed);
        need(is_refused([&] { multiply_int8(path, x, source, short_out); }), "an output too small", seed);
    }
}

void check_draws(unsigned seed, const std::string& path) {
    Random random(seed);
    const Kernels& kernels = kernels_of(path, Element::kFloat32);
    const Kernels& portable = kernels_of("portable", Element::kFloat32);
    for (int round = 0; round < 30; round++) {
        const int size = draw(random, 1, round % 3 == 0 ? 5000 : 90);  // more than a block, less than a vector
        std::vector<float> row = draw_floats(random, size);
        for (int i = draw(random, 0, size - 1); i > 0; i--)
            row[static_cast<std::size_t>(draw(random, 0, size - 1))] = -INFINITY;
        row[static_cast<std::size_t>(draw(random, 0, size - 1))] = 0.5F;
        const double temperature = draw(random, 0, 3) / 2.0;
        const DrawTask task{row.data(), size, temperature, random() * 0x100000001ULL};
        int token = -1;
        int expected = -1;
        need(kernels.draw(task, token) && portable.draw(task, expected), "a row is not finite", seed);
        need(token == expected, "paths draw different tokens", seed);
        need(token >= 0 && token < size && row[static_cast<std::size_t>(token)] > -INFINITY, "no token of the row",
             seed);
        if (temperature == 0.0) need(row.begin() + token == std::max_element(row.begin(), row.end()), "not the best", seed);
        row[static_cast<std::size_t>(draw(random, 0, size - 1))] = draw(random, 0, 1) == 1 ? NAN : INFINITY;
        need(!kernels.draw(task, token), "drawn from what is not finite", seed);
        std::fill(row.begin(), row.end(), -INFINITY);
        need(!kernels.draw(task, token), "drawn from nothing", seed);
    }
}

void check_strange_tokens(unsigned seed, const std::string& path) {
    Random random(seed);
    const Kernels& kernels = kernels_of(path, Element::kFloat32);
    const std::vector<float> row = draw_floats(random, draw(random, 1, 300));
    const int size = static_cast<int>(row.size());
    const int strange[] = {-1, size, size + 1, 2147483647, -2147483647 - 1};
    const std::vector<float> bias{1.0F};
    for (const int token : strange) {
        const std::vector<std::int32_t> tokens{token};
        for (int field = 0; field < 6; field++) {
            Choice choice;
            choice.repetition_penalty = 1.5F;
            choice.frequency_penalty = 0.5F;
            if (field == 0) choice.allowed = tokens;
            if (field == 1) choice.forbidden = tokens;
            if (field == 2) choice.forbidden_ends = tokens;
            if (field == 3) choice.biased = tokens, choice.bias = bias;
            if (field == 4) choice.seen = tokens;
            if (field == 5) choice.output = tokens;
            need(is_refused([&] { (void)choose(kernels, row, choice); }), "a strange token was taken", seed);
        }
        need(is_refused([&] { (void)score(kernels, row, tokens, 1); }), "a strange token was scored", seed);
    }
}

}  // namespace weft
