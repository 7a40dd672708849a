/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of the host backend alone in a simulated network: what its peers would write into its segment comes from the
 * input, words and rows alike, plausible or not, between the steps of its actors.
 */
#ifndef AFDEP_FUZZ_RANK_H
#define AFDEP_FUZZ_RANK_H

#include <stddef.h>
#include <stdint.h>

typedef enum afdep_fuzz_role { AFDEP_FUZZ_FFN, AFDEP_FUZZ_ATTENTION } afdep_fuzz_role_t;

/*
 * Input: a byte of settings (bits: 0 directional; 1 and 2 not sparse in dispatch and combine; 3 no stagger, but more
 * and aligned experts; 4 the library applies weights; 5 FP8; 6 two exchanges in flight; 7 opened below the wrap), one
 * that seeds the fabric's back-pressure (0: none), an operand of the first call, then operations, each a byte and its
 * operands: see rank.c. Always returns 0.
 */
int afdep_fuzz_rank(afdep_fuzz_role_t role, const uint8_t *data, size_t size);

#endif
