/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's tensors and how it starts, fails and ends. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int afdep_bench_largest_bucket(const afdep_bench_plan_t *plan)
{
    int most = 1;
    for (int i = 0; i < plan->scenario.token_counts; i++)
        most = plan->scenario.tokens[i] > most ? plan->scenario.tokens[i] : most;
    return most;
}

void afdep_bench_fatal(afdep_bench_rank_t *rank, const char *call, const char *why)
{
    fflush(stdout);
    fprintf(stderr, "afdep-bench: rank %d: %s: %s\n", rank->world->rank, call, why);
    fflush(stderr);
    afdep_world_abort(rank->world, 1);
    abort(); /* not reached */
}

static int path_failed(void *context)
{
    afdep_bench_rank_t *rank = context;
    return rank->ops->error(rank->path) != AFDEP_OK;
}

void afdep_bench_align(afdep_bench_rank_t *rank, int patience)
{
    char why[256];
    long long timeout = (rank->plan->common.timeout_ms ? rank->plan->common.timeout_ms : 60000LL) * patience;
    if (timeout > 24 * 3600 * 1000)
        timeout = 24 * 3600 * 1000;
    if (afdep_align_wait(rank->align, (int)timeout, path_failed, rank, why, sizeof(why)) == 0)
        return;
    if (why[0] == '\0')
        afdep_bench_must(rank, rank->ops->error(rank->path), "exchange");
    afdep_bench_fatal(rank, "aligned start", why);
}

/* ---- Tensors ------------------------------------------------------------------------------------------------- */

/* Page-aligned, zero until touched, and only then real: tensors are sized for the worst routing. */
static void *map_tensor(int64_t count, size_t size)
{
    size_t bytes = (size_t)(count > 0 ? count : 1) * size;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void unmap_tensor(void *at, int64_t count, size_t size)
{
    if (at)
        munmap(at, (size_t)(count > 0 ? count : 1) * size);
}

static size_t element_size(const afdep_bench_rank_t *rank)
{
    return rank->fp8 ? 1 : 2;
}

static int allocate_worker(afdep_bench_rank_t *rank, int bucket)
{
    const afdep_scenario_t *s = &rank->plan->scenario;
    afdep_memory_t memory = { .struct_size = sizeof(memory) };
    if (rank->ops->memory(rank->plan, bucket, &memory) != AFDEP_OK)
        return -1;
    int64_t rows = rank->rows_capacity = memory.receive_rows;
    rank->rows = map_tensor(rows * s->hidden, element_size(rank));
    rank->row_scale = rank->fp8 ? map_tensor(rows * (s->hidden / 128), sizeof(float)) : NULL;
    rank->row_weight = map_tensor(rows, sizeof(float));
    rank->row_source = map_tensor(rows * 2, sizeof(int32_t));
    rank->reply = map_tensor(rows * s->hidden, sizeof(uint16_t));
    rank->ends = map_tensor(rank->experts, sizeof(int32_t));
    rank->host_counts = map_tensor(rank->experts, sizeof(int32_t));
    if (!rank->rows || (rank->fp8 && !rank->row_scale) || !rank->row_weight || !rank->row_source || !rank->reply ||
        !rank->ends || !rank->host_counts)
        return -1;
    if (!rank->plan->check && !rank->plan->dump)
        return 0;
    rank->routes = calloc((size_t)s->attention_ranks, sizeof(*rank->routes));
    for (int a = 0; rank->routes && a < s->attention_ranks; a++)
        if (afdep_workload_alloc_routes(&rank->routes[a], s, bucket) != 0)
            return -1;
    return rank->routes ? 0 : -1;
}

static int allocate_source(afdep_bench_rank_t *rank, int bucket)
{
    const afdep_scenario_t *s = &rank->plan->scenario;
    for (int i = 0; i < rank->plan->in_flight; i++) {
        rank->out[i] = map_tensor((int64_t)bucket * s->hidden, sizeof(uint16_t));
        if (!rank->out[i] || afdep_workload_alloc(&rank->sent[i], s, bucket) != 0)
            return -1;
    }
    rank->want = aligned_alloc(64, (size_t)s->hidden * sizeof(uint16_t));
    rank->scratch = aligned_alloc(64, (afdep_oracle_scratch(s) + 63) / 64 * 64);
    return rank->want && rank->scratch ? 0 : -1;
}

static void free_tensors(afdep_bench_rank_t *rank)
{
    const afdep_scenario_t *s = &rank->plan->scenario;
    int64_t rows = rank->rows_capacity;
    for (int a = 0; rank->routes && a < s->attention_ranks; a++)
        afdep_workload_free(&rank->routes[a]);
    free(rank->routes);
    unmap_tensor(rank->host_counts, rank->experts, sizeof(int32_t));
    unmap_tensor(rank->ends, rank->experts, sizeof(int32_t));
    unmap_tensor(rank->reply, rows * s->hidden, sizeof(uint16_t));
    unmap_tensor(rank->row_source, rows * 2, sizeof(int32_t));
    unmap_tensor(rank->row_weight, rows, sizeof(float));
    unmap_tensor(rank->row_scale, rows * (s->hidden / 128), sizeof(float));
    unmap_tensor(rank->rows, rows * s->hidden, element_size(rank));
    free(rank->scratch);
    free(rank->want);
    for (int i = 0; rank->source >= 0 && i < rank->plan->in_flight; i++) {
        afdep_workload_free(&rank->sent[i]);
        unmap_tensor(rank->out[i], (int64_t)afdep_bench_largest_bucket(rank->plan) * s->hidden, sizeof(uint16_t));
    }
}

/* ---- Opening and closing --------------------------------------------------------------------------------------- */

/* Settings that are refused are the caller's mistake: exit 2; anything else is a failed run: exit 1. */
static int refused(afdep_bench_rank_t *rank, afdep_status_t status)
{
    if (rank->world->rank == 0)
        fprintf(stderr, "afdep-bench: opening the %s: %s\n", rank->ops->name, rank->ops->why());
    int mistake = status == AFDEP_ERR_CONFIG || status == AFDEP_ERR_ARGUMENT || status == AFDEP_ERR_UNSUPPORTED;
    return mistake ? 2 : 1;
}

/* As the help says: shared memory where all ranks share a host, MPI across hosts; before that, the environment. */
static const char *choose_fabric(const afdep_bench_rank_t *rank)
{
    const char *environment = getenv("AFDEP_FABRIC");
    if (rank->plan->common.backend || rank->plan->common.fabric || (environment && environment[0]))
        return rank->plan->common.fabric;
    return afdep_align_one_host(rank->align) ? "shm" : "mpi";
}

int afdep_bench_rank_open(afdep_bench_rank_t *rank, const afdep_bench_plan_t *plan, afdep_world_t *world)
{
    const afdep_scenario_t *s = &plan->scenario;
    memset(rank, 0, sizeof(*rank));
    rank->plan = plan;
    rank->world = world;
    rank->ops = afdep_bench_path_ops(plan);
    rank->source = afdep_scenario_is_source(s, world->rank) ? world->rank - s->ffn_ranks : -1;
    rank->worker = afdep_scenario_is_worker(s, world->rank);
    rank->experts = afdep_scenario_experts(s);
    rank->fp8 = s->dtype == AFDEP_DTYPE_FP8;
    int bucket = afdep_bench_largest_bucket(plan);
    char why[256];
    rank->align = afdep_align_open(world, plan->align, why, sizeof(why));
    if (!rank->align)
        afdep_bench_fatal(rank, "open", why);
    afdep_status_t status = rank->ops->open(world, plan, choose_fabric(rank), bucket, &rank->path);
    if (status == AFDEP_OK && plan->microbatches > 0)
        status = rank->ops->open(world, plan, choose_fabric(rank), bucket, &rank->second);
    if (status != AFDEP_OK) {
        afdep_align_close(rank->align);
        return refused(rank, status);
    }
    rank->ops->info(rank->path, &rank->info);
    if ((rank->worker && allocate_worker(rank, bucket) != 0) ||
        (rank->source >= 0 && allocate_source(rank, bucket) != 0))
        afdep_bench_fatal(rank, "open", "no memory for the tensors of the largest token count");
    return 0;
}

void afdep_bench_rank_close(afdep_bench_rank_t *rank)
{
    afdep_bench_align(rank, AFDEP_BENCH_CHECK_PATIENCE);
    if (rank->second)
        afdep_bench_must(rank, rank->ops->close(rank->second), "close");
    afdep_bench_must(rank, rank->ops->close(rank->path), "close");
    afdep_align_close(rank->align);
    free_tensors(rank);
}

/* ---- Structs of one exchange ------------------------------------------------------------------------------------ */

afdep_dispatch_t afdep_bench_dispatch_of(const afdep_bench_rank_t *rank, const afdep_source_tokens_t *tokens,
                                         int bucket)
{
    afdep_dispatch_t dispatch = AFDEP_DISPATCH_INIT;
    dispatch.tokens = tokens->tokens;
    dispatch.bucket = bucket;
    dispatch.x = tokens->x;
    dispatch.x_scale = rank->fp8 ? tokens->x_scale : NULL;
    dispatch.ids = tokens->ids;
    dispatch.weights = tokens->weights;
    return dispatch;
}

afdep_receive_t afdep_bench_receive_of(const afdep_bench_rank_t *rank, int bucket)
{
    afdep_receive_t receive = AFDEP_RECEIVE_INIT;
    receive.bucket = bucket;
    receive.rows = rank->rows;
    receive.row_scale = rank->row_scale;
    receive.row_weight = rank->row_weight;
    receive.row_source = rank->row_source;
    receive.ends = rank->ends;
    receive.rows_capacity = rank->rows_capacity;
    return receive;
}
