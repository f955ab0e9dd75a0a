#include "int8/select.h"

#include <algorithm>
#include <vector>

#include "cpu.h"

namespace weft {

const Int8Kernels& int8_kernels_of(const std::string& path) {
#if defined(__x86_64__)
    const std::vector<std::string> features = cpu_features();
    const auto has = [&](const char* feature) {
        return std::find(features.begin(), features.end(), feature) != features.end();
    };
    if (path == "amx" && has("amx_int8") && has("avx512_vnni")) return amx_int8_kernels();
    if (path == "amx" || path.starts_with("avx512"))
        return has("avx512_vnni") ? avx512_vnni_int8_kernels() : avx2_int8_kernels();
    if (path == "avx2") return avx2_int8_kernels();
#endif
    (void)path;
    return portable_int8_kernels();
}

}  // namespace weft
