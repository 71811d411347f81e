/* Which tables of kernels this machine can run: the CPU must have the instructions and the system must keep their registers. */
#include <string.h>

#include "kernels.h"

static const Kernels *const TABLES[] = {
    &kernels_scalar,
#ifdef ONEBIT_AVX2
    &kernels_avx2,
#endif
#ifdef ONEBIT_AVX512
    &kernels_avx512,
#endif
#ifdef ONEBIT_NEON
    &kernels_neon,
#endif
};

static bool can_run(const Kernels *table) {
    /* The compiler's builtins ask CPUID, and XGETBV for what the system saves when it switches threads. */
#ifdef ONEBIT_AVX2
    if (table == &kernels_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
#ifdef ONEBIT_AVX512
    if (table == &kernels_avx512) /* which takes the place of the AVX2 kernel for some shapes only */
        return can_run(&kernels_avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vpopcntdq");
#endif
#ifdef ONEBIT_NEON
    if (table == &kernels_neon) return true; /* every CPU of AArch64 has it */
#endif
    return table == &kernels_scalar;
}

const Kernels *kernels_of(const char *isa) {
    for (size_t i = 0; i < sizeof TABLES / sizeof *TABLES; i++)
        if (!strcmp(TABLES[i]->name, isa) && can_run(TABLES[i])) return TABLES[i];
    return NULL;
}

int onebit_has_isa(const char *isa) { return kernels_of(isa) != NULL; }
