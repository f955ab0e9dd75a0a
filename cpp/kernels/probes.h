// Maximum throughput of this machine, measured beside a benchmark: arithmetic in registers, and reading memory.
#pragma once

#include "kernels/elements.h"

namespace weft {
namespace {

// Multiplies in registers only, as the micro-kernel does; returns the number of operations. Rows and lanes differ as
// far as the compiler knows, and all are summed: otherwise it would compute only some of them, once.
template <class E>
double probe_arithmetic(int rounds, float* sink) {
    constexpr int kRows = kMaxRows<E>;
    alignas(64) typename E::Stored stored[kWide][kCell<E>] = {};
    typename E::Activation x[kRows][E::kStep] = {};
    asm volatile("" : "+m"(stored));
    typename E::Cell cells[kWide];
#pragma GCC unroll 2
    for (int j = 0; j < kWide; j++) cells[j] = E::load_cell(stored[j]);
    typename E::Sum sum[kRows][kWide];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++)
#pragma GCC unroll 2
        for (int j = 0; j < kWide; j++) sum[m][j] = E::zero();
    for (int round = 0; round < rounds; round++) {
        asm volatile("" : "+m"(x));
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++)
#pragma GCC unroll 2
            for (int j = 0; j < kWide; j++) sum[m][j] = E::dot(sum[m][j], cells[j], x[m]);
    }
    *sink = 0.0F;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++)
#pragma GCC unroll 2
        for (int j = 0; j < kWide; j++) {
            typename E::Number lanes[kLanes];
            store(lanes, sum[m][j]);
            for (typename E::Number lane : lanes) *sink += static_cast<float>(lane);
        }
    return 2.0 * rounds * kRows * kWide * kLanes * E::kStep;
}

// Reads `bytes`, a multiple of 512, once from one end to the other.
inline void probe_reading(const void* data, std::size_t bytes, float* sink) {
    const float* p = static_cast<const float*>(data);
    Lanes sum[8];
    for (Lanes& lanes : sum) lanes = splat(0.0F);
    for (std::size_t i = 0; i + 128 <= bytes / 4; i += 128)
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) sum[j] = add(sum[j], load(p + i + j * kLanes));
    Lanes total = splat(0.0F);
    for (const Lanes& lanes : sum) total = add(total, lanes);
    *sink = sum_of(total);
}

}  // namespace
}  // namespace weft
