// bfloat16 where the CPU multiplies it itself (AVX-512 BF16).
#pragma once

#define WEFT_MULTIPLIES_BFLOAT16

#include "kernels/lanes_avx512.h"

#include <cstring>

#include "kernels/elements.h"

namespace weft {
namespace {

// One instruction, which flushes subnormal results to zero like the products.
inline __m256i narrowed(Lanes a) { return (__m256i)_mm512_cvtneps_pbh(a.v); }

struct Bfloat16 {
    using Stored = std::uint16_t;
    using Activation = std::uint16_t;
    using Number = float;
    using Sum = Lanes;
    static constexpr Element kElement = Element::kBfloat16;
    static constexpr int kStep = 2;
    static constexpr int kScaleBytes = 0;

    struct Cell {
        __m512i pairs;
    };

    static Sum zero() { return splat(0.0F); }
    static Cell load_cell(const Stored* p) { return {_mm512_loadu_si512(p)}; }
    static Cell widen_cell(const std::int8_t* p) {
        return {(__m512i)_mm512_cvtne2ps_pbh(widen_int8(p + kLanes).v, widen_int8(p).v)};
    }
    static void store_cell(void* p, const Cell& cell) { _mm512_store_si512(p, cell.pairs); }
    static Lanes dot(Lanes sum, const Cell& cell, const Activation* x) {
        int pair;
        std::memcpy(&pair, x, sizeof pair);
        const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
        return {_mm512_dpbf16_ps(sum.v, both, (__m512bh)cell.pairs)};
    }
    static void store_activation(Activation* p, Lanes a) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrowed(a));
    }
    static void store_depth(Stored* cells, int lane, Lanes a) {
        std::uint16_t values[kLanes];
        store_activation(values, a);
        for (int i = 0; i < kLanes; i += 2) std::memcpy(cells + i / 2 * 32 + lane * 2, values + i, 4);
    }
    // A masked store: the other half of each pair is another token, perhaps of another thread.
    static void store_columns(Stored* cell, int place, Lanes a) {
        const __m512i wide = _mm512_cvtepu16_epi32(narrowed(a));
        const __m512i placed = place == 0 ? wide : _mm512_slli_epi32(wide, 16);
        _mm512_mask_storeu_epi16(cell, place == 0 ? 0x55555555U : 0xAAAAAAAAU, placed);
    }
};

}  // namespace
}  // namespace weft
