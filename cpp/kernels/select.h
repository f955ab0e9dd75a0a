// Chooses, at run time, the kernels for this machine's CPU.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace weft {

// Names of the paths that this build has and this CPU can run, best first. The last is "portable".
std::vector<std::string> usable_paths();

// Throws std::invalid_argument if `path` is not one of `usable_paths()`.
const Kernels& kernels_of(const std::string& path, Element element);

}  // namespace weft
