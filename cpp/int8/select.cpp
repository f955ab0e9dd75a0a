#include "int8/select.h"

#include <algorithm>
#include <vector>

#include "cpu.h"

namespace weft {

const Int8Kernels& int8_kernels_of(const std::string& path) {
    const std::vector<std::string> features = cpu_features();
    [[maybe_unused]] const auto has = [&](const char* feature) {
        return std::find(features.begin(), features.end(), feature) != features.end();
    };
#if defined(__x86_64__)
    if (path == "amx" && has("amx_int8") && has("avx512_vnni")) return amx_int8_kernels();
    if (path == "amx" || path.starts_with("avx512"))
        return has("avx512_vnni") ? avx512_vnni_int8_kernels() : avx2_int8_kernels();
    if (path == "avx2") return avx2_int8_kernels();
#elif defined(__aarch64__)
    if (path.starts_with("neon") && has("i8mm")) return neon_i8mm_int8_kernels();
    if (path.starts_with("neon")) return has("asimddp") ? neon_dot_int8_kernels() : neon_int8_kernels();
#endif
    (void)path;
    return portable_int8_kernels();
}

}  // namespace weft
