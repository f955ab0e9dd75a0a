// Passes for x86 CPUs with AVX-512.
#include "kernels/lanes_avx512.h"

#include "sample/table.h"

namespace weft {

const Passes& avx512_passes() { return kPasses; }

}  // namespace weft
