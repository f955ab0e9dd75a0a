#include "sample/select.h"

namespace weft {

const Passes& passes_of(const std::string& path) {
#if defined(__x86_64__)
    if (path == "amx" || path.starts_with("avx512")) return avx512_passes();
    if (path == "avx2") return avx2_passes();
#elif defined(__aarch64__)
    if (path.starts_with("neon")) return neon_passes();
#endif
    (void)path;
    return portable_passes();
}

}  // namespace weft
