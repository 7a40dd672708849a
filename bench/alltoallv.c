/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The baseline `--protocol alltoallv`: the same exchange by MPI_Alltoall (counts) and MPI_Alltoallv (rows, replies).
 * Every rank takes part in every collective, as MPI asks; buffers are made once, at opening.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#ifdef AFDEP_HAVE_MPI
#include "bench/alltoallv.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_path.h"

typedef struct alltoallv {
    afdep_a2a_t a;
    MPI_Comm comm;
    MPI_Datatype row, reply;
    afdep_counters_t *sent; /* [ranks] */
} alltoallv_t;

static alltoallv_t *baseline(afdep_bench_path_t *path)
{
    return (alltoallv_t *)path;
}

static void release(alltoallv_t *b)
{
    if (b->row != MPI_DATATYPE_NULL)
        MPI_Type_free(&b->row);
    if (b->reply != MPI_DATATYPE_NULL)
        MPI_Type_free(&b->reply);
    if (b->comm != MPI_COMM_NULL)
        MPI_Comm_free(&b->comm);
    afdep_a2a_free(&b->a);
    free(b->sent);
    free(b);
}

static afdep_status_t alltoallv_open(afdep_world_t *world, const afdep_bench_plan_t *plan, const char *fabric,
                                     int bucket, afdep_bench_path_t **path)
{
    (void)fabric;
    alltoallv_t *b = calloc(1, sizeof(*b));
    if (!b)
        return AFDEP_ERR_MEMORY;
    b->row = b->reply = MPI_DATATYPE_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &b->comm);
    MPI_Comm_set_errhandler(b->comm, MPI_ERRORS_ARE_FATAL); /* a baseline has no errors of its own to report */
    afdep_a2a_shape(&b->a, plan, world->rank);
    b->sent = calloc((size_t)plan->ranks, sizeof(*b->sent));
    int made = b->sent && afdep_a2a_allocate(&b->a, bucket) == 0;
    MPI_Allreduce(MPI_IN_PLACE, &made, 1, MPI_INT, MPI_MIN, b->comm);
    if (!made) {
        release(b);
        return AFDEP_ERR_MEMORY;
    }
    MPI_Type_contiguous((int)b->a.row.bytes, MPI_BYTE, &b->row);
    MPI_Type_commit(&b->row);
    MPI_Type_contiguous((int)b->a.row.reply, MPI_BYTE, &b->reply);
    MPI_Type_commit(&b->reply);
    *path = (afdep_bench_path_t *)b;
    return AFDEP_OK;
}

static void alltoallv_info(afdep_bench_path_t *path, afdep_bench_path_info_t *info)
{
    (void)path;
    *info = (afdep_bench_path_info_t){ .protocol = "alltoallv", .backend = "host", .fabric = "mpi" };
}

/* Both roles: counts, then rows. Attention ranks have nothing to receive, FFN ranks nothing to send. */
static void exchange_counts(alltoallv_t *b)
{
    afdep_a2a_t *a = &b->a;
    MPI_Alltoall(a->send_counts, 1, MPI_INT, a->recv_counts, 1, MPI_INT, b->comm);
    afdep_a2a_prefix(a->send_at, a->send_counts, a->ranks);
    a->rows = afdep_a2a_prefix(a->recv_at, a->recv_counts, a->ranks);
}

static void exchange_rows(alltoallv_t *b, const void *send, void *recv)
{
    afdep_a2a_t *a = &b->a;
    MPI_Alltoallv(send, a->send_counts, a->send_at, b->row, recv, a->recv_counts, a->recv_at, b->row, b->comm);
}

/* The way back: what was received is answered row by row, so the counts are known. */
static void exchange_replies(alltoallv_t *b, const void *send, void *recv)
{
    afdep_a2a_t *a = &b->a;
    MPI_Alltoallv(send, a->recv_counts, a->recv_at, b->reply, recv, a->send_counts, a->send_at, b->reply, b->comm);
}

static afdep_status_t alltoallv_dispatch(afdep_bench_path_t *path, const afdep_dispatch_t *dispatch)
{
    alltoallv_t *b = baseline(path);
    afdep_a2a_count(&b->a, dispatch);
    exchange_counts(b);
    afdep_a2a_pack(&b->a, dispatch);
    exchange_rows(b, b->a.wire, NULL);
    afdep_a2a_count_sent(&b->a, b->sent, b->a.send_counts, b->a.row.bytes);
    return AFDEP_OK;
}

static afdep_status_t alltoallv_receive(afdep_bench_path_t *path, afdep_receive_t *receive)
{
    alltoallv_t *b = baseline(path);
    exchange_counts(b);
    exchange_rows(b, NULL, b->a.wire);
    return afdep_a2a_lay_out(&b->a, receive);
}

static afdep_status_t alltoallv_reply(afdep_bench_path_t *path, const afdep_reply_t *reply)
{
    alltoallv_t *b = baseline(path);
    afdep_a2a_sum_replies(&b->a, reply->rows);
    exchange_replies(b, b->a.replies, NULL);
    afdep_a2a_count_sent(&b->a, b->sent, b->a.recv_counts, b->a.row.reply);
    return AFDEP_OK;
}

static afdep_status_t alltoallv_collect(afdep_bench_path_t *path, afdep_collect_t *collect)
{
    alltoallv_t *b = baseline(path);
    exchange_replies(b, NULL, b->a.replies);
    afdep_a2a_sum_tokens(&b->a, collect->out);
    collect->result = collect->out;
    collect->result_stride = b->a.hidden;
    collect->tokens = b->a.tokens;
    return AFDEP_OK;
}

static afdep_status_t alltoallv_counters(afdep_bench_path_t *path, int peer, afdep_counters_t *counters)
{
    *counters = baseline(path)->sent[peer];
    counters->struct_size = sizeof(*counters);
    return AFDEP_OK;
}

static afdep_status_t alltoallv_error(afdep_bench_path_t *path)
{
    (void)path;
    return AFDEP_OK; /* MPI ends the job by itself */
}

static afdep_status_t alltoallv_close(afdep_bench_path_t *path)
{
    release(baseline(path));
    return AFDEP_OK;
}

/* The two errors above that are not MPI's own. */
static const char *alltoallv_why(void)
{
    return "no memory for the rows, or fewer rows in the receive tensors than arrived";
}

const afdep_bench_path_ops_t afdep_bench_alltoallv = {
    .name = "alltoallv baseline",
    .memory = afdep_a2a_memory,
    .open = alltoallv_open,
    .info = alltoallv_info,
    .dispatch = alltoallv_dispatch,
    .receive = alltoallv_receive,
    .reply = alltoallv_reply,
    .collect = alltoallv_collect,
    .counters = alltoallv_counters,
    .error = alltoallv_error,
    .close = alltoallv_close,
    .why = alltoallv_why,
};

#else
typedef int afdep_bench_alltoallv_needs_mpi; /* ISO C wants something in a file */
#endif
