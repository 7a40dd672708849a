/* SPDX-License-Identifier: Apache-2.0 */
/*
 * afdep-validate: runs a suite's cases, all ranks together, and says how each ended. A negative control passes when the
 * planted defect is detected.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/lib/options.h"
#include "bench/lib/record.h"
#include "validate/cases.h"
#include "validate/child.h"
#include "validate/staged.h"
#ifdef AFDEP_HAVE_CUDA
#include "cuda/fabric.h"
#endif

static const char usage[] = "--scenario FILE [--suite NAME] [OPTION...]";
static const char description[] =
    "Validates the exchange: every value against an independent oracle, under odd shapes, faults, planted defects and "
    "explored schedules. Under mpirun every process is a rank; without it the ranks are threads.";

static const char *const suite_names[] = { "quick", "full", "faults", "negative", "explore", "graph" };
/* By API, then by suite. */
static const afdep_case_t *const suites[][AFDEP_SUITES] = {
    { afdep_cases_quick, afdep_cases_full, afdep_cases_faults, afdep_cases_negative, afdep_cases_explore,
      afdep_cases_graph },
    { afdep_cases_ll_quick, afdep_cases_ll_full, afdep_cases_ll_faults, afdep_cases_ll_negative,
      afdep_cases_ll_explore },
};
#ifdef AFDEP_HAVE_CUDA
static const afdep_case_t *const device_suites[][AFDEP_SUITES] = {
    { afdep_cases_quick, afdep_cases_device_full, afdep_cases_device_faults, NULL, NULL, afdep_cases_graph },
    { afdep_cases_ll_quick, afdep_cases_ll_full, afdep_cases_ll_device_faults, NULL, NULL,
      afdep_cases_ll_device_graph },
};
#endif

typedef struct plan {
    afdep_common_t common;
    const char *scenario_file, *only;
    int api, suite, schedules, list;
    afdep_scenario_t scenario;
    int argc;
    char **argv;
} plan_t;

void afdep_outcome_set(afdep_outcome_t *outcome, afdep_verdict_t verdict, const char *format, ...)
{
    if (outcome->verdict == AFDEP_FAILED)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(outcome->why, sizeof(outcome->why), format, arguments);
    va_end(arguments);
    outcome->verdict = verdict;
}

/* ---- One case on all ranks ----------------------------------------------------------------------------------- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The worst outcome of all ranks: the lowest failing rank's sentence, else the lowest skipping one's. */
static void gather(afdep_world_t *world, afdep_outcome_t *outcome)
{
    afdep_outcome_t *all = malloc((size_t)world->size * sizeof(*all));
    if (!all) {
        fprintf(stderr, "afdep-validate: no memory to gather the outcomes\n");
        afdep_world_abort(world, 1);
    }
    afdep_world_allgather(world, outcome, all, sizeof(*outcome));
    int worst = 0;
    for (int r = 0; r < world->size; r++) {
        int worse = all[r].verdict == AFDEP_FAILED && all[worst].verdict != AFDEP_FAILED;
        worse |= all[r].verdict == AFDEP_SKIPPED && all[worst].verdict == AFDEP_PASSED;
        if (worse)
            worst = r;
    }
    *outcome = all[worst];
    if (outcome->verdict == AFDEP_FAILED && worst > 0) {
        char why[sizeof(outcome->why)];
        snprintf(why, sizeof(why), "rank %d: %s", worst, all[worst].why);
        memcpy(outcome->why, why, sizeof(why));
    }
    outcome->exchanges = all[0].exchanges > outcome->exchanges ? all[0].exchanges : outcome->exchanges;
    free(all);
}

static void run_case(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    memset(outcome, 0, sizeof(*outcome));
    c->run(v, c, outcome);
    if (!c->alone)
        gather(v->world, outcome);
}

/* ---- Output -------------------------------------------------------------------------------------------------- */

typedef struct report {
    cJSON *record, *cases;
    int passed, failed, skipped;
} report_t;

/* The cases of the suite on this backend, or NULL. */
static const afdep_case_t *cases_of(const plan_t *plan)
{
#ifdef AFDEP_HAVE_CUDA
    if (plan->common.backend)
        return device_suites[plan->api][plan->suite];
#endif
    return suites[plan->api][plan->suite];
}

static const char *backend_of(const plan_t *plan)
{
    return plan->common.backend ? "cuda" : "host";
}

static const char *fabric_of(const plan_t *plan)
{
    if (plan->suite == AFDEP_SUITE_EXPLORE || plan->suite == AFDEP_SUITE_NEGATIVE)
        return "sim";
    if (plan->common.fabric)
        return plan->common.fabric;
    return plan->common.backend ? "peer" : "shm";
}

static void begin_report(report_t *report, const plan_t *plan, const afdep_world_t *world)
{
    const char *arm_name = plan->api ? "low-latency" : "sparse";
    afdep_arm_t arm = { .name = arm_name,
                        .protocol = arm_name,
                        .stagger = !plan->api,
                        .sparse_dispatch = !plan->api,
                        .sparse_combine = !plan->api,
                        .dtype = !plan->api && plan->scenario.dtype == AFDEP_DTYPE_FP8 ? "fp8" : "bf16",
                        .backend = backend_of(plan),
                        .fabric = fabric_of(plan),
                        .domains = "declared" };
    memset(report, 0, sizeof(*report));
    report->record = afdep_record_begin("afdep-validation/1", plan->argc, plan->argv, &plan->scenario, &arm,
                                        world->size, world->size);
    report->cases = report->record ? cJSON_AddArrayToObject(report->record, "cases") : NULL;
    printf("# afdep-validate %s, native tree %s%s\n", afdep_version(), afdep_native_tree(),
           afdep_native_tree_dirty() ? " (dirty)" : "");
    printf("# scenario %s: %d ranks as %s, suite %s%s, fabric %s, seed %llu\n", plan->scenario.name, world->size,
           world->threads ? "threads" : "processes", suite_names[plan->suite],
           plan->api ? " of the low-latency API" : "", fabric_of(plan), (unsigned long long)plan->scenario.seed);
    fflush(stdout);
}

static void print_case(const afdep_case_t *c, const afdep_outcome_t *o, double seconds)
{
    static const char *const words[] = { "ok", "FAILED", "skipped" };
    printf("%-8s %-40s %7.2f s %8lld exchanges%s%s\n", words[o->verdict], c->name, seconds, (long long)o->exchanges,
           o->why[0] ? "  " : "", o->why);
    fflush(stdout);
}

static int add_case(report_t *report, const plan_t *plan, const afdep_case_t *c, const afdep_outcome_t *o,
                    double seconds)
{
    static const char *const words[] = { "passed", "failed", "skipped" };
    cJSON *object = cJSON_CreateObject();
    int done = object && cJSON_AddStringToObject(object, "name", c->name) &&
               cJSON_AddStringToObject(object, "suite", suite_names[c->suite]) &&
               cJSON_AddStringToObject(object, "result", words[o->verdict]) &&
               (!o->why[0] || cJSON_AddStringToObject(object, "why", o->why)) &&
               cJSON_AddNumberToObject(object, "seconds", seconds) &&
               cJSON_AddNumberToObject(object, "exchanges", (double)o->exchanges) &&
               (!o->graph_exchanges ||
                cJSON_AddNumberToObject(object, "graph_exchanges", (double)o->graph_exchanges)) &&
               (!c->fault || cJSON_AddStringToObject(object, "fault", c->fault)) &&
               cJSON_AddNumberToObject(object, "seed", (double)plan->scenario.seed);
    if (done)
        return cJSON_AddItemToArray(report->cases, object) ? 0 : -1;
    cJSON_Delete(object);
    return -1;
}

/* The record is written after every case: what is known survives whatever ends the run. */
static void save(report_t *report, const plan_t *plan, afdep_world_t *world)
{
    char why[512] = "no memory for the record";
    if (!plan->common.json)
        return;
    cJSON_DeleteItemFromObject(report->record, "summary");
    cJSON *summary = cJSON_AddObjectToObject(report->record, "summary");
    int done = summary && cJSON_AddNumberToObject(summary, "passed", report->passed) &&
               cJSON_AddNumberToObject(summary, "failed", report->failed) &&
               cJSON_AddNumberToObject(summary, "skipped", report->skipped);
    if (done && afdep_record_write(plan->common.json, report->record, why, sizeof(why)) == 0)
        return;
    fprintf(stderr, "afdep-validate: %s\n", why);
    afdep_world_abort(world, 1);
}

/* Once, when the first buffer has been opened. */
static void note_gin(report_t *report, const afdep_gin_note_t *gin)
{
    cJSON *arm = cJSON_GetObjectItemCaseSensitive(report->record, "arm");
    cJSON *json = cJSON_HasObjectItem(arm, "gin") ? NULL : afdep_gin_note_json(gin);
    if (!json)
        return;
    if (!cJSON_AddItemToObject(arm, "gin", json))
        cJSON_Delete(json);
    afdep_gin_note_print(gin);
}

static void add_result(report_t *report, const plan_t *plan, afdep_world_t *world, const afdep_case_t *c,
                       const afdep_outcome_t *o, double seconds, const afdep_gin_note_t *gin)
{
    report->passed += o->verdict == AFDEP_PASSED;
    report->failed += o->verdict == AFDEP_FAILED;
    report->skipped += o->verdict == AFDEP_SKIPPED;
    print_case(c, o, seconds);
    note_gin(report, gin);
    if (!report->cases || add_case(report, plan, c, o, seconds) != 0) {
        fprintf(stderr, "afdep-validate: no memory for the record\n");
        afdep_world_abort(world, 1);
    }
    save(report, plan, world);
}

static void print_summary(const report_t *report)
{
    printf("%d passed, %d failed", report->passed, report->failed);
    if (report->skipped)
        printf(", %d skipped", report->skipped);
    printf("\n");
}

/* ---- The run ------------------------------------------------------------------------------------------------- */

static int wanted(const plan_t *plan, const afdep_case_t *c)
{
    return !plan->only || fnmatch(plan->only, c->name, 0) == 0;
}

static int run_rank(afdep_world_t *world, void *argument)
{
    plan_t *plan = argument;
    afdep_gin_note_t gin = { 0 };
    afdep_validation_t v = { .world = world,
                             .scenario = &plan->scenario,
                             .program = plan->argv[0],
                             .fabric = fabric_of(plan),
                             .backend = backend_of(plan),
                             .seed = plan->scenario.seed,
                             .timeout_ms = plan->common.timeout_ms ? plan->common.timeout_ms : 60000,
                             .schedules = plan->schedules,
                             .gin = &gin };
    report_t report = { 0 };
    int failed = 0;
    if (world->rank == 0)
        begin_report(&report, plan, world);
    /* The cases of rank 0 alone come last: they may take longer than the other ranks would wait for it. */
    for (int alone = 0; alone <= (world->rank == 0); alone++)
        for (const afdep_case_t *c = cases_of(plan); c->name; c++) {
            if (c->alone != alone || !wanted(plan, c))
                continue;
            afdep_outcome_t outcome;
            double start = seconds_now();
            run_case(&v, c, &outcome);
            failed += outcome.verdict == AFDEP_FAILED;
            if (world->rank == 0)
                add_result(&report, plan, world, c, &outcome, seconds_now() - start, &gin);
        }
    if (world->rank == 0)
        print_summary(&report);
    cJSON_Delete(report.record);
    return failed ? 1 : 0;
}

static int list_cases(const plan_t *plan)
{
    for (const afdep_case_t *c = cases_of(plan); c->name; c++)
        if (wanted(plan, c))
            printf("%s\n", c->name);
    return 0;
}

static int any_wanted(const plan_t *plan)
{
    for (const afdep_case_t *c = cases_of(plan); c->name; c++)
        if (wanted(plan, c))
            return 1;
    return 0;
}

/* 0: go on; 1: help or version was printed; -1: refused. */
static int parse(plan_t *plan, int argc, char **argv, int print, char *why, size_t why_size)
{
    const afdep_option_t options[] = {
        { "scenario", AFDEP_OPTION_STRING, &plan->scenario_file, 0, 0, 0, "FILE", "whose topology is validated", 0 },
        { "api", AFDEP_OPTION_CHOICE, &plan->api, 0, 0, "role|low-latency", 0,
          "whose suites run; of the scenario, low-latency takes the number of ranks (default role)", 0 },
        { "suite", AFDEP_OPTION_CHOICE, &plan->suite, 0, 0, "quick|full|faults|negative|explore|graph", 0,
          "which cases run (default quick)", 0 },
        { "schedules", AFDEP_OPTION_INT, &plan->schedules, 1, 2147483647.0, 0, "N",
          "schedules of the explore suite, over all its cases (default 20000)", 0 },
        { "list", AFDEP_OPTION_FLAG, &plan->list, 0, 0, 0, 0, "print the names of the suite's cases and exit", 0 },
        { "only", AFDEP_OPTION_STRING, &plan->only, 0, 0, 0, "GLOB", "run only the cases whose names match", 0 },
        AFDEP_COMMON_OPTIONS(plan->common),
        { 0 },
    };
    plan->schedules = 20000;
    int asked = afdep_options_parse(options, argc, argv, why, why_size);
    if (asked == 1 && print) {
        if (plan->common.version)
            printf("afdep-validate %s, native tree %s\n", afdep_version(), afdep_native_tree());
        else
            afdep_options_help("afdep-validate", usage, description, options);
    }
    if (asked != 0)
        return asked;
#ifndef AFDEP_HAVE_CUDA
    if (plan->common.backend == 1) {
        snprintf(why, why_size, "--backend: cuda: this build has no CUDA backend");
        return -1;
    }
#endif
    if (!cases_of(plan)) {
        snprintf(why, why_size, plan->suite == AFDEP_SUITE_GRAPH ? "--suite: %s: is of the role API"
                                                                 : "--suite: %s runs on the sim fabric, not with --backend cuda",
                 suite_names[plan->suite]);
        return -1;
    }
    if (plan->only && !any_wanted(plan)) {
        snprintf(why, why_size, "--only: %s: suite %s has no such case", plan->only, suite_names[plan->suite]);
        return -1;
    }
    if (plan->list)
        return 0;
    if (!plan->scenario_file) {
        snprintf(why, why_size, "--scenario: a scenario file is wanted");
        return -1;
    }
    if (afdep_scenario_load(plan->scenario_file, &plan->scenario, why, why_size) != 0)
        return -1;
    if (plan->common.seed_given)
        plan->scenario.seed = plan->common.seed;
    return 0;
}

static int check_size(const plan_t *plan, int size, char *why, size_t why_size)
{
    int ranks = afdep_scenario_ranks(&plan->scenario);
    if (size == 1 || size == ranks)
        return 0;
    snprintf(why, why_size, "scenario %s has %d ranks, this world has %d", plan->scenario.name, ranks, size);
    return -1;
}

/* Without a GPU no case of the CUDA backend could run. */
static int check_backend(const plan_t *plan, char *why, size_t why_size)
{
#ifdef AFDEP_HAVE_CUDA
    if (plan->common.backend && afdep_device_gpu() != AFDEP_OK) {
        snprintf(why, why_size, "--backend: cuda: %s", afdep_last_error());
        return -1;
    }
#endif
    (void)plan, (void)why, (void)why_size;
    return 0;
}

/* A suite runs on the simulated network, on shm or mpi, or on the fabrics of the CUDA backend; whatever else was asked
   for is refused. */
static int check_fabric(const plan_t *plan, int size, char *why, size_t why_size)
{
    const char *asked = plan->common.fabric;
    int simulated = plan->suite == AFDEP_SUITE_EXPLORE || plan->suite == AFDEP_SUITE_NEGATIVE;
    const char *const fabrics[3][2] = { { "shm", "mpi" }, { "sim", "sim" }, { "peer", "nccl" } };
    const char *const *fit = fabrics[plan->common.backend ? 2 : simulated];
    if (asked && strcmp(asked, fit[0]) != 0 && strcmp(asked, fit[1]) != 0) {
        snprintf(why, why_size, "--fabric: %s: suite %s runs on %s%s%s", asked, suite_names[plan->suite], fit[0],
                 simulated ? "" : " and ", simulated ? "" : fit[1]);
        return -1;
    }
    if (!asked || strcmp(asked, "mpi") != 0 || size > 1)
        return 0;
    snprintf(why, why_size, "--fabric: mpi: its ranks are MPI processes: run it under mpirun");
    return -1;
}

/* What only the launched world and the machine decide. */
static int check_run(const plan_t *plan, int size, int rank, char *why, size_t why_size)
{
    if (check_size(plan, size, why, why_size) != 0 || check_backend(plan, why, why_size) != 0 ||
        check_fabric(plan, size, why, why_size) != 0)
        return -1;
    return plan->common.json && rank == 0 ? afdep_record_probe(plan->common.json, why, why_size) : 0;
}

static void write_log(void *context, afdep_log_level_t level, const char *line)
{
    (void)context, (void)level;
    fprintf(stderr, "afdep-validate: %s\n", line);
}

int main(int argc, char **argv)
{
    static plan_t plan;
    char why[1024];
    int rank = 0, child = 0;
    if (afdep_child_main(argc, argv, &child))
        return child;
    plan.argc = argc;
    plan.argv = argv;
    int size = afdep_world_begin(&argc, &argv, &rank, why, sizeof(why));
    afdep_staged_begin(size == 1);
    if (size == 0) {
        fprintf(stderr, "afdep-validate: %s\n", why);
        return 1;
    }
    int status = 2, asked = parse(&plan, argc, argv, rank == 0, why, sizeof(why));
    if (plan.common.log > AFDEP_LOG_ERROR)
        afdep_log_set(write_log, NULL, (afdep_log_level_t)plan.common.log);
    if (asked == 0 && !plan.list && check_run(&plan, size, rank, why, sizeof(why)) != 0)
        asked = -1;
    asked = afdep_world_agree(argc, argv, asked, why, sizeof(why));
    if (asked == 1)
        status = 0;
    else if (asked == 0 && plan.list)
        status = rank == 0 ? list_cases(&plan) : 0;
    else if (asked < 0) {
        if (rank == 0)
            fprintf(stderr, "afdep-validate: %s\n", why);
    } else {
        /* Ranks wait for each other longer than the library does, so that it is the library that names what is missing. */
        int timeout_ms = plan.common.timeout_ms < INT_MAX / 3 ? 3 * plan.common.timeout_ms : INT_MAX;
        status = afdep_world_run(afdep_scenario_ranks(&plan.scenario), timeout_ms, run_rank, &plan);
    }
    afdep_scenario_free(&plan.scenario);
    afdep_world_end();
    return afdep_options_finish("afdep-validate", status);
}
