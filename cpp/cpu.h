// Features of this machine's CPU; the choice of kernels and the start banner use them.
#pragma once

#include <string>
#include <vector>

namespace weft {

// "x86-64", "aarch64" or "other".
std::string cpu_architecture();

// Names of the vector extensions that both the CPU and the operating system support, in the
// spelling of /proc/cpuinfo, weakest first.
std::vector<std::string> cpu_features();

}  // namespace weft
