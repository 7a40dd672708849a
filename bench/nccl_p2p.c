/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The baseline `--protocol nccl-p2p`: the same rows there and back by grouped ncclSend and ncclRecv. Timed exchanges
 * move the bytes alone, as the last exchange had them: counts known beforehand, rows packed, nothing laid out or
 * summed. In checked exchanges the host does that work, so that what is moved is proved to be what the exchange needs.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/alltoallv.h"
#include "bench/bench_path.h"
#include "cuda/fabric.h"
#include "cuda/nccl.h"
#include "cuda/patience.h"
#include "validate/gpu.h"
#include "validate/staged.h"

#define PAIRS 10 /* exchanges of one recording */

typedef struct nccl_p2p {
    afdep_a2a_t a; /* rows and replies in host memory */
    const afdep_nccl_t *api;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaGraphExec_t graph;
    int *counts;                   /* [ranks], device: of rows */
    unsigned char *wire, *replies; /* device twins of a.wire and a.replies, registered with NCCL */
    size_t wire_bytes, reply_bytes;
    void *handles[2];
    afdep_counters_t *sent; /* [ranks] */
    int device, ffn, graphs;
} nccl_p2p_t;

static nccl_p2p_t *of(afdep_bench_path_t *path)
{
    return (nccl_p2p_t *)path;
}

/* The sentence is CUDA's, or the library's last one, in which NCCL's is wrapped. */
static afdep_status_t check(nccl_p2p_t *b, ncclResult_t result, const char *what)
{
    return afdep_nccl_check(b->api, result, AFDEP_ERR_TRANSPORT, what);
}

/* ---- Opening and closing ------------------------------------------------------------------------------------- */

static void release(nccl_p2p_t *b)
{
    if (b->graph)
        (void)cudaGraphExecDestroy(b->graph);
    for (int i = 0; i < 2; i++)
        if (b->handles[i])
            (void)b->api->comm_deregister(b->comm, b->handles[i]);
    if (b->comm)
        (void)b->api->comm_destroy(b->comm);
    if (b->replies)
        (void)b->api->mem_free(b->replies);
    if (b->wire)
        (void)b->api->mem_free(b->wire);
    (void)cudaFree(b->counts);
    if (b->stream)
        afdep_gpu_give_stream();
    afdep_a2a_free(&b->a);
    free(b->sent);
    free(b);
}

/* What this rank can make alone. */
static afdep_status_t make(nccl_p2p_t *b, const afdep_bench_plan_t *plan, int rank, int bucket)
{
    afdep_a2a_shape(&b->a, plan, rank);
    b->ffn = rank < plan->scenario.ffn_ranks;
    b->graphs = plan->scenario.graph;
    size_t rows = afdep_a2a_wire_rows(&b->a, b->ffn, bucket);
    b->wire_bytes = rows * b->a.row.bytes;
    b->reply_bytes = rows * b->a.row.reply;
    b->sent = calloc((size_t)plan->ranks, sizeof(*b->sent));
    if (!b->sent || afdep_a2a_allocate(&b->a, bucket) != 0) {
        afdep_gpu_say("no memory for the rows");
        return AFDEP_ERR_MEMORY;
    }
    afdep_status_t status = afdep_device_nccl.available();
    if (status == AFDEP_OK)
        status = afdep_nccl_load(&b->api);
    if (status != AFDEP_OK)
        return status;
    if (afdep_gpu_failed(cudaGetDevice(&b->device), "the rank's GPU"))
        return AFDEP_ERR_SYSTEM;
    if (afdep_gpu_take_stream(&b->stream) != 0 ||
        afdep_gpu_failed(cudaMalloc((void **)&b->counts, (size_t)plan->ranks * sizeof(int)),
                         "no device memory for counts"))
        return AFDEP_ERR_MEMORY;
    status = check(b, b->api->mem_alloc((void **)&b->wire, b->wire_bytes), "ncclMemAlloc of the rows");
    if (status == AFDEP_OK)
        status = check(b, b->api->mem_alloc((void **)&b->replies, b->reply_bytes), "ncclMemAlloc of the replies");
    if (status == AFDEP_OK && rank == 0)
        status = check(b, b->api->get_unique_id(&b->id), "ncclGetUniqueId");
    return status;
}

static afdep_status_t connect_ranks(void *context)
{
    nccl_p2p_t *b = context;
    (void)cudaSetDevice(b->device);
    afdep_status_t status =
        check(b, b->api->comm_init_rank(&b->comm, b->a.ranks, b->id, b->a.rank), "ncclCommInitRank");
    if (status == AFDEP_OK)
        status = check(b, b->api->comm_register(b->comm, b->wire, b->wire_bytes, &b->handles[0]), "ncclCommRegister");
    if (status == AFDEP_OK)
        status =
            check(b, b->api->comm_register(b->comm, b->replies, b->reply_bytes, &b->handles[1]), "ncclCommRegister");
    return status;
}

/* What a rank tells the others: how it went here, and rank 0's name for the communicator. */
typedef struct claim {
    afdep_status_t status;
    ncclUniqueId id;
} claim_t;

/* The worst status of any rank; *b gets rank 0's id. */
static afdep_status_t gather(nccl_p2p_t *b, afdep_world_t *world, afdep_status_t status)
{
    claim_t claim, *all = calloc((size_t)world->size, sizeof(*all));
    if (!all) {
        fprintf(stderr, "afdep-bench: no memory to open the nccl-p2p baseline\n");
        afdep_world_abort(world, 1);
    }
    memset(&claim, 0, sizeof(claim));
    claim.status = status;
    claim.id = b->id;
    afdep_world_allgather(world, &claim, all, sizeof(claim));
    afdep_status_t worst = claim.status;
    for (int r = 0; worst == AFDEP_OK && r < world->size; r++)
        if (all[r].status != AFDEP_OK) {
            afdep_gpu_say("rank %d has failed with %s", r, afdep_status_string(all[r].status));
            worst = all[r].status;
        }
    b->id = all[0].id;
    free(all);
    return worst;
}

static afdep_status_t p2p_open(afdep_world_t *world, const afdep_bench_plan_t *plan, const char *fabric, int bucket,
                               afdep_bench_path_t **path)
{
    (void)fabric;
    afdep_gpu_begin_call();
    afdep_staged_use_device(world->rank);
    nccl_p2p_t *b = calloc(1, sizeof(*b));
    if (!b)
        return AFDEP_ERR_MEMORY;
    afdep_status_t status = gather(b, world, make(b, plan, world->rank, bucket));
    int left = 0;
    if (status == AFDEP_OK) {
        int timeout_ms = plan->common.timeout_ms ? plan->common.timeout_ms : 60000;
        afdep_patience_call_t call = { connect_ranks, b, NULL, timeout_ms, "making the NCCL communicator" };
        status = gather(b, world, afdep_call_with_patience(&call, &left));
    }
    if (status == AFDEP_OK)
        *path = (afdep_bench_path_t *)b;
    else if (!left)
        release(b);
    return status;
}

static void p2p_info(afdep_bench_path_t *path, afdep_bench_path_info_t *info)
{
    *info = (afdep_bench_path_info_t){ .protocol = "nccl-p2p", .backend = "cuda", .fabric = "nccl" };
    info->graph = of(path)->graphs;
}

static afdep_status_t p2p_close(afdep_bench_path_t *path)
{
    release(of(path));
    return AFDEP_OK;
}

/* ---- Moving -------------------------------------------------------------------------------------------------- */

/* One group of sends or receives, `each` bytes to a count, between this rank and those of the other role. */
static afdep_status_t move(nccl_p2p_t *b, int sends, unsigned char *at, const int *first, const int *counts,
                           size_t each)
{
    const afdep_a2a_t *a = &b->a;
    int begin = b->ffn ? a->ffn_ranks : 0, end = b->ffn ? a->ranks : a->ffn_ranks;
    afdep_status_t status = check(b, b->api->group_start(), "ncclGroupStart");
    for (int r = begin; status == AFDEP_OK && r < end; r++) {
        unsigned char *part = at + (size_t)first[r] * each;
        size_t bytes = (size_t)counts[r] * each;
        if (bytes && sends)
            status = check(b, b->api->send(part, bytes, ncclInt8, r, b->comm, b->stream), "ncclSend");
        else if (bytes)
            status = check(b, b->api->recv(part, bytes, ncclInt8, r, b->comm, b->stream), "ncclRecv");
    }
    afdep_status_t ended = check(b, b->api->group_end(), "ncclGroupEnd");
    return status == AFDEP_OK ? ended : status;
}

/* Rows: Attention to FFN. Counts are in rows at both ends; the way back has them the same. */
static afdep_status_t move_rows(nccl_p2p_t *b)
{
    const afdep_a2a_t *a = &b->a;
    return b->ffn ? move(b, 0, b->wire, a->recv_at, a->recv_counts, a->row.bytes)
                  : move(b, 1, b->wire, a->send_at, a->send_counts, a->row.bytes);
}

static afdep_status_t move_replies(nccl_p2p_t *b)
{
    const afdep_a2a_t *a = &b->a;
    return b->ffn ? move(b, 1, b->replies, a->recv_at, a->recv_counts, a->row.reply)
                  : move(b, 0, b->replies, a->send_at, a->send_counts, a->row.reply);
}

static int copy(nccl_p2p_t *b, void *to, const void *from, size_t bytes)
{
    return bytes && afdep_gpu_failed(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, b->stream), "copying rows");
}

/* The counts of an exchange, one integer to or from each rank of the other role. */
static afdep_status_t move_counts(nccl_p2p_t *b)
{
    afdep_a2a_t *a = &b->a;
    size_t bytes = (size_t)a->ranks * sizeof(int);
    int *places = calloc((size_t)a->ranks, 2 * sizeof(int)), *ones = places ? places + a->ranks : NULL;
    if (!places)
        return AFDEP_ERR_MEMORY;
    for (int r = 0; r < a->ranks; r++) {
        places[r] = r;
        ones[r] = 1;
    }
    int failed = !b->ffn && copy(b, b->counts, a->send_counts, bytes);
    afdep_status_t status = failed ? AFDEP_ERR_SYSTEM
                                   : move(b, !b->ffn, (unsigned char *)b->counts, places, ones, sizeof(int));
    if (status == AFDEP_OK && b->ffn) {
        memset(a->recv_counts, 0, bytes);
        failed = copy(b, a->recv_counts + a->ffn_ranks, b->counts + a->ffn_ranks,
                      bytes - (size_t)a->ffn_ranks * sizeof(int));
    }
    if (status == AFDEP_OK && (failed || afdep_gpu_finish(b->stream)))
        status = AFDEP_ERR_SYSTEM;
    free(places);
    return status;
}

/* ---- Exchanges of host tensors ------------------------------------------------------------------------------- */

static afdep_status_t p2p_dispatch(afdep_bench_path_t *path, const afdep_dispatch_t *dispatch)
{
    nccl_p2p_t *b = of(path);
    afdep_a2a_t *a = &b->a;
    afdep_gpu_begin_call();
    afdep_a2a_count(a, dispatch);
    int rows = afdep_a2a_prefix(a->send_at, a->send_counts, a->ranks);
    afdep_a2a_pack(a, dispatch);
    afdep_status_t status = move_counts(b);
    if (status == AFDEP_OK && copy(b, b->wire, a->wire, (size_t)rows * a->row.bytes))
        status = AFDEP_ERR_SYSTEM;
    if (status == AFDEP_OK)
        status = move_rows(b);
    afdep_a2a_count_sent(a, b->sent, a->send_counts, a->row.bytes);
    return status == AFDEP_OK && afdep_gpu_finish(b->stream) ? AFDEP_ERR_SYSTEM : status;
}

static afdep_status_t p2p_receive(afdep_bench_path_t *path, afdep_receive_t *receive)
{
    nccl_p2p_t *b = of(path);
    afdep_a2a_t *a = &b->a;
    afdep_gpu_begin_call();
    afdep_status_t status = move_counts(b);
    a->rows = afdep_a2a_prefix(a->recv_at, a->recv_counts, a->ranks);
    if (status == AFDEP_OK)
        status = move_rows(b);
    if (status == AFDEP_OK &&
        (copy(b, a->wire, b->wire, (size_t)a->rows * a->row.bytes) || afdep_gpu_finish(b->stream)))
        status = AFDEP_ERR_SYSTEM;
    if (status != AFDEP_OK)
        return status;
    afdep_gpu_say("fewer rows in the receive tensors than arrived");
    return afdep_a2a_lay_out(a, receive);
}

static afdep_status_t p2p_reply(afdep_bench_path_t *path, const afdep_reply_t *reply)
{
    nccl_p2p_t *b = of(path);
    afdep_gpu_begin_call();
    afdep_a2a_sum_replies(&b->a, reply->rows);
    if (copy(b, b->replies, b->a.replies, (size_t)b->a.rows * b->a.row.reply))
        return AFDEP_ERR_SYSTEM;
    afdep_status_t status = move_replies(b);
    afdep_a2a_count_sent(&b->a, b->sent, b->a.recv_counts, b->a.row.reply);
    return status == AFDEP_OK && afdep_gpu_finish(b->stream) ? AFDEP_ERR_SYSTEM : status;
}

static afdep_status_t p2p_collect(afdep_bench_path_t *path, afdep_collect_t *collect)
{
    nccl_p2p_t *b = of(path);
    afdep_a2a_t *a = &b->a;
    afdep_gpu_begin_call();
    int last = a->ffn_ranks - 1, rows = a->send_at[last] + a->send_counts[last];
    afdep_status_t status = move_replies(b);
    if (status == AFDEP_OK &&
        (copy(b, a->replies, b->replies, (size_t)rows * a->row.reply) || afdep_gpu_finish(b->stream)))
        status = AFDEP_ERR_SYSTEM;
    if (status != AFDEP_OK)
        return status;
    afdep_a2a_sum_tokens(a, collect->out);
    collect->result = collect->out;
    collect->result_stride = a->hidden;
    collect->tokens = a->tokens;
    return AFDEP_OK;
}

/* ---- Against the clock --------------------------------------------------------------------------------------- */

static afdep_status_t enqueue(void *context)
{
    nccl_p2p_t *b = context;
    afdep_status_t status = AFDEP_OK;
    for (int i = 0; status == AFDEP_OK && i < PAIRS; i++) {
        status = move_rows(b);
        if (status == AFDEP_OK)
            status = move_replies(b);
    }
    return status;
}

static int p2p_record(afdep_bench_path_t *path, int view, afdep_status_t *status)
{
    nccl_p2p_t *b = of(path);
    (void)view;
    afdep_gpu_begin_call();
    if (b->graph)
        (void)cudaGraphExecDestroy(b->graph);
    b->graph = NULL;
    *status = b->graphs ? afdep_gpu_record(b->stream, enqueue, b, &b->graph) : AFDEP_OK;
    return PAIRS;
}

static afdep_status_t p2p_replay(afdep_bench_path_t *path, int times, double *us)
{
    nccl_p2p_t *b = of(path);
    const afdep_a2a_t *a = &b->a;
    afdep_gpu_begin_call();
    afdep_status_t status = afdep_gpu_time(b->stream, b->graph, enqueue, b, times, us);
    *us /= (double)times * PAIRS;
    for (int i = 0; i < times * PAIRS; i++)
        afdep_a2a_count_sent(a, b->sent, b->ffn ? a->recv_counts : a->send_counts,
                             b->ffn ? a->row.reply : a->row.bytes);
    return status;
}

static afdep_status_t p2p_counters(afdep_bench_path_t *path, int peer, afdep_counters_t *counters)
{
    *counters = of(path)->sent[peer];
    counters->struct_size = sizeof(*counters);
    return AFDEP_OK;
}

static afdep_status_t p2p_error(afdep_bench_path_t *path)
{
    (void)path;
    return AFDEP_OK; /* its calls have said it */
}

const afdep_bench_path_ops_t afdep_bench_nccl_p2p = {
    .name = "nccl-p2p baseline",
    .memory = afdep_a2a_memory,
    .open = p2p_open,
    .info = p2p_info,
    .dispatch = p2p_dispatch,
    .receive = p2p_receive,
    .reply = p2p_reply,
    .collect = p2p_collect,
    .record = p2p_record,
    .replay = p2p_replay,
    .counters = p2p_counters,
    .error = p2p_error,
    .close = p2p_close,
    .why = afdep_staged_why,
};
