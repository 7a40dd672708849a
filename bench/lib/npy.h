/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NumPy's .npy files, version 1.0: arrays of one or two dimensions, little endian, in C order.
 */
#ifndef AFDEP_BENCH_NPY_H
#define AFDEP_BENCH_NPY_H

#include <stddef.h>
#include <stdint.h>

typedef enum afdep_npy_type {
    AFDEP_NPY_UINT8,
    AFDEP_NPY_UINT16,
    AFDEP_NPY_INT32,
    AFDEP_NPY_FLOAT32
} afdep_npy_type_t;

#define AFDEP_NPY_1D (-1) /* as `columns`: the array has one dimension, [rows] */

/*
 * Writes `data` ([rows, columns], or [rows]; NULL allowed where there are no elements) to a temporary name beside
 * `file` and renames it, so that `file` is whole or as it was. 0, or -1 with one line naming file and reason.
 */
int afdep_npy_write(const char *file, afdep_npy_type_t type, const void *data, int64_t rows, int64_t columns, char *why,
                    size_t why_size);

#endif
