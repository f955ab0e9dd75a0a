// Passes for every ARM CPU of 64 bits (NEON).
#include "kernels/lanes_neon.h"

#include "sample/table.h"

namespace weft {

const Passes& neon_passes() { return kPasses; }

}  // namespace weft
