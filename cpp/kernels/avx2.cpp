// Kernels for x86 CPUs with AVX2 and FMA.
#include "kernels/lanes_avx2.h"

#include "kernels/elements.h"

namespace weft {
namespace {

// Rows of a tile and columns of cells that fit the registers together.
template <class E>
constexpr int kMaxRows = E::kStep == 1 ? 6 : 4;
constexpr int kWide = 1;
constexpr int kRowPanels = 2;

}  // namespace
}  // namespace weft

#include "kernels/table.h"

namespace weft {

const Kernels& avx2_kernels(Element element) {
    return element == Element::kFloat32 ? kTable<Float32> : kTable<Bfloat16>;
}

}  // namespace weft
