// Kernels for x86 CPUs with AVX-512 (F, BW, DQ, VL), bfloat16 widened in registers.
#include "kernels/lanes_avx512.h"

#include "kernels/elements.h"

namespace weft {
namespace {

// Rows of a tile and columns of cells that fit the registers together.
template <class E>
constexpr int kMaxRows = E::kStep == 1 ? 12 : 12;
constexpr int kWide = 2;
constexpr int kRowPanels = 4;

}  // namespace
}  // namespace weft

#include "kernels/table.h"

namespace weft {

const Kernels& avx512_kernels(Element element) {
    return element == Element::kFloat32 ? kTable<Float32> : kTable<Bfloat16>;
}

}  // namespace weft
