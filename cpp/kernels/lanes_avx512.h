// 16 floats in one AVX-512 register.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace weft {
namespace {

struct Lanes {
    __m512 v;
};

inline Lanes splat(float value) { return {_mm512_set1_ps(value)}; }
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// A NaN in `b` stays; one in `a` is lost.
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }

// Lanes [low, high) of `a`, `fill` elsewhere.
inline Lanes keep(Lanes a, int low, int high, float fill) {
    const unsigned from_low = low <= 0 ? 0xFFFFU : low >= 16 ? 0U : 0xFFFFU << low;
    const unsigned below_high = high <= 0 ? 0U : high >= 16 ? 0xFFFFU : 0xFFFFU >> (16 - high);
    const __mmask16 kept = static_cast<__mmask16>(from_low & below_high);
    return {_mm512_mask_mov_ps(_mm512_set1_ps(fill), kept, a.v)};
}

inline Lanes round_even(Lanes a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// a * 2^n for whole n from -126 to 127.
inline Lanes scale_by_power(Lanes a, Lanes n) { return {_mm512_scalef_ps(a.v, n.v)}; }

inline __m256 upper_half(__m512 a) { return _mm512_extractf32x8_ps(a, 1); }

inline float sum_of(Lanes a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float max_of(Lanes a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The upper halves, rounded to nearest even; a NaN stays a NaN.
inline void narrow_to(std::uint16_t* p, Lanes a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, is_nan, quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(chosen));
}

// 16 pairs of bfloat16, split into their first and their second elements.
inline void split_pairs(const std::uint16_t* p, Lanes& first, Lanes& second) {
    const __m512i pairs = _mm512_loadu_si512(p);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
    first.v = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    second.v = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
}

inline Lanes widen_int8(const std::int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

// 16 pairs of int8, split into their first and their second elements.
inline void split_int8_pairs(const std::int8_t* p, Lanes& first, Lanes& second) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i low = _mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 8);
    first.v = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(low));
    second.v = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_srai_epi16(pairs, 8)));
}

// Prefetches into the second cache: into the first, a stream has half the rate. Not `_mm_prefetch`: GCC considers a
// function that does nothing else to be without effect, and removes calls of it.
inline void prefetch(const void* p) { asm volatile("prefetcht1 (%0)" : : "r"(p)); }

}  // namespace
}  // namespace weft
