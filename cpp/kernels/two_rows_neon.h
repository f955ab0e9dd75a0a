// Products of two rows at once by ARM's matrix instructions: two columns, 8 bytes deep, times two rows, give four
// sums. Each sum equals that of the instructions for one row, so the choice of instructions changes no bit.
#pragma once

#include <arm_neon.h>

#include "kernels/kernels.h"

namespace weft {
namespace {

// Sums of 16 columns and two rows; a register holds the sums of two columns, row beside row.
template <class Four>
struct SumsOfTwoRows {
    Four v[8];
};

// Two cells that follow each other in depth; a register holds two columns.
struct TwoCells {
    uint32x4_t v[8];
};

inline TwoCells side_by_side(const uint32x4_t (&first)[4], const uint32x4_t (&second)[4]) {
    TwoCells cells;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        cells.v[2 * i] = vzip1q_u32(first[i], second[i]);
        cells.v[2 * i + 1] = vzip2q_u32(first[i], second[i]);
    }
    return cells;
}

inline uint8x16_t two_rows_of(const void* first, const void* second) {
    return vcombine_u8(vld1_u8(static_cast<const std::uint8_t*>(first)), vld1_u8(static_cast<const std::uint8_t*>(second)));
}

template <class Four>
inline SumsOfTwoRows<Four> join_rows(const Four (&first)[4], const Four (&second)[4]) {
    SumsOfTwoRows<Four> sums;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        sums.v[2 * i] = (Four)vzip1q_u32((uint32x4_t)first[i], (uint32x4_t)second[i]);
        sums.v[2 * i + 1] = (Four)vzip2q_u32((uint32x4_t)first[i], (uint32x4_t)second[i]);
    }
    return sums;
}

template <class Four>
inline void split_rows(const SumsOfTwoRows<Four>& sums, Four (&first)[4], Four (&second)[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        first[i] = (Four)vuzp1q_u32((uint32x4_t)sums.v[2 * i], (uint32x4_t)sums.v[2 * i + 1]);
        second[i] = (Four)vuzp2q_u32((uint32x4_t)sums.v[2 * i], (uint32x4_t)sums.v[2 * i + 1]);
    }
}

}  // namespace
}  // namespace weft
