// int8 for ARM CPUs that add up four products in one instruction (FEAT_DotProd).
#include <arm_neon.h>

namespace weft {
namespace {

constexpr bool kTakesBytes = false;

inline int32x4_t add_products(int32x4_t sum, uint32x4_t columns, int8x16_t x) {
    return vdotq_s32(sum, vreinterpretq_s8_u32(columns), x);
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
constexpr int kMaxRows = 5;
constexpr int kWide = 1;
constexpr int kRowPanels = 2;

}  // namespace
}  // namespace weft

#include "int8/product.h"

namespace weft {

const Int8Kernels& neon_dot_int8_kernels() { return kInt8Table; }

}  // namespace weft
