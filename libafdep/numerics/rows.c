/* SPDX-License-Identifier: Apache-2.0 */
/* Which version of the row loops runs: chosen when asked for, from what the processor says of itself. */
#include <string.h>

#include "numerics/rows.h"

/* Slowest first. */
const afdep_row_ops_t *const afdep_row_ops_all[] = {
    &afdep_row_ops_scalar,
#if AFDEP_ROWS_X86
    &afdep_row_ops_avx2,
    &afdep_row_ops_avx512,
#endif
    NULL
};

/* The compiler's check includes whether the kernel saves the registers. */
int afdep_row_ops_runs(const afdep_row_ops_t *ops)
{
#if AFDEP_ROWS_X86
    if (ops == &afdep_row_ops_avx512) {
        return __builtin_cpu_supports("avx512f") != 0;
    }
    if (ops == &afdep_row_ops_avx2) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
#endif
    return ops == &afdep_row_ops_scalar;
}

const afdep_row_ops_t *afdep_row_ops(const char *name)
{
    int any = name == NULL || strcmp(name, "auto") == 0;
    const afdep_row_ops_t *chosen = NULL;

    for (int i = 0; afdep_row_ops_all[i] != NULL; i++) {
        const afdep_row_ops_t *ops = afdep_row_ops_all[i];

        if ((any || strcmp(name, ops->name) == 0) && afdep_row_ops_runs(ops)) {
            chosen = ops;
        }
    }
    return chosen;
}
