/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency API between two ranks, here as two threads of one process: MXFP8 rows out, BF16 rows back, and the
 * dispatch received by its hook. Every expert returns the value of its row, and the weights of a token sum to one; the
 * values are such that MXFP8 holds them exactly, so each token comes back as it left.
 *
 *     cc low_latency.c $(pkg-config --cflags --libs afdep) -lm -lpthread
 */
#include <afdep/low_latency.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, T = 2, M = 4, K = 2, EXPERTS = 4, LOCAL = EXPERTS / RANKS, HIDDEN = 64, ROWS = RANKS * M };

static afdep_group_t groups[RANKS];

static void must(afdep_status_t status)
{
    if (status != AFDEP_OK) {
        fprintf(stderr, "low_latency: %s: %s\n", afdep_status_string(status), afdep_last_error());
        exit(1);
    }
}

/* What an expert would do with a row: here only from MXFP8 to BF16. */
static void run_expert(uint16_t *y, const uint8_t *codes, const uint8_t *scales)
{
    for (int h = 0; h < HIDDEN; h++) {
        int exponent = codes[h] >> 3 & 15, mantissa = codes[h] & 7; /* e4m3; this example's values are normal */
        float value = ldexpf(1.0f + (float)mantissa / 8, exponent - 7 + scales[h / 32] - 127);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        y[h] = (uint16_t)(bits >> 16);
    }
}

static void *rank_main(void *argument)
{
    int rank = *(const int *)argument;
    static _Alignas(16) uint16_t x[RANKS][T][HIDDEN], out[RANKS][T][HIDDEN], y[RANKS][LOCAL][ROWS][HIDDEN];
    static uint8_t rows[RANKS][LOCAL][ROWS][HIDDEN], scales[RANKS][LOCAL][ROWS][HIDDEN / 32];
    static const int64_t ids[T][K] = { { 0, 3 }, { 2, -1 } };
    static const float weights[T][K] = { { 0.75f, 0.25f }, { 1.0f, 0.0f } };
    int64_t counts[LOCAL];
    afdep_ll_config_t config = AFDEP_LL_CONFIG_INIT;
    afdep_ll_buffer_t *buffer;
    config.num_max_dispatch_tokens_per_rank = M, config.num_topk = K;
    config.num_experts = EXPERTS, config.hidden = HIDDEN;
    must(afdep_ll_buffer_open(&groups[rank], &config, &buffer));
    for (int t = 0; t < T; t++)
        for (int h = 0; h < HIDDEN; h++)
            x[rank][t][h] = (uint16_t)(0x3F80 + 16 * (h % 7)); /* 1, 1.125, .. 1.75 */

    afdep_ll_dispatch_t d = AFDEP_LL_DISPATCH_INIT;
    d.x = x[rank], d.tokens = T, d.topk_idx = ids[0], d.format = AFDEP_LL_MXFP8;
    d.recv_x = rows[rank], d.recv_x_scales = scales[rank], d.recv_count = counts;
    d.return_recv_hook = 1;
    must(afdep_ll_dispatch(buffer, &d)); /* sent: an engine does something else here */
    must(afdep_ll_hook_call(buffer, &d.hook));
    for (int e = 0; e < LOCAL; e++)
        for (int i = 0; i < counts[e]; i++)
            run_expert(y[rank][e][i], rows[rank][e][i], scales[rank][e][i]);
    afdep_ll_combine_t c = AFDEP_LL_COMBINE_INIT;
    c.x = y[rank], c.tokens = T, c.topk_idx = ids[0], c.topk_weights = weights[0];
    c.handle = d.handle, c.out = out[rank];
    must(afdep_ll_combine(buffer, &c)); /* one summed row per token is back */

    if (memcmp(x[rank], out[rank], sizeof(x[rank])) != 0) {
        fprintf(stderr, "low_latency: rank %d's tokens came back changed\n", rank);
        exit(1);
    }
    must(afdep_ll_buffer_close(buffer));
    return NULL;
}

int main(void)
{
    pthread_t other;
    const int ranks[RANKS] = { 0, 1 };
    must(afdep_group_threads_create(RANKS, 10000, groups));
    if (pthread_create(&other, NULL, rank_main, (void *)&ranks[1]) != 0)
        return 1;
    rank_main((void *)&ranks[0]);
    pthread_join(other, NULL);
    for (int r = 0; r < RANKS; r++)
        afdep_group_destroy(&groups[r]);
    printf("%d tokens of each of %d ranks went to their experts and came back as they left\n", T, RANKS);
    return 0;
}
