// Which kernels this machine runs.
#include "dispatch.h"

#include <cstring>

namespace ms {

static bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

static bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

const Kernels* find_kernels(const char* name) {
    bool any = *name == '\0';
    if ((any || !std::strcmp(name, "avx512")) && has_avx512()) return kernels_avx512();
    if ((any || !std::strcmp(name, "avx2")) && has_avx2()) return kernels_avx2();
    return nullptr;
}

}  // namespace ms
