// The only file that knows Python: it exposes the C++ core as `weft.compute.native._core`.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu.h"

namespace nb = nanobind;

NB_MODULE(_core, module) {
    module.def("cpu_architecture", &weft::cpu_architecture);
    module.def("cpu_features", &weft::cpu_features);
}
