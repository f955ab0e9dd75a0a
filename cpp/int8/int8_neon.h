// int8 in NEON registers. Included after `add_products` of an instruction set: four columns by depth four; each lane
// of `sum` gets the sum of one column.
#pragma once

#include "kernels/lanes_neon.h"

#include <cstring>

#include "int8/grouped.h"
#include "kernels/elements.h"

namespace weft {
namespace {

struct Ints {
    int32x4_t a;
    int32x4_t b;
    int32x4_t c;
    int32x4_t d;
};

inline Ints load(const std::int32_t* p) { return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}; }
inline void store(std::int32_t* p, Ints x) {
    vst1q_s32(p, x.a);
    vst1q_s32(p + 4, x.b);
    vst1q_s32(p + 8, x.c);
    vst1q_s32(p + 12, x.d);
}
inline Lanes to_floats(Ints x, std::int32_t shift) {
    const int32x4_t all = vdupq_n_s32(shift);
    return {vcvtq_f32_s32(vsubq_s32(x.a, all)), vcvtq_f32_s32(vsubq_s32(x.b, all)), vcvtq_f32_s32(vsubq_s32(x.c, all)),
            vcvtq_f32_s32(vsubq_s32(x.d, all))};
}
inline float32x4_t widen_bits(const std::uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline Lanes widen_bfloat16(const std::uint16_t* p) {
    return {widen_bits(p), widen_bits(p + 4), widen_bits(p + 8), widen_bits(p + 12)};
}
inline float32x4_t widen_half(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline Lanes widen_float16(const std::uint16_t* p) {
    return {widen_half(p), widen_half(p + 4), widen_half(p + 8), widen_half(p + 12)};
}
inline Ints splat_ints(std::int32_t value) {
    const int32x4_t v = vdupq_n_s32(value);
    return {v, v, v, v};
}
// Subtracts 16 zeros, each multiplied by `times`.
inline Ints take_products(Ints x, const std::int16_t* zeros, std::int32_t times) {
    const auto take = [=](int32x4_t from, int first) {
        return vmlsq_s32(from, vmovl_s16(vld1_s16(zeros + first)), vdupq_n_s32(times));
    };
    return {take(x.a, 0), take(x.b, 4), take(x.c, 8), take(x.d, 12)};
}
inline Ints add(Ints x, Ints y) {
    return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b), vaddq_s32(x.c, y.c), vaddq_s32(x.d, y.d)};
}
inline std::int32_t sum_of(Ints x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
// Stores whole numbers as int8, and returns them.
inline Ints narrow_to_int8(std::int8_t* p, Lanes x) {
    const int32x4_t a = vcvtq_s32_f32(x.a);
    const int32x4_t b = vcvtq_s32_f32(x.b);
    const int32x4_t c = vcvtq_s32_f32(x.c);
    const int32x4_t d = vcvtq_s32_f32(x.d);
    const int16x8_t low = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
    const int16x8_t high = vcombine_s16(vmovn_s32(c), vmovn_s32(d));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    return {a, b, c, d};
}

// The common part of int8 and four-bit numbers in registers.
struct InRegisters {
    struct Cell {
        uint32x4_t columns[4];
    };

    static Cell load_bytes(const std::uint8_t* p) {
        return {{load_columns(p), load_columns(p + 16), load_columns(p + 32), load_columns(p + 48)}};
    }
    // `of` of each register's bytes.
    template <class Of>
    static Cell each(const Cell& cell, const Of& of) {
        const auto made = [&](int i) { return vreinterpretq_u32_u8(of(vreinterpretq_u8_u32(cell.columns[i]))); };
        return {{made(0), made(1), made(2), made(3)}};
    }
    static Ints dot(Ints sum, const Cell& cell, const std::int8_t* x) {
        std::int32_t four;
        std::memcpy(&four, x, sizeof four);
        const int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(four));
        return {add_products(sum.a, cell.columns[0], all), add_products(sum.b, cell.columns[1], all),
                add_products(sum.c, cell.columns[2], all), add_products(sum.d, cell.columns[3], all)};
    }

private:
    static uint32x4_t load_columns(const std::uint8_t* p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
};

// Four bits: a cell is unpacked into two cells of depth four each.
struct FourBitsInRegisters : InRegisters {
    static void load_cells(const std::uint8_t* p, Cell (&cells)[2]) {
        const Cell both = load_bytes(p);
        cells[0] = each(both, [](uint8x16_t bytes) { return vandq_u8(bytes, vdupq_n_u8(15)); });
        cells[1] = each(both, [](uint8x16_t bytes) { return vshrq_n_u8(bytes, 4); });
    }
};

// Like FourBitsInRegisters, but the numbers are codes that are looked up.
struct CodesInRegisters : FourBitsInRegisters {
    static void load_cells(const std::uint8_t* p, Cell (&cells)[2]) {
        const uint8x16_t table = vld1q_u8(kE2m1);
        FourBitsInRegisters::load_cells(p, cells);
        for (Cell& cell : cells) cell = each(cell, [&](uint8x16_t codes) { return vqtbl1q_u8(table, codes); });
    }
};

struct Int8InRegisters : InRegisters {
    using Stored = std::uint8_t;
    using Activation = std::int8_t;
    using Number = std::int32_t;
    using Sum = Ints;
    static constexpr int kStep = 4;
    // Shift of the weights in sums; 0 if weights are shifted before.
    static constexpr std::int32_t kShift = kTakesBytes ? 128 : 0;

    static Sum zero() { return splat_ints(0); }
    static Cell load_cell(const Stored* p) {
        const Cell stored = load_bytes(p);
        if constexpr (kTakesBytes) return stored;
        return each(stored, [](uint8x16_t bytes) { return veorq_u8(bytes, vdupq_n_u8(128)); });
    }
};

}  // namespace
}  // namespace weft
