// Chooses, at run time, the int8 kernels for this machine's CPU.
#pragma once

#include <string>

#include "int8/int8.h"

namespace weft {

// The fastest int8 kernels for `path`, one of `usable_paths()`. All int8 kernels give the same bits.
const Int8Kernels& int8_kernels_of(const std::string& path);

}  // namespace weft
