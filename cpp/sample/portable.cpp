// Passes in plain C++, for every CPU.
#include "kernels/lanes_portable.h"

#include "sample/table.h"

namespace weft {

const Passes& portable_passes() { return kPasses; }

}  // namespace weft
