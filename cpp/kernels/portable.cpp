// Kernels in plain C++, for every CPU.
#include "kernels/lanes_portable.h"

#include "kernels/elements.h"

namespace weft {
namespace {

// Rows of a tile and columns of cells that fit the registers together.
template <class E>
constexpr int kMaxRows = E::kStep == 1 ? 2 : 2;
constexpr int kWide = 1;
constexpr int kRowPanels = 1;

}  // namespace
}  // namespace weft

#include "kernels/table.h"

namespace weft {

const Kernels& portable_kernels(Element element) {
    return element == Element::kFloat32 ? kTable<Float32> : kTable<Bfloat16>;
}

}  // namespace weft
