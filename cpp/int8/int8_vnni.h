// int8 where the CPU adds up four products in one instruction (AVX-512 VNNI).
#pragma once

#include "kernels/lanes_avx512.h"

#include <cstring>

#include "int8/grouped.h"
#include "kernels/elements.h"

namespace weft {
namespace {

typedef int SixteenInts __attribute__((vector_size(64)));

struct Ints {
    SixteenInts v;
};

inline Ints load(const std::int32_t* p) { return {(SixteenInts)_mm512_loadu_si512(p)}; }
inline void store(std::int32_t* p, Ints a) { _mm512_storeu_si512(p, (__m512i)a.v); }
inline Lanes to_floats(Ints a, std::int32_t shift) {
    return {_mm512_cvtepi32_ps(_mm512_sub_epi32((__m512i)a.v, _mm512_set1_epi32(shift)))};
}
inline Lanes widen_bfloat16(const std::uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Lanes widen_float16(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Ints splat_ints(std::int32_t value) { return {(SixteenInts)_mm512_set1_epi32(value)}; }
// Subtracts 16 zeros, each multiplied by `times`.
inline Ints take_products(Ints a, const std::int16_t* zeros, std::int32_t times) {
    const __m512i wide = _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(zeros)));
    return {(SixteenInts)_mm512_sub_epi32((__m512i)a.v, _mm512_mullo_epi32(wide, _mm512_set1_epi32(times)))};
}
inline Ints add(Ints a, Ints b) { return {a.v + b.v}; }
inline std::int32_t sum_of(Ints a) { return _mm512_reduce_add_epi32((__m512i)a.v); }
// Stores whole numbers as int8, and returns them.
inline Ints narrow_to_int8(std::int8_t* p, Lanes a) {
    const __m512i whole = _mm512_cvtps_epi32(a.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(whole));
    return {(SixteenInts)whole};
}

struct Int8 {
    using Stored = std::uint8_t;
    using Activation = std::int8_t;
    using Number = std::int32_t;
    using Sum = Ints;
    static constexpr int kStep = 4;
    static constexpr std::int32_t kShift = 128;  // sums are computed with the shifted weights

    struct Cell {
        __m512i bytes;
    };

    static Sum zero() { return {SixteenInts{}}; }
    static Cell load_cell(const Stored* p) { return {_mm512_loadu_si512(p)}; }
    static Sum dot(Sum sum, const Cell& cell, const Activation* x) {
        int four;
        std::memcpy(&four, x, sizeof four);
        return {(SixteenInts)_mm512_dpbusd_epi32((__m512i)sum.v, cell.bytes, _mm512_set1_epi32(four))};
    }
};

// Four bits: a cell is unpacked into two cells of depth four each.
struct Int4 {
    using Cell = Int8::Cell;

    static void load_cells(const std::uint8_t* p, Cell (&cells)[2]) {
        const __m512i both = _mm512_loadu_si512(p);
        const __m512i low = _mm512_set1_epi8(15);
        cells[0].bytes = _mm512_and_si512(both, low);
        cells[1].bytes = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    static Ints dot(Ints sum, const Cell& cell, const std::int8_t* x) { return Int8::dot(sum, cell, x); }
};

// Like Int4, but the numbers are codes that are looked up.
struct E2m1 : Int4 {
    static void load_cells(const std::uint8_t* p, Cell (&cells)[2]) {
        const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kE2m1)));
        Int4::load_cells(p, cells);
        for (Cell& cell : cells) cell.bytes = _mm512_shuffle_epi8(table, cell.bytes);
    }
};

template <class E>
constexpr int kMaxRows = 12;
constexpr int kWide = 2;
constexpr int kRowPanels = 4;

}  // namespace
}  // namespace weft
