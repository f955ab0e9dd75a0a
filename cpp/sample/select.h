// Chooses, at run time, the passes for the CPU at hand.
#pragma once

#include <string>

#include "sample/passes.h"

namespace weft {

// The fastest passes for `path`, one of `usable_paths()`. All passes choose the same tokens.
const Passes& passes_of(const std::string& path);

}  // namespace weft
