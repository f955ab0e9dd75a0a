#include "kernels/select.h"

#include <algorithm>
#include <stdexcept>

#include "cpu.h"

namespace weft {
namespace {

struct Path {
    const char* name;
    const Kernels& (*kernels)(Element);
    std::vector<std::string> needs;
};

// Best first.
std::vector<Path> all_paths() {
    return {
#if defined(__x86_64__)
        {"amx",
         amx_kernels,
         {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16"}},
        {"avx512_bf16", avx512_bf16_kernels, {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"}},
        {"avx512", avx512_kernels, {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"}},
        {"avx2", avx2_kernels, {"avx2", "fma"}},
#elif defined(__aarch64__)
        {"neon_bf16", neon_bf16_kernels, {"bf16"}},
        {"neon", neon_kernels, {"asimd"}},
#endif
        {"portable", portable_kernels, {}},
    };
}

bool can_run(const Path& path, const std::vector<std::string>& features) {
    return std::all_of(path.needs.begin(), path.needs.end(), [&](const std::string& need) {
        return std::find(features.begin(), features.end(), need) != features.end();
    });
}

}  // namespace

std::vector<std::string> usable_paths() {
    const std::vector<std::string> features = cpu_features();
    std::vector<std::string> names;
    for (const Path& path : all_paths())
        if (can_run(path, features)) names.emplace_back(path.name);
    return names;
}

const Kernels& kernels_of(const std::string& path, Element element) {
    const std::vector<std::string> features = cpu_features();
    std::string offer;
    for (const Path& known : all_paths()) {
        if (!can_run(known, features)) continue;
        if (path == known.name) return known.kernels(element);
        offer += (offer.empty() ? "" : ", ") + std::string(known.name);
    }
    throw std::invalid_argument("path is '" + path + "'; this CPU can run " + offer);
}

}  // namespace weft
