/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shortest whole use of the library: one FFN rank and one Attention rank, here as two threads of one process.
 * Every expert returns the row it got, and the weights of a token sum to one, so each token comes back as it left.
 *
 *     cc hello.c $(pkg-config --cflags --libs afdep) -lpthread
 */
#include <afdep/afdep.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 2, TOP_K = 2, EXPERTS = 4, HIDDEN = 256, ROWS = TOKENS * TOP_K };

static afdep_group_t groups[2]; /* rank 0: FFN, rank 1: Attention */

static void must(afdep_status_t status)
{
    if (status != AFDEP_OK) {
        fprintf(stderr, "hello: %s: %s\n", afdep_status_string(status), afdep_last_error());
        exit(1);
    }
}

static afdep_buffer_t *open_buffer(const afdep_group_t *group)
{
    afdep_config_t config = AFDEP_CONFIG_INIT;
    afdep_buffer_t *buffer;
    config.ffn_ranks = 1, config.num_experts = EXPERTS, config.top_k = TOP_K;
    config.hidden = HIDDEN, config.capacity = TOKENS, config.flags = AFDEP_FLAG_APPLY_WEIGHTS;
    must(afdep_buffer_open(group, &config, &buffer));
    return buffer;
}

static void *ffn_rank(void *unused)
{
    static uint16_t rows[ROWS][HIDDEN];
    float row_weight[ROWS];
    int32_t ends[EXPERTS];
    afdep_buffer_t *buffer = open_buffer(&groups[0]);

    afdep_receive_t receive = AFDEP_RECEIVE_INIT;
    receive.bucket = TOKENS, receive.rows_capacity = ROWS;
    receive.rows = rows, receive.row_weight = row_weight, receive.ends = ends;
    must(afdep_worker_receive(buffer, &receive, NULL));
    /* Expert e's rows are rows[ends[e-1] .. ends[e]-1]: an engine runs the expert on them here. */
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    reply.rows = rows, reply.receipt = receive.receipt;
    must(afdep_worker_reply(buffer, &reply, NULL));

    must(afdep_buffer_close(buffer));
    return unused;
}

static int attention_rank(void)
{
    static uint16_t x[TOKENS][HIDDEN], out[TOKENS][HIDDEN]; /* BF16 bits */
    static const int32_t ids[TOKENS][TOP_K] = { { 0, 3 }, { 2, 1 } };
    static const float weights[TOKENS][TOP_K] = { { 0.5f, 0.5f }, { 0.75f, 0.25f } };
    afdep_buffer_t *buffer = open_buffer(&groups[1]);

    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i / HIDDEN][i % HIDDEN] = (uint16_t)(0x3f80 + i % 64); /* 1.0 and up */

    afdep_dispatch_t dispatch = AFDEP_DISPATCH_INIT;
    dispatch.tokens = TOKENS, dispatch.bucket = TOKENS;
    dispatch.x = x, dispatch.ids = ids[0], dispatch.weights = weights[0];
    must(afdep_source_dispatch(buffer, &dispatch, NULL)); /* rows go to the ranks that own their experts */
    afdep_collect_t collect = AFDEP_COLLECT_INIT;
    collect.out = out;
    must(afdep_source_collect(buffer, &collect, NULL)); /* one summed row per token is back */

    must(afdep_buffer_close(buffer));
    return memcmp(x, out, sizeof(x)) == 0;
}

int main(void)
{
    pthread_t thread;
    must(afdep_group_threads_create(2, 0, groups));
    if (pthread_create(&thread, NULL, ffn_rank, NULL) != 0)
        return 1;
    int same = attention_rank();
    pthread_join(thread, NULL);
    afdep_group_destroy(&groups[0]);
    afdep_group_destroy(&groups[1]);
    printf("afdep %s: %d tokens went to %d experts and came back %s\n", afdep_version(), TOKENS, EXPERTS,
           same ? "as they left" : "changed");
    return !same;
}
