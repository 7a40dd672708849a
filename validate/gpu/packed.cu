/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed rows as kernels make them and sum them, against the library's own loops: every BF16 there is in groups of
 * every scale, among them NaN, infinities, denormals and the range limit. Run by hand where there is a GPU
 * (scripts/gpu-check); scripts/simt-check runs it on the processor.
 *
 * Would catch: a conversion that rounds otherwise than numerics/e4m3.h, a group's scale taken over other lanes, a NaN
 * or an infinity that spoils its group, codes in another order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/launch.cuh"
#include "cuda/packed.cuh"
#include "numerics/numerics.h"

#define ROWS 1024 /* rows of one launch */
#define N 1024    /* elements of a row */
#define TERMS 3   /* rows of a sum */
#define THREADS 256
#define ROW_BYTES (N + N / AFDEP_GROUP)

static __global__ void pack_kernel(const uint16_t *rows, unsigned char *packed)
{
    for (int r = (int)blockIdx.x * (THREADS / AFDEP_WARP) + (int)threadIdx.x / AFDEP_WARP; r < ROWS;
         r += (int)gridDim.x * (THREADS / AFDEP_WARP))
        for (uint32_t at = afdep_lane() * 8; at < N; at += AFDEP_WARP * 8)
            afdep_pack_column(packed + (size_t)r * ROW_BYTES, N, at, *(const uint4 *)(rows + (size_t)r * N + at));
}

/* Row r is the sum of the packed rows r, r + 1, ... of TERMS, or of the first alone where r is even. */
static __global__ void sum_kernel(const unsigned char *packed, uint16_t *sums)
{
    const unsigned char *terms[TERMS];
    for (int r = (int)blockIdx.x * (THREADS / AFDEP_WARP) + (int)threadIdx.x / AFDEP_WARP; r < ROWS;
         r += (int)gridDim.x * (THREADS / AFDEP_WARP)) {
        for (int j = 0; j < TERMS; j++)
            terms[j] = packed + (size_t)((r + j) % ROWS) * ROW_BYTES;
        for (uint32_t at = afdep_lane() * 8; at < N; at += AFDEP_WARP * 8)
            *(uint4 *)(sums + (size_t)r * N + at) = afdep_sum_packed(r % 2 ? TERMS : 1, terms, N, at);
    }
}

/* Groups around an exponent, with NaN, infinities and far smaller elements strewn in; first of all every BF16 once. */
static void make_rows(uint16_t *rows, uint32_t round)
{
    uint64_t state = 88172645463325252u + round;
    for (int g = 0; g < ROWS * N / AFDEP_GROUP; g++) {
        uint32_t exponent = (uint32_t)(g + (int)round * 37) % 256u;
        for (int i = 0; i < AFDEP_GROUP; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint32_t any = (uint32_t)(state >> 40), below = any >> 8 & 15u;
            uint32_t near = exponent > below ? exponent - below : 0;
            uint16_t bits = (uint16_t)((any & 0x80u) << 8 | near << 7 | (any & 0x7Fu));
            if (any % 509 == 0)
                bits = (uint16_t)(0x7F80u | (any >> 9 & 0x8001u)); /* an infinity or a NaN */
            rows[g * AFDEP_GROUP + i] = round == 0 && g < 512 ? (uint16_t)(g * AFDEP_GROUP + i) : bits;
        }
    }
}

static int compare(const afdep_row_ops_t *ops, const uint16_t *rows, const unsigned char *packed, const uint16_t *sums)
{
    static unsigned char want[ROW_BYTES];
    static uint16_t want_sum[N];
    for (int r = 0; r < ROWS; r++) {
        ops->pack(want, want + N, rows + (size_t)r * N, N);
        for (int i = 0; i < ROW_BYTES; i++)
            if (packed[(size_t)r * ROW_BYTES + i] != want[i]) {
                printf("row %d, %s %d: 0x%02x, wanted 0x%02x\n", r, i < N ? "element" : "scale", i < N ? i : i - N,
                       packed[(size_t)r * ROW_BYTES + i], want[i]);
                return 1;
            }
        afdep_packed_term_t terms[TERMS];
        for (int j = 0; j < TERMS; j++) {
            terms[j].codes = packed + (size_t)((r + j) % ROWS) * ROW_BYTES;
            terms[j].scales = terms[j].codes + N;
        }
        ops->packed_sum(want_sum, terms, r % 2 ? TERMS : 1, N);
        for (int i = 0; i < N; i++)
            if (sums[(size_t)r * N + i] != want_sum[i]) {
                printf("sum %d, element %d: 0x%04x, wanted 0x%04x\n", r, i, sums[(size_t)r * N + i], want_sum[i]);
                return 1;
            }
    }
    return 0;
}

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 16, devices = 0, failed = 0;
    uint16_t *rows, *sums;
    unsigned char *packed;
    static uint16_t host_rows[ROWS * N], host_sums[ROWS * N];
    static unsigned char host_packed[ROWS * ROW_BYTES];
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    must(cudaMalloc((void **)&rows, sizeof(host_rows)), "memory");
    must(cudaMalloc((void **)&sums, sizeof(host_sums)), "memory");
    must(cudaMalloc((void **)&packed, sizeof(host_packed)), "memory");
    for (int round = 0; !failed && round < rounds; round++) {
        make_rows(host_rows, (uint32_t)round);
        must(cudaMemcpy(rows, host_rows, sizeof(host_rows), cudaMemcpyHostToDevice), "rows");
        must(cudaMemset(packed, 0xA5, sizeof(host_packed)), "poison");
        must(cudaMemset(sums, 0xA5, sizeof(host_sums)), "poison");
        must(afdep_launch_apart(pack_kernel, 4, THREADS, 0, 0, (const uint16_t *)rows, packed), "packing");
        must(afdep_launch_apart(sum_kernel, 4, THREADS, 0, 0, (const unsigned char *)packed, sums), "summing");
        must(cudaMemcpy(host_packed, packed, sizeof(host_packed), cudaMemcpyDeviceToHost), "packed rows");
        must(cudaMemcpy(host_sums, sums, sizeof(host_sums), cudaMemcpyDeviceToHost), "sums");
        failed = compare(afdep_row_ops("scalar"), host_rows, host_packed, host_sums);
    }
    printf("%d rows: %s\n", rounds * ROWS, failed ? "FAILED" : "ok");
    return failed;
}
