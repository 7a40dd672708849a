/* SPDX-License-Identifier: Apache-2.0 */
/*
 * afdep-bench: the round trip of an exchange, measured and checked, for each token count of a scenario. The parts:
 * bench_plan (command line), bench_rank (tensors), bench_path (the library or a baseline), bench_measure (the timed
 * loop), bench_overlap (micro-batches), bench_check (checked exchanges), bench_print and bench_record (what comes of
 * it).
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench_check.h"
#include "bench/bench_measure.h"
#include "bench/bench_print.h"
#include "bench/bench_record.h"
#include "bench/ll_bench.h"
#include "validate/staged.h"

/* What rank 0 keeps of the run; nothing at other ranks. */
typedef struct output {
    afdep_arm_t arm;
    char arm_name[AFDEP_BENCH_ARM_NAME_MAX];
    double memcpy_gbs;
    cJSON *record; /* with --json */
} output_t;

static int64_t total_of(afdep_bench_rank_t *rank, int64_t value)
{
    int64_t *all = malloc((size_t)rank->world->size * sizeof(*all)), total = 0;
    if (!all)
        afdep_bench_fatal(rank, "check", "no memory to gather the results");
    afdep_world_allgather(rank->world, &value, all, sizeof(value));
    for (int r = 0; r < rank->world->size; r++)
        total += all[r];
    free(all);
    return total;
}

static void save(afdep_bench_rank_t *rank, const output_t *output)
{
    char why[512];
    if (output->record && afdep_record_write(rank->plan->common.json, output->record, why, sizeof(why)) != 0)
        afdep_bench_fatal(rank, "record", why);
}

/* 1 with a line when `option`'s file or folder `path` could not be written at the end: better known at the start. */
static int refuse_path(const char *option, const char *path, const char *folder)
{
    if (access(folder, W_OK | X_OK) == 0)
        return 0;
    fprintf(stderr, "afdep-bench: --%s: %s: %s: %s\n", option, path, folder, strerror(errno));
    return 1;
}

static int refuse_outputs(const afdep_bench_plan_t *plan)
{
    char why[512];
    if (plan->common.json && afdep_record_probe(plan->common.json, why, sizeof(why)) != 0) {
        fprintf(stderr, "afdep-bench: --json: %s\n", why);
        return 1;
    }
    if (plan->dump && mkdir(plan->dump, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "afdep-bench: --dump: %s: %s\n", plan->dump, strerror(errno));
        return 1;
    }
    return plan->dump && refuse_path("dump", plan->dump, plan->dump);
}

/* Rank 0 looks at the machine while the others wait. Returns nonzero at all ranks when an output is refused. */
static int begin_output(afdep_bench_rank_t *rank, output_t *output)
{
    int refused = rank->world->rank == 0 && refuse_outputs(rank->plan);
    if (rank->world->rank == 0 && !refused) {
        afdep_bench_arm(rank, &output->arm, output->arm_name);
        output->memcpy_gbs = afdep_bench_memcpy_rate();
        afdep_bench_print_header(rank, &output->arm, output->memcpy_gbs);
        if (rank->plan->common.json)
            output->record = afdep_bench_record_begin(rank, &output->arm);
        if (rank->plan->common.json && !output->record)
            afdep_bench_fatal(rank, "record", "no memory");
    }
    afdep_bench_align(rank, AFDEP_BENCH_CHECK_PATIENCE);
    return total_of(rank, refused) != 0;
}

/* The record is saved with every cell, so that what is finished survives whatever ends the run. */
static void add_output(afdep_bench_rank_t *rank, output_t *output, const afdep_bench_cell_t *cell)
{
    if (rank->world->rank != 0)
        return;
    afdep_bench_print_cell(cell, output->memcpy_gbs);
    if (rank->plan->microbatches > 0)
        afdep_bench_print_overlap(rank->plan, cell);
    if (output->record && afdep_bench_record_add(output->record, rank, cell) != 0)
        afdep_bench_fatal(rank, "record", "no memory");
    save(rank, output);
}

/* One token count: checked exchanges, timed ones, checked ones. Returns the wrong values of all ranks. */
static int64_t run_cell(afdep_bench_rank_t *rank, output_t *output, int tokens, afdep_reservoir_t *reservoir)
{
    const afdep_bench_plan_t *plan = rank->plan;
    int exchanges = plan->check ? afdep_bench_check_exchanges(plan, tokens) : plan->dump ? plan->in_flight : 0;
    afdep_bench_cell_t cell = { .tokens = tokens, .checked = plan->check };
    int64_t wrong = afdep_bench_check(rank, tokens, 0, exchanges, 0, plan->dump);
    afdep_bench_measure(rank, &cell, reservoir);
    if (plan->microbatches > 0)
        afdep_bench_overlap(rank, tokens, &cell.overlap);
    if (plan->check)
        wrong += afdep_bench_check(rank, tokens, exchanges, exchanges, rank->info.source_view, NULL);
    cell.mismatches = total_of(rank, wrong);
    add_output(rank, output, &cell);
    free(cell.counts.out);
    free(cell.counts.in);
    free(cell.samples_us);
    return cell.mismatches;
}

static int run_rank(afdep_world_t *world, void *argument)
{
    const afdep_bench_plan_t *plan = argument;
    afdep_bench_rank_t rank;
    output_t output = { 0 };
    if (plan->pin)
        afdep_world_pin(world); /* first, since a fabric looks at the processors it may use */
    int status = afdep_bench_rank_open(&rank, plan, world);
    if (status != 0)
        return status;
    afdep_reservoir_t *reservoir = malloc(sizeof(*reservoir));
    if (!reservoir)
        afdep_bench_fatal(&rank, "open", "no memory for the samples");
    int refused = begin_output(&rank, &output);
    int64_t wrong = 0;
    for (int i = 0; !refused && i < plan->scenario.token_counts; i++)
        wrong += run_cell(&rank, &output, plan->scenario.tokens[i], reservoir);
    afdep_bench_rank_close(&rank);
    cJSON_Delete(output.record);
    free(reservoir);
    return refused ? 2 : wrong ? 1 : 0;
}

static void write_log(void *context, afdep_log_level_t level, const char *line)
{
    (void)context;
    (void)level;
    fprintf(stderr, "afdep-bench: %s\n", line);
}

/* What only the launched world decides. */
static int check_world(const afdep_bench_plan_t *plan, int size, char *why, size_t why_size)
{
    if (size != 1 && size != plan->ranks) {
        snprintf(why, why_size, "scenario %s has %d ranks, this world has %d", plan->scenario.name, plan->ranks, size);
        return -1;
    }
    if (plan->protocol == AFDEP_BENCH_ALLTOALLV && size == 1) {
        snprintf(why, why_size, "--protocol: alltoallv: its ranks are MPI processes: run it under mpirun -n %d",
                 plan->ranks);
        return -1;
    }
    if (plan->api)
        return afdep_bench_ll_check(plan, why, why_size);
    const afdep_bench_path_ops_t *ops = afdep_bench_path_ops(plan);
    if (!ops) {
        snprintf(why, why_size, "--protocol: this build has no MPI");
        return -1;
    }
    afdep_memory_t memory = { .struct_size = sizeof(memory) };
    if (ops->memory(plan, afdep_bench_largest_bucket(plan), &memory) == AFDEP_OK)
        return 0;
    snprintf(why, why_size, "%s", ops->why());
    return -1;
}

static void refuse(int rank, const char *why)
{
    if (rank == 0)
        fprintf(stderr, "afdep-bench: %s\n", why);
}

static int run(afdep_bench_plan_t *plan, int argc, char **argv)
{
    char why[1024];
    int rank = 0;
    int size = afdep_world_begin(&argc, &argv, &rank, why, sizeof(why));
    afdep_staged_begin(size == 1);
    if (size == 0) {
        fprintf(stderr, "afdep-bench: %s\n", why);
        return 1;
    }
    int status = 2;
    int asked = afdep_bench_plan_parse(plan, argc, argv, rank == 0, why, sizeof(why));
    if (plan->common.log > AFDEP_LOG_ERROR)
        afdep_log_set(write_log, NULL, (afdep_log_level_t)plan->common.log);
    if (asked == 0 && check_world(plan, size, why, sizeof(why)) != 0)
        asked = -1;
    asked = afdep_world_agree(argc, argv, asked, why, sizeof(why));
    if (asked == 1)
        status = 0;
    else if (asked < 0)
        refuse(rank, why);
    else
        status =
            afdep_world_run(plan->ranks, plan->common.timeout_ms, plan->api ? afdep_bench_ll_rank : run_rank, plan);
    afdep_bench_plan_free(plan);
    afdep_world_end();
    return status;
}

int main(int argc, char **argv)
{
    afdep_bench_plan_t *plan = calloc(1, sizeof(*plan));
    if (!plan) {
        fprintf(stderr, "afdep-bench: no memory\n");
        return 1;
    }
    int status = run(plan, argc, argv);
    free(plan);
    return afdep_options_finish("afdep-bench", status);
}
