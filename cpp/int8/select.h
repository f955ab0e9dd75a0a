// Chooses, at run time, the int8 kernels for the CPU at hand.
#pragma once

#include <string>

#include "int8/int8.h"

namespace weft {

// The fastest that belong to `path`, one of `usable_paths()`. All of them give the same bits.
const Int8Kernels& int8_kernels_of(const std::string& path);

}  // namespace weft
