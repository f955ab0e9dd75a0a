// Passes for x86 CPUs with AVX2.
#include "kernels/lanes_avx2.h"

#include "sample/table.h"

namespace weft {

const Passes& avx2_passes() { return kPasses; }

}  // namespace weft
