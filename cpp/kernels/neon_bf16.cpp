// Kernels for ARM CPUs that multiply bfloat16 themselves (FEAT_BF16).
#define WEFT_MULTIPLIES_BFLOAT16

#include "kernels/lanes_neon.h"

#include <cstring>

#include "kernels/elements.h"
#include "kernels/two_rows_neon.h"

namespace weft {
namespace {

struct Bfloat16 {
    using Stored = std::uint16_t;
    using Activation = std::uint16_t;
    using Number = float;
    using Sum = Lanes;
    static constexpr Element kElement = Element::kBfloat16;
    static constexpr int kStep = 2;
    static constexpr int kScaleBytes = 0;

    struct Cell {
        uint32x4_t pairs[4];
    };

    static Sum zero() { return splat(0.0F); }
    static Cell load_cell(const Stored* p) {
        return {{load_pairs(p), load_pairs(p + 8), load_pairs(p + 16), load_pairs(p + 24)}};
    }
    static Cell widen_cell(const std::int8_t* p) {
        Lanes first;
        Lanes second;
        split_int8_pairs(p, first, second);
        return {{upper_halves(first.a, second.a), upper_halves(first.b, second.b), upper_halves(first.c, second.c),
                 upper_halves(first.d, second.d)}};
    }
    static Lanes dot(Lanes sum, const Cell& cell, const Activation* x) {
        std::uint32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        const uint32x4_t both = vdupq_n_u32(pair);
        return {add_pairs(sum.a, cell.pairs[0], both), add_pairs(sum.b, cell.pairs[1], both),
                add_pairs(sum.c, cell.pairs[2], both), add_pairs(sum.d, cell.pairs[3], both)};
    }

    using TwoRows = SumsOfTwoRows<float32x4_t>;

    static TwoRows join(const Lanes& first, const Lanes& second) {
        return join_rows<float32x4_t>({first.a, first.b, first.c, first.d}, {second.a, second.b, second.c, second.d});
    }
    static void split(const TwoRows& sums, Lanes& first, Lanes& second) {
        float32x4_t a[4];
        float32x4_t b[4];
        split_rows(sums, a, b);
        first = {a[0], a[1], a[2], a[3]};
        second = {b[0], b[1], b[2], b[3]};
    }
    static TwoCells two_cells(const Cell& first, const Cell& second) { return side_by_side(first.pairs, second.pairs); }
    static void multiply(TwoRows& sums, const TwoCells& cells, const Activation* x, const Activation* y) {
        const auto rows = (bfloat16x8_t)two_rows_of(x, y);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) sums.v[i] = vbfmmlaq_f32(sums.v[i], (bfloat16x8_t)cells.v[i], rows);
    }

    static void store_activation(Activation* p, Lanes x) {
        vst1q_u16(p, narrowed(x.a, x.b));
        vst1q_u16(p + 8, narrowed(x.c, x.d));
    }
    static void store_depth(Stored* cells, int lane, Lanes x) {
        std::uint16_t values[kLanes];
        store_activation(values, x);
        for (int i = 0; i < kLanes; i += 2) std::memcpy(cells + i / 2 * 32 + lane * 2, values + i, 4);
    }
    // Stored element by element: the other half of each pair is another token, perhaps of another thread.
    static void store_columns(Stored* cell, int place, Lanes x) {
        std::uint16_t values[kLanes];
        store_activation(values, x);
        for (int i = 0; i < kLanes; i++) cell[i * 2 + place] = values[i];
    }

private:
    static uint32x4_t load_pairs(const Stored* p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
    // Packs the upper halves of numbers whose lower halves are 0.
    static uint32x4_t upper_halves(float32x4_t first, float32x4_t second) {
        return vsriq_n_u32(vreinterpretq_u32_f32(second), vreinterpretq_u32_f32(first), 16);
    }
    static float32x4_t add_pairs(float32x4_t sum, uint32x4_t pairs, uint32x4_t x) {
        return vbfdotq_f32(sum, (bfloat16x8_t)pairs, (bfloat16x8_t)x);
    }
    static uint16x8_t narrowed(float32x4_t low, float32x4_t high) {
        return (uint16x8_t)vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high);
    }
};

template <class E>
constexpr int kMaxRows = 6;
constexpr int kWide = 1;
constexpr int kRowPanels = 2;

}  // namespace
}  // namespace weft

#include "kernels/table.h"

namespace weft {

const Kernels& neon_bf16_kernels(Element element) {
    return element == Element::kFloat32 ? neon_kernels(element) : kTable<Bfloat16>;
}

}  // namespace weft
