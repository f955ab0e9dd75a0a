// 16 floats in two AVX2 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace weft {
namespace {

struct Lanes {
    __m256 low;
    __m256 high;
};

inline Lanes splat(float value) {
    const __m256 v = _mm256_set1_ps(value);
    return {v, v};
}

inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }

inline void store(float* p, Lanes a) {
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}

inline Lanes add(Lanes a, Lanes b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Lanes sub(Lanes a, Lanes b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Lanes mul(Lanes a, Lanes b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Lanes div(Lanes a, Lanes b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// A NaN in `b` stays; one in `a` is lost.
inline Lanes max(Lanes a, Lanes b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Lanes min(Lanes a, Lanes b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

inline __m256 keep_half(__m256 a, __m256i lane, int low, int high, float fill) {
    const __m256i from_low = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(low - 1));
    const __m256i below_high = _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane);
    const __m256 kept = _mm256_castsi256_ps(_mm256_and_si256(from_low, below_high));
    return _mm256_blendv_ps(_mm256_set1_ps(fill), a, kept);
}

// Lanes [low, high) of `a`, `fill` elsewhere.
inline Lanes keep(Lanes a, int low, int high, float fill) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {keep_half(a.low, lane, low, high, fill), keep_half(a.high, lane, low - 8, high - 8, fill)};
}

inline Lanes round_even(Lanes a) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, kNearest), _mm256_round_ps(a.high, kNearest)};
}

inline __m256 power_of_two(__m256 n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}

// a * 2^n for whole n from -126 to 127.
inline Lanes scale_by_power(Lanes a, Lanes n) {
    return {_mm256_mul_ps(a.low, power_of_two(n.low)), _mm256_mul_ps(a.high, power_of_two(n.high))};
}

inline float sum_of(Lanes a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float max_of(Lanes a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The upper halves, rounded to nearest even; a NaN stays a NaN. Each result is in the low 16 bits of its lane.
inline __m256i narrow_half(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

inline void narrow_to(std::uint16_t* p, Lanes a) {
    const __m256i mixed = _mm256_packus_epi32(narrow_half(a.low), narrow_half(a.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xD8));
}

// 16 pairs of bfloat16, split into their first and their second elements.
inline void split_pairs(const std::uint16_t* p, Lanes& first, Lanes& second) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
    first.low = _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
    first.high = _mm256_castsi256_ps(_mm256_slli_epi32(high, 16));
    second.low = _mm256_castsi256_ps(_mm256_and_si256(low, upper));
    second.high = _mm256_castsi256_ps(_mm256_and_si256(high, upper));
}

inline __m256 widen_eight(__m128i words) { return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(words)); }

inline Lanes widen_words(__m256i words) {
    return {widen_eight(_mm256_castsi256_si128(words)), widen_eight(_mm256_extracti128_si256(words, 1))};
}

inline Lanes widen_int8(const std::int8_t* p) {
    return widen_words(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// 16 pairs of int8, split into their first and their second elements.
inline void split_int8_pairs(const std::int8_t* p, Lanes& first, Lanes& second) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    first = widen_words(_mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 8));
    second = widen_words(_mm256_srai_epi16(pairs, 8));
}

// Prefetches into the second cache: into the first, a stream has half the rate. Not `_mm_prefetch`: GCC considers a
// function that does nothing else to be without effect, and removes calls of it.
inline void prefetch(const void* p) { asm volatile("prefetcht1 (%0)" : : "r"(p)); }

}  // namespace
}  // namespace weft
