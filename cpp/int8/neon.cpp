// int8 for every ARM CPU of 64 bits (NEON).
#include <arm_neon.h>

namespace weft {
namespace {

constexpr bool kTakesBytes = false;

// Two products fit 16 bits: 2 * 128 * 127.
inline int32x4_t add_products(int32x4_t sum, uint32x4_t columns, int8x16_t x) {
    const int8x16_t weights = vreinterpretq_s8_u32(columns);
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(x));
    return vpadalq_s16(sum, vpaddq_s16(low, vmull_high_s8(weights, x)));
}

}  // namespace
}  // namespace weft

#include "int8/int8_neon.h"

namespace weft {
namespace {

using Int8 = Int8InRegisters;
using Int4 = FourBitsInRegisters;
using E2m1 = CodesInRegisters;

template <class E>
constexpr int kMaxRows = 4;
constexpr int kWide = 1;
constexpr int kRowPanels = 2;

}  // namespace
}  // namespace weft

#include "int8/product.h"

namespace weft {

const Int8Kernels& neon_int8_kernels() { return kInt8Table; }

}  // namespace weft
