#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace weft {

#if defined(__x86_64__)

namespace {

// The operating system saves tile registers only for processes that request this.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr int kAskPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
    constexpr int kTileData = 18;
    static const bool may = syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
    return may;
#else
    return false;
#endif
}

void add_amx(std::vector<std::string>& names) {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return;
    const auto has = [&](int bit) { return (edx >> bit & 1) != 0; };
    constexpr int kBfloat16 = 22;
    constexpr int kTile = 24;
    constexpr int kInt8 = 25;
    if (!has(kTile) || !may_use_tiles()) return;
    names.emplace_back("amx_tile");
    if (has(kInt8)) names.emplace_back("amx_int8");
    if (has(kBfloat16)) names.emplace_back("amx_bf16");
}

}  // namespace

std::string cpu_architecture() { return "x86-64"; }

std::vector<std::string> cpu_features() {
    // __builtin_cpu_supports asks CPUID and XGETBV: a feature that the operating system does not
    // save across a context switch counts as absent.
    __builtin_cpu_init();
    std::vector<std::string> names;
    if (__builtin_cpu_supports("avx")) names.emplace_back("avx");
    if (__builtin_cpu_supports("avx2")) names.emplace_back("avx2");
    if (__builtin_cpu_supports("fma")) names.emplace_back("fma");
    if (__builtin_cpu_supports("avx512f")) names.emplace_back("avx512f");
    if (__builtin_cpu_supports("avx512bw")) names.emplace_back("avx512bw");
    if (__builtin_cpu_supports("avx512dq")) names.emplace_back("avx512dq");
    if (__builtin_cpu_supports("avx512vl")) names.emplace_back("avx512vl");
    if (__builtin_cpu_supports("avx512vnni")) names.emplace_back("avx512_vnni");
    if (__builtin_cpu_supports("avx512bf16")) names.emplace_back("avx512_bf16");
    add_amx(names);
    return names;
}

#elif defined(__aarch64__)

std::string cpu_architecture() { return "aarch64"; }

std::vector<std::string> cpu_features() {
    std::vector<std::string> names{"asimd"};  // part of the base architecture
#if defined(__linux__)
    const unsigned long capabilities = getauxval(AT_HWCAP);
    const unsigned long more_capabilities = getauxval(AT_HWCAP2);
#if defined(HWCAP_ASIMDDP)
    if (capabilities & HWCAP_ASIMDDP) names.emplace_back("asimddp");
#endif
#if defined(HWCAP_SVE)
    if (capabilities & HWCAP_SVE) names.emplace_back("sve");
#endif
#if defined(HWCAP2_BF16)
    if (more_capabilities & HWCAP2_BF16) names.emplace_back("bf16");
#endif
#if defined(HWCAP2_I8MM)
    if (more_capabilities & HWCAP2_I8MM) names.emplace_back("i8mm");
#endif
    (void)capabilities;
    (void)more_capabilities;
#endif
    return names;
}

#else

std::string cpu_architecture() { return "other"; }

std::vector<std::string> cpu_features() { return {}; }

#endif

}  // namespace weft
