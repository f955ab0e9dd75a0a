// Kernels for x86 CPUs that multiply bfloat16 themselves (AVX-512 BF16).
#include "kernels/bfloat16_avx512.h"

namespace weft {
namespace {

template <class E>
constexpr int kMaxRows = 12;
constexpr int kWide = 2;
constexpr int kRowPanels = 4;

}  // namespace
}  // namespace weft

#include "kernels/table.h"

namespace weft {

const Kernels& avx512_bf16_kernels(Element element) {
    return element == Element::kFloat32 ? avx512_kernels(element) : kTable<Bfloat16>;
}

}  // namespace weft
