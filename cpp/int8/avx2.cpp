// int8 for x86 CPUs with AVX2.
#include "kernels/lanes_avx2.h"

#include <cstring>

#include "int8/grouped.h"
#include "kernels/elements.h"

namespace weft {
namespace {

struct Ints {
    __m256i low;
    __m256i high;
};

inline Ints load(const std::int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void store(std::int32_t* p, Ints a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.high);
}
inline Lanes to_floats(Ints a, std::int32_t shift) {
    const __m256i all = _mm256_set1_epi32(shift);
    return {_mm256_cvtepi32_ps(_mm256_sub_epi32(a.low, all)),
            _mm256_cvtepi32_ps(_mm256_sub_epi32(a.high, all))};
}
inline __m256 widen_half(const std::uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Lanes widen_bfloat16(const std::uint16_t* p) { return {widen_half(p), widen_half(p + 8)}; }
// Widens finite float16 numbers: the exponent bits are shifted into place, and an exact multiplication corrects the
// bias.
inline __m256 widen_eight_float16(const std::uint16_t* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x8000)), 16);
    const __m256i rest = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFF)), 13);
    const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(rest), _mm256_set1_ps(0x1p112F));
    return _mm256_or_ps(value, _mm256_castsi256_ps(sign));
}
inline Lanes widen_float16(const std::uint16_t* p) { return {widen_eight_float16(p), widen_eight_float16(p + 8)}; }
inline Ints splat_ints(std::int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
inline __m256i take_eight(__m256i a, const std::int16_t* zeros, std::int32_t times) {
    const __m256i wide = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros)));
    return _mm256_sub_epi32(a, _mm256_mullo_epi32(wide, _mm256_set1_epi32(times)));
}
// Subtracts 16 zeros, each multiplied by `times`.
inline Ints take_products(Ints a, const std::int16_t* zeros, std::int32_t times) {
    return {take_eight(a.low, zeros, times), take_eight(a.high, zeros + 8, times)};
}

// Eight columns. The instruction adds pairs of products in 16 bits, where 255 * 127 * 2 would not fit: so the
// weight's magnitude, at most 127, is multiplied, and its sign is applied to the activation.
struct EightColumns {
    __m256i weights;
    __m256i magnitudes;
};

inline EightColumns load_columns(const std::uint8_t* p) {
    const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i weights = _mm256_xor_si256(stored, _mm256_set1_epi8(static_cast<char>(0x80)));
    return {weights, _mm256_abs_epi8(weights)};
}

inline __m256i add_products(__m256i sum, const EightColumns& columns, __m256i x) {
    const __m256i signed_x = _mm256_sign_epi8(x, columns.weights);
    const __m256i pairs = _mm256_maddubs_epi16(columns.magnitudes, signed_x);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

inline Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline std::int32_t sum_of(Ints a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}
// Stores whole numbers as int8, and returns them.
inline Ints narrow_to_int8(std::int8_t* p, Lanes a) {
    const Ints whole{_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
    // Packing works within halves of a register: the quarters are interleaved until they are put in order.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole.low, whole.high), 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    return whole;
}

struct Int8 {
    using Stored = std::uint8_t;
    using Activation = std::int8_t;
    using Number = std::int32_t;
    using Sum = Ints;
    static constexpr int kStep = 4;
    // Weights are shifted before the multiplication, so sums need no shift.
    static constexpr std::int32_t kShift = 0;

    struct Cell {
        EightColumns low;
        EightColumns high;
    };

    static Sum zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static Cell load_cell(const Stored* p) { return {load_columns(p), load_columns(p + 32)}; }
    static Sum dot(Sum sum, const Cell& cell, const Activation* x) {
        int four;
        std::memcpy(&four, x, sizeof four);
        const __m256i all = _mm256_set1_epi32(four);
        return {add_products(sum.low, cell.low, all), add_products(sum.high, cell.high, all)};
    }
};

// Four bits: a cell is unpacked into two cells of depth four each.
struct Int4 {
    struct Cell {
        __m256i low;
        __m256i high;
    };
    struct NarrowSum {
        __m256i low;
        __m256i high;
    };
    static constexpr int kNarrowSteps = 4;  // 8 pairs of products, 2 * 15 * 127 each, fit 16 bits

    static void load_cells(const std::uint8_t* p, Cell (&cells)[2]) {
        const __m256i mask = _mm256_set1_epi8(15);
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
        cells[0] = {_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)};
        cells[1] = {_mm256_and_si256(_mm256_srli_epi16(low, 4), mask),
                    _mm256_and_si256(_mm256_srli_epi16(high, 4), mask)};
    }
    static NarrowSum dot_narrow(NarrowSum sum, const Cell& cell, const std::int8_t* x) {
        int four;
        std::memcpy(&four, x, sizeof four);
        const __m256i all = _mm256_set1_epi32(four);
        return {_mm256_add_epi16(sum.low, _mm256_maddubs_epi16(cell.low, all)),
                _mm256_add_epi16(sum.high, _mm256_maddubs_epi16(cell.high, all))};
    }
    static Ints widen(Ints sum, NarrowSum narrow) {
        const __m256i one = _mm256_set1_epi16(1);
        return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(narrow.low, one)),
                _mm256_add_epi32(sum.high, _mm256_madd_epi16(narrow.high, one))};
    }
};

// Like Int4, but the numbers are codes that are looked up.
struct E2m1 : Int4 {
    static constexpr int kNarrowSteps = 2;  // 4 pairs of products, 2 * 24 * 127 each

    static void load_cells(const std::uint8_t* p, Cell (&cells)[2]) {
        const __m128i few = _mm_load_si128(reinterpret_cast<const __m128i*>(kE2m1));
        const __m256i table = _mm256_broadcastsi128_si256(few);
        Int4::load_cells(p, cells);
        for (Cell& cell : cells)
            cell = {_mm256_shuffle_epi8(table, cell.low), _mm256_shuffle_epi8(table, cell.high)};
    }
};

template <class E>
constexpr int kMaxRows = 4;
constexpr int kWide = 1;
constexpr int kRowPanels = 1;

}  // namespace
}  // namespace weft

#include "int8/product.h"

namespace weft {

const Int8Kernels& avx2_int8_kernels() { return kInt8Table; }

}  // namespace weft
