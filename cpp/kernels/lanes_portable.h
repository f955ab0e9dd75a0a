// 16 floats in plain C++: the compiler uses the vector instructions of the base architecture.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace weft {
namespace {

struct Lanes {
    float v[16];
};

inline Lanes splat(float value) {
    Lanes r;
    for (float& lane : r.v) lane = value;
    return r;
}

inline Lanes load(const float* p) {
    Lanes r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}

inline void store(float* p, Lanes a) { std::memcpy(p, a.v, sizeof a.v); }

#define WEFT_EACH(expression)                  \
    Lanes r;                                   \
    for (int i = 0; i < 16; i++) r.v[i] = (expression); \
    return r

inline Lanes add(Lanes a, Lanes b) { WEFT_EACH(a.v[i] + b.v[i]); }
inline Lanes sub(Lanes a, Lanes b) { WEFT_EACH(a.v[i] - b.v[i]); }
inline Lanes mul(Lanes a, Lanes b) { WEFT_EACH(a.v[i] * b.v[i]); }
inline Lanes div(Lanes a, Lanes b) { WEFT_EACH(a.v[i] / b.v[i]); }
// Two roundings: a fused one would be a library call where the base architecture has none.
inline Lanes fma(Lanes a, Lanes b, Lanes c) { WEFT_EACH(a.v[i] * b.v[i] + c.v[i]); }
// A NaN in `b` stays; one in `a` is lost.
inline Lanes max(Lanes a, Lanes b) { WEFT_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline Lanes min(Lanes a, Lanes b) { WEFT_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
// Lanes [low, high) of `a`, `fill` elsewhere.
inline Lanes keep(Lanes a, int low, int high, float fill) {
    WEFT_EACH(i >= low && i < high ? a.v[i] : fill);
}

#undef WEFT_EACH

inline Lanes round_even(Lanes a) {
    // Adding 1.5 * 2^23 leaves no fraction bits; right for |a| < 2^22, and exp needs less.
    const Lanes magic = splat(12582912.0F);
    return sub(add(a, magic), magic);
}

// a * 2^n for whole n from -126 to 127.
inline Lanes scale_by_power(Lanes a, Lanes n) {
    Lanes r;
    for (int i = 0; i < 16; i++) {
        // A NaN cannot be converted; `a` is NaN then too, and stays NaN.
        const float whole = n.v[i] == n.v[i] ? n.v[i] : 0.0F;
        const std::uint32_t bits = static_cast<std::uint32_t>(static_cast<std::int32_t>(whole) + 127) << 23;
        float power;
        std::memcpy(&power, &bits, sizeof power);
        r.v[i] = a.v[i] * power;
    }
    return r;
}

inline float sum_of(Lanes a) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) a.v[i] += a.v[i + width];
    return a.v[0];
}

inline float max_of(Lanes a) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
    return a.v[0];
}

inline float widen(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

inline std::uint16_t narrow(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40);  // stays a NaN
    return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline void narrow_to(std::uint16_t* p, Lanes a) {
    for (int i = 0; i < 16; i++) p[i] = narrow(a.v[i]);
}

// 16 pairs of bfloat16, split into their first and their second elements.
inline void split_pairs(const std::uint16_t* p, Lanes& first, Lanes& second) {
    for (int i = 0; i < 16; i++) {
        first.v[i] = widen(p[2 * i]);
        second.v[i] = widen(p[2 * i + 1]);
    }
}

inline Lanes widen_int8(const std::int8_t* p) {
    Lanes r;
    for (int i = 0; i < 16; i++) r.v[i] = p[i];
    return r;
}

// 16 pairs of int8, split into their first and their second elements.
inline void split_int8_pairs(const std::int8_t* p, Lanes& first, Lanes& second) {
    for (int i = 0; i < 16; i++) {
        first.v[i] = p[2 * i];
        second.v[i] = p[2 * i + 1];
    }
}

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace weft
