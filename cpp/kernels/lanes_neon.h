// 16 floats in four NEON registers.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace weft {
namespace {

struct Lanes {
    float32x4_t a;
    float32x4_t b;
    float32x4_t c;
    float32x4_t d;
};

// Applies `of` to each register.
template <class Of>
inline Lanes each(Lanes x, const Of& of) {
    return {of(x.a), of(x.b), of(x.c), of(x.d)};
}
template <class Of>
inline Lanes each(Lanes x, Lanes y, const Of& of) {
    return {of(x.a, y.a), of(x.b, y.b), of(x.c, y.c), of(x.d, y.d)};
}

inline Lanes splat(float value) {
    const float32x4_t v = vdupq_n_f32(value);
    return {v, v, v, v};
}

inline Lanes load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }

inline void store(float* p, Lanes x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

inline float32x4_t larger(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
inline float32x4_t smaller(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }

inline Lanes add(Lanes x, Lanes y) { return each(x, y, vaddq_f32); }
inline Lanes sub(Lanes x, Lanes y) { return each(x, y, vsubq_f32); }
inline Lanes mul(Lanes x, Lanes y) { return each(x, y, vmulq_f32); }
inline Lanes div(Lanes x, Lanes y) { return each(x, y, vdivq_f32); }
inline Lanes fma(Lanes x, Lanes y, Lanes z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
// A NaN in `y` stays; one in `x` is lost. (The instruction that is made for this would keep both.)
inline Lanes max(Lanes x, Lanes y) { return each(x, y, larger); }
inline Lanes min(Lanes x, Lanes y) { return each(x, y, smaller); }

inline float32x4_t keep_four(float32x4_t x, int low, int high, float fill) {
    alignas(16) constexpr std::int32_t kPlaces[] = {0, 1, 2, 3};
    const int32x4_t place = vld1q_s32(kPlaces);
    const uint32x4_t kept = vandq_u32(vcgeq_s32(place, vdupq_n_s32(low)), vcltq_s32(place, vdupq_n_s32(high)));
    return vbslq_f32(kept, x, vdupq_n_f32(fill));
}

// Lanes [low, high) of `x`, `fill` elsewhere.
inline Lanes keep(Lanes x, int low, int high, float fill) {
    return {keep_four(x.a, low, high, fill), keep_four(x.b, low - 4, high - 4, fill),
            keep_four(x.c, low - 8, high - 8, fill), keep_four(x.d, low - 12, high - 12, fill)};
}

inline Lanes round_even(Lanes x) { return each(x, vrndnq_f32); }

inline float32x4_t power_of_two(float32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}

// x * 2^n for whole n from -126 to 127.
inline Lanes scale_by_power(Lanes x, Lanes n) { return mul(x, each(n, power_of_two)); }

inline float sum_of(Lanes x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

inline float max_of(Lanes x) {
    const float32x4_t four = larger(larger(x.a, x.c), larger(x.b, x.d));
    const float32x4_t two = larger(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(larger(two, vdupq_laneq_f32(two, 1)), 0);
}

// The upper halves, rounded to nearest even; a NaN stays a NaN.
inline uint16x4_t narrow_four(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}

inline void narrow_to(std::uint16_t* p, Lanes x) {
    vst1_u16(p, narrow_four(x.a));
    vst1_u16(p + 4, narrow_four(x.b));
    vst1_u16(p + 8, narrow_four(x.c));
    vst1_u16(p + 12, narrow_four(x.d));
}

// 16 pairs of bfloat16, split into their first and their second elements.
inline void split_pairs(const std::uint16_t* p, Lanes& first, Lanes& second) {
    const Lanes pairs = load(reinterpret_cast<const float*>(p));
    first = each(pairs, [](float32x4_t four) {
        return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(four), 16));
    });
    second = each(pairs, [](float32x4_t four) {
        return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(four), vdupq_n_u32(0xFFFF0000U)));
    });
}

inline float32x4_t widen_four(int16x4_t words) { return vcvtq_f32_s32(vmovl_s16(words)); }

inline Lanes widen_words(int16x8_t low, int16x8_t high) {
    return {widen_four(vget_low_s16(low)), widen_four(vget_high_s16(low)), widen_four(vget_low_s16(high)),
            widen_four(vget_high_s16(high))};
}

inline Lanes widen_int8(const std::int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    return widen_words(vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
}

// 16 pairs of int8, split into their first and their second elements.
inline void split_int8_pairs(const std::int8_t* p, Lanes& first, Lanes& second) {
    const int16x8_t low = vreinterpretq_s16_s8(vld1q_s8(p));
    const int16x8_t high = vreinterpretq_s16_s8(vld1q_s8(p + 16));
    first = widen_words(vshrq_n_s16(vshlq_n_s16(low, 8), 8), vshrq_n_s16(vshlq_n_s16(high, 8), 8));
    second = widen_words(vshrq_n_s16(low, 8), vshrq_n_s16(high, 8));
}

// Prefetches into the second cache. Not `__builtin_prefetch`: GCC considers a function that does nothing else to be
// without effect, and removes calls of it.
inline void prefetch(const void* p) { asm volatile("prfm pldl2keep, [%0]" : : "r"(p)); }

}  // namespace
}  // namespace weft
