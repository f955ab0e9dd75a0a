// int8 for ARM CPUs that multiply matrices of it (FEAT_I8MM): unsigned weights by signed activations.
#include <arm_neon.h>

namespace weft {
namespace {

constexpr bool kTakesBytes = true;

inline int32x4_t add_products(int32x4_t sum, uint32x4_t columns, int8x16_t x) {
    return vusdotq_s32(sum, vreinterpretq_u8_u32(columns), x);
}

}  // namespace
}  // namespace weft

#include "int8/int8_neon.h"
#include "kernels/two_rows_neon.h"

namespace weft {
namespace {

template <class E>
struct InTwoRows : E {
    using typename E::Cell;
    using TwoRows = SumsOfTwoRows<int32x4_t>;

    static TwoRows join(const Ints& first, const Ints& second) {
        return join_rows<int32x4_t>({first.a, first.b, first.c, first.d}, {second.a, second.b, second.c, second.d});
    }
    static void split(const TwoRows& sums, Ints& first, Ints& second) {
        int32x4_t a[4];
        int32x4_t b[4];
        split_rows(sums, a, b);
        first = {a[0], a[1], a[2], a[3]};
        second = {b[0], b[1], b[2], b[3]};
    }
    static TwoCells two_cells(const Cell& first, const Cell& second) {
        return side_by_side(first.columns, second.columns);
    }
    static void multiply(TwoRows& sums, const TwoCells& cells, const std::int8_t* x, const std::int8_t* y) {
        const auto rows = (int8x16_t)two_rows_of(x, y);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) sums.v[i] = vusmmlaq_s32(sums.v[i], vreinterpretq_u8_u32(cells.v[i]), rows);
    }
};

using Int8 = InTwoRows<Int8InRegisters>;
using Int4 = InTwoRows<FourBitsInRegisters>;
using E2m1 = InTwoRows<CodesInRegisters>;

template <class E>
constexpr int kMaxRows = 6;
constexpr int kWide = 1;
constexpr int kRowPanels = 2;

}  // namespace
}  // namespace weft

#include "int8/product.h"

namespace weft {

const Int8Kernels& neon_i8mm_int8_kernels() { return kInt8Table; }

}  // namespace weft
