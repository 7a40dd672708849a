/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one kernel of the loopback, as PTX, so that building it needs no CUDA: block b does copy b of a batch that comes as
 * the kernel's argument, 16 or 8 bytes to a thread where everything is aligned so, else one. Reads are volatile: what is
 * read was written by others, and cached copies of it may be old.
 */
#ifndef AFDEP_GIN_LOOPBACK_COPY_PTX_H
#define AFDEP_GIN_LOOPBACK_COPY_PTX_H

#include <stdint.h>

#define AFDEP_GIN_COPIES 160       /* of one batch: kernel arguments have 4 KiB */
#define AFDEP_GIN_COPY_THREADS 128 /* of a block; the strides below are 16, 8 and 1 times this */

typedef struct afdep_gin_copy {
    uint64_t to, from;
    uint32_t bytes, zero;
} afdep_gin_copy_t;

static const char afdep_gin_copy_ptx[] =
    ".version 7.0\n"
    ".target sm_75\n"
    ".address_size 64\n"
    ".visible .entry afdep_gin_copy(.param .align 8 .b8 batch[3840])\n"
    "{\n"
    "    .reg .pred %p;\n"
    "    .reg .b32 %i, %bytes, %a, %b, %c, %d;\n"
    "    .reg .b64 %at, %to, %from, %all, %x;\n"
    "    mov.b64 %at, batch;\n"
    "    mov.u32 %i, %ctaid.x;\n"
    "    mul.wide.u32 %x, %i, 24;\n"
    "    add.s64 %at, %at, %x;\n"
    "    ld.param.u64 %to, [%at];\n"
    "    ld.param.u64 %from, [%at+8];\n"
    "    ld.param.u32 %bytes, [%at+16];\n"
    "    mov.u32 %i, %tid.x;\n"
    "    cvt.u64.u32 %x, %bytes;\n"
    "    or.b64 %all, %to, %from;\n"
    "    or.b64 %all, %all, %x;\n"
    "    and.b64 %x, %all, 15;\n"
    "    setp.eq.u64 %p, %x, 0;\n"
    "    @%p bra SIXTEEN;\n"
    "    and.b64 %x, %all, 7;\n"
    "    setp.eq.u64 %p, %x, 0;\n"
    "    @%p bra EIGHT;\n"
    "ONE:\n"
    "    setp.ge.u32 %p, %i, %bytes;\n"
    "    @%p bra DONE;\n"
    "    cvt.u64.u32 %x, %i;\n"
    "    add.s64 %at, %from, %x;\n"
    "    ld.volatile.global.u8 %a, [%at];\n"
    "    add.s64 %at, %to, %x;\n"
    "    st.global.u8 [%at], %a;\n"
    "    add.u32 %i, %i, 128;\n"
    "    bra ONE;\n"
    "EIGHT:\n"
    "    shl.b32 %i, %i, 3;\n"
    "EIGHTS:\n"
    "    setp.ge.u32 %p, %i, %bytes;\n"
    "    @%p bra DONE;\n"
    "    cvt.u64.u32 %x, %i;\n"
    "    add.s64 %at, %from, %x;\n"
    "    ld.volatile.global.u64 %all, [%at];\n"
    "    add.s64 %at, %to, %x;\n"
    "    st.global.u64 [%at], %all;\n"
    "    add.u32 %i, %i, 1024;\n"
    "    bra EIGHTS;\n"
    "SIXTEEN:\n"
    "    shl.b32 %i, %i, 4;\n"
    "SIXTEENS:\n"
    "    setp.ge.u32 %p, %i, %bytes;\n"
    "    @%p bra DONE;\n"
    "    cvt.u64.u32 %x, %i;\n"
    "    add.s64 %at, %from, %x;\n"
    "    ld.volatile.global.v4.u32 {%a, %b, %c, %d}, [%at];\n"
    "    add.s64 %at, %to, %x;\n"
    "    st.global.v4.u32 [%at], {%a, %b, %c, %d};\n"
    "    add.u32 %i, %i, 2048;\n"
    "    bra SIXTEENS;\n"
    "DONE:\n"
    "    ret;\n"
    "}\n";

_Static_assert(sizeof(afdep_gin_copy_t) == 24 && AFDEP_GIN_COPIES * sizeof(afdep_gin_copy_t) == 3840 &&
                   AFDEP_GIN_COPY_THREADS == 128, "as the kernel has it");

#endif
