// Kernels for every ARM CPU of 64 bits (NEON), bfloat16 widened in registers: sums in the order, and to the bits, of AVX2.
#include "kernels/lanes_neon.h"

#include "kernels/elements.h"

namespace weft {
namespace {

// Rows of a tile and columns of cells that fit the registers together.
template <class E>
constexpr int kMaxRows = E::kStep == 1 ? 6 : 5;
constexpr int kWide = 1;
constexpr int kRowPanels = 2;

}  // namespace
}  // namespace weft

#include "kernels/table.h"

namespace weft {

const Kernels& neon_kernels(Element element) {
    return element == Element::kFloat32 ? kTable<Float32> : kTable<Bfloat16>;
}

}  // namespace weft
