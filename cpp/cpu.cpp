#include "cpu.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace weft {

#if defined(__x86_64__)

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
