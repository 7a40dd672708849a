/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults injected under whole exchanges, over thread ranks on shm, in both protocols: what only takes time is absorbed
 * with exact results; what is lost, spoilt or repeated ends in a named error at every rank or does no harm, and never
 * in a wrong value or a hang. A killed process is named by every survivor.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fabric/fault.h"
#include "protocol/row.h"
#include "validate/exchanger.h"
#include "validate/unit/crowd.h"
#include "validate/unit/ranks.h"

#define RANKS 6
#define PATIENT_MS 20000
#define SHORT_MS 250
#define RULES 4

/* What may become of a case. */
typedef enum outcome { ABSORBED, NAMED, HARMLESS_OR_NAMED } outcome_t;

typedef struct fault_case {
    const char *name;
    afdep_fault_t rules[RULES];
    int count; /* of rules */
    int direct, dense, in_flight, exchanges, timeout_ms;
    outcome_t outcome;
    /* NAMED: the status that somebody must come back with, and what its sentence must hold. */
    afdep_status_t status;
    const char *sentence;
    /* A rank that stops before its call number `stop_at` until another has failed: its waiting would hide whose wait
       came first. -1: none. */
    int stop_rank, stop_at;
    int ffn, attention, per_domain; /* 0: 2F:4A */
    int victim; /* kill: who dies */
} fault_case_t;

typedef struct fault_run {
    const fault_case_t *c;
    afdep_faults_t faults;
    afdep_fault_provider_t provider;
    atomic_int failed; /* ranks */
    struct {
        afdep_status_t status;
        int wrong; /* a value, not an error of the library's */
        char why[512];
    } rank[RANKS];
} fault_run_t;

static afdep_scenario_t scenario_of(const fault_case_t *c)
{
    afdep_scenario_t s = { 0 };
    s.ffn_ranks = c->ffn ? c->ffn : 2;
    s.attention_ranks = c->attention ? c->attention : 4;
    s.ranks_per_domain = c->direct ? s.ffn_ranks + s.attention_ranks : c->per_domain ? c->per_domain : 2;
    s.num_experts = 8;
    s.top_k = 2;
    s.hidden = 256;
    s.dtype = AFDEP_DTYPE_FP8;
    s.capacity = 20;
    s.num_sms = 1;
    s.expert_alignment = 1;
    s.seed = 11;
    return s;
}

static afdep_config_t config_of(const fault_case_t *c, const afdep_scenario_t *s)
{
    afdep_config_t config = afdep_exchanger_config(s);
    afdep_toggle_t toggle = c->dense ? AFDEP_OFF : AFDEP_ON;
    config.stagger = config.sparse_dispatch = config.sparse_combine = toggle;
    config.in_flight = c->in_flight ? c->in_flight : 1;
    config.timeout_ms = c->timeout_ms;
    config.fabric = c->direct ? "shm" : NULL; /* asked for by name, it is the group's all the same */
    return config;
}

/* Whole buckets, every fourth exchange smaller, so that all channels carry something most of the time. */
static void plan_exchange(const fault_case_t *c, int n, int *tokens, afdep_exchange_plan_t *plan)
{
    memset(plan, 0, sizeof(*plan));
    for (int a = 0; a < RANKS; a++)
        tokens[a] = n % 4 == 2 ? 1 + a : 20;
    plan->number = (uint64_t)n;
    plan->bucket = 20;
    plan->tokens = tokens;
    plan->inactive_percent = c->outcome == ABSORBED && n % 3 == 1 ? 40 : 0;
    plan->read_host_counts = n % 2;
}

static void stop(fault_run_t *run, int rank, int call)
{
    while (rank == run->c->stop_rank && call == run->c->stop_at && atomic_load(&run->failed) == 0)
        usleep(1000);
}

/* Exchanges until one fails; the library's status, or PROTOCOL with `wrong` set where a value is not as it must be. */
static afdep_status_t exchange(fault_run_t *run, const afdep_scenario_t *scenario, afdep_buffer_t *buffer, int rank)
{
    const fault_case_t *c = run->c;
    int in_flight = c->in_flight ? c->in_flight : 1, tokens[2][RANKS];
    afdep_exchanger_t x[2];
    afdep_exchange_plan_t plans[2];
    afdep_status_t status = AFDEP_OK;
    const char *why = "";
    for (int g = 0; g < in_flight; g++)
        if (afdep_exchanger_init(&x[g], scenario, buffer, scenario->seed) != 0)
            return AFDEP_ERR_MEMORY;
    for (int n = 0; n < c->exchanges + in_flight - 1 && status == AFDEP_OK; n++) {
        int first = n % in_flight, second = (n + 1) % in_flight;
        stop(run, rank, 2 * n);
        if (n < c->exchanges) {
            plan_exchange(c, n, tokens[first], &plans[first]);
            status = afdep_exchanger_first(&x[first], &plans[first]);
            why = x[first].why;
        }
        stop(run, rank, 2 * n + 1);
        if (status == AFDEP_OK && n - in_flight + 1 >= 0) {
            status = afdep_exchanger_second(&x[second], &plans[second]);
            why = x[second].why;
        }
    }
    if (status != AFDEP_OK) {
        run->rank[rank].wrong = strncmp(why, "source_", 7) != 0 && strncmp(why, "worker_", 7) != 0;
        snprintf(run->rank[rank].why, sizeof(run->rank[rank].why), "%s", why);
    }
    for (int g = 0; g < in_flight; g++)
        afdep_exchanger_free(&x[g]);
    return status;
}

static const char *fault_rank(const afdep_group_t *group, void *context)
{
    fault_run_t *run = context;
    afdep_scenario_t scenario = scenario_of(run->c);
    afdep_config_t config = config_of(run->c, &scenario);
    afdep_group_t faulty = *group;
    afdep_buffer_t *buffer = NULL;
    int rank = group->rank;
    faulty.fabrics = &run->provider.super;
    if (afdep_buffer_open(&faulty, &config, &buffer) != AFDEP_OK)
        return crowd_say("open: %s", afdep_last_error());
    afdep_status_t status = exchange(run, &scenario, buffer, rank);
    run->rank[rank].status = status;
    if (status != AFDEP_OK)
        atomic_fetch_add(&run->failed, 1);
    status = afdep_buffer_close(buffer);
    if (run->rank[rank].status == AFDEP_OK && status != AFDEP_OK) {
        run->rank[rank].status = status;
        snprintf(run->rank[rank].why, sizeof(run->rank[rank].why), "%s", afdep_last_error());
    }
    return NULL;
}

static void print_ranks(const fault_run_t *run, int ranks)
{
    for (int r = 0; r < ranks; r++)
        print_error("  rank %d: %s%s: %s\n", r, afdep_status_string(run->rank[r].status),
                    run->rank[r].wrong ? ", a WRONG VALUE" : "", run->rank[r].why);
}

/* Why a run is not as its case wants it, or NULL. */
static const char *judge(const fault_run_t *run, int ranks)
{
    const fault_case_t *c = run->c;
    int failed = 0, named = 0;
    for (int r = 0; r < ranks; r++) {
        afdep_status_t status = run->rank[r].status;
        if (run->rank[r].wrong)
            return "a wrong value";
        if (status != AFDEP_OK && status != AFDEP_ERR_PEER && status != AFDEP_ERR_TIMEOUT &&
            status != AFDEP_ERR_PROTOCOL)
            return "an error that is none of the three";
        if (status == AFDEP_ERR_TIMEOUT && !strstr(run->rank[r].why, " waited for "))
            return "a timeout that does not say what was waited for";
        failed += status != AFDEP_OK;
        named += status != AFDEP_OK && (!c->status || status == c->status) &&
                 (!c->sentence || strstr(run->rank[r].why, c->sentence));
    }
    if (failed > 0 && failed < ranks)
        return "an error that did not reach every rank";
    if (c->outcome == ABSORBED && failed > 0)
        return "an error where the fault was to be absorbed";
    if (c->outcome == NAMED && named == 0)
        return "no rank with the wanted error";
    return NULL;
}

static void run_case(const fault_case_t *c)
{
    fault_run_t *run = calloc(1, sizeof(*run));
    afdep_scenario_t s = scenario_of(c);
    int ranks = s.ffn_ranks + s.attention_ranks;
    assert_non_null(run);
    run->c = c;
    run->faults = (afdep_faults_t){ c->rules, c->count, 3 };
    afdep_fault_provider_init(&run->provider, &afdep_fabric_shm, &run->faults);
    const char *failed = crowd_run(ranks, fault_rank, run);
    if (!failed)
        failed = judge(run, ranks);
    if (failed) {
        print_ranks(run, ranks);
        fail_msg("%s%s: %s", c->name, c->direct ? ", direct" : c->dense ? ", dense" : "", failed);
    }
    free(run);
}

/* In both protocols, and in the dense arm. */
static void run_everywhere(fault_case_t c)
{
    for (int where = 0; where < 3; where++) {
        c.direct = where == 1;
        c.dense = where == 2;
        run_case(&c);
    }
}

static afdep_fault_t rule(afdep_fault_kind_t kind)
{
    return (afdep_fault_t)AFDEP_FAULT_INIT(kind);
}

#define ONE(r) .rules = { r }, .count = 1, .stop_rank = -1

/* ---- Absorbed ------------------------------------------------------------------------------------------------ */

#define PATIENT .exchanges = 16, .timeout_ms = PATIENT_MS, .outcome = ABSORBED

static void test_delays(void **state)
{
    (void)state;
    static const int whats[] = { AFDEP_FAULT_PUT, AFDEP_SIGNAL_FINISH_TAIL, AFDEP_SIGNAL_COUNT_WORD,
                                 AFDEP_SIGNAL_COMBINE, AFDEP_SIGNAL_WITNESS, AFDEP_SIGNAL_DOMAIN_WORD };
    for (size_t i = 0; i < sizeof(whats) / sizeof(whats[0]); i++) {
        afdep_fault_t r = rule(AFDEP_FAULT_DELAY);
        r.what = whats[i];
        r.probability = 0.1;
        r.amount_us = 300;
        run_everywhere((fault_case_t){ .name = "delay", ONE(r), PATIENT });
    }
    afdep_fault_t any = rule(AFDEP_FAULT_DELAY);
    any.probability = 0.05;
    any.amount_us = 400;
    run_everywhere((fault_case_t){ .name = "delay of anything, two in flight", ONE(any), PATIENT, .in_flight = 2 });
}

static void test_reorders(void **state)
{
    (void)state;
    afdep_fault_t r = rule(AFDEP_FAULT_REORDER);
    r.probability = 0.2;
    r.overtake = 8;
    r.amount_us = 500;
    run_everywhere((fault_case_t){ .name = "reorder", ONE(r), PATIENT });
    run_everywhere((fault_case_t){ .name = "reorder, two in flight", ONE(r), PATIENT, .in_flight = 2 });
}

static void test_slow_actors(void **state)
{
    (void)state;
    static const char *const duties[] = { "forward", "reply_forward", "collect", "source_dispatch", "receive" };
    for (size_t i = 0; i < sizeof(duties) / sizeof(duties[0]); i++) {
        afdep_fault_t r = rule(AFDEP_FAULT_SLOW_ACTOR);
        r.duty = duties[i];
        r.amount_us = 200;
        r.probability = 0.2;
        run_everywhere((fault_case_t){ .name = duties[i], ONE(r), PATIENT });
    }
}

/* Several rules at once. */
static void test_mixtures(void **state)
{
    (void)state;
    fault_case_t c = { .name = "mixture", .count = 3, .stop_rank = -1, PATIENT, .in_flight = 2 };
    c.rules[0] = rule(AFDEP_FAULT_DELAY);
    c.rules[0].rank = 0;
    c.rules[0].probability = 0.1;
    c.rules[0].amount_us = 500;
    c.rules[1] = rule(AFDEP_FAULT_REORDER);
    c.rules[1].probability = 0.1;
    c.rules[1].amount_us = 300;
    c.rules[2] = rule(AFDEP_FAULT_SLOW_ACTOR);
    c.rules[2].rank = 1;
    c.rules[2].probability = 0.1;
    c.rules[2].amount_us = 100;
    run_everywhere(c);
}

/* ---- Named --------------------------------------------------------------------------------------------------- */

#define IMPATIENT .exchanges = 30, .timeout_ms = SHORT_MS, .outcome = NAMED
#define CERTAIN .exchanges = 30, .timeout_ms = PATIENT_MS, .outcome = NAMED /* found, not waited for */

/* One source, one FFN rank, and a word that does not come: who waits for it names it. */
static void lose_word(int direct, int what, int sender, int stop_at, const char *sentence)
{
    afdep_fault_t r = rule(AFDEP_FAULT_DROP);
    r.rank = sender;
    r.what = what;
    r.exchange = 3;
    fault_case_t c = { .name = sentence, ONE(r), IMPATIENT, .direct = direct, .ffn = 1, .attention = 1, .per_domain = 1,
                       .status = AFDEP_ERR_TIMEOUT, .sentence = sentence };
    c.timeout_ms = 400; /* no other wait may take so long on a busy machine */
    c.stop_rank = sender;
    c.stop_at = stop_at;
    run_case(&c);
}

static void test_lost_words(void **state)
{
    (void)state;
    for (int direct = 0; direct < 2; direct++) {
        lose_word(direct, AFDEP_SIGNAL_COUNT_WORD, 1, 5, "waited for the count word of rank 1");
        lose_word(direct, AFDEP_SIGNAL_COMBINE, 0, 6, "waited for the combine signal of rank 0");
    }
    lose_word(0, AFDEP_SIGNAL_FINISH_TAIL, 1, 5, "waited for the finish tail of rank 1");
    lose_word(0, AFDEP_SIGNAL_WITNESS, 0, 6, "waited for the done witness of an earlier exchange of rank 0");
    lose_word(1, AFDEP_SIGNAL_WITNESS, 0, 6, "waited for the answer to an earlier exchange of rank 0");
}

/* Among six ranks it is open whose deadline comes first; that all come back, and with what, is not. */
static void test_lost_among_many(void **state)
{
    (void)state;
    static const int whats[] = { AFDEP_SIGNAL_FINISH_TAIL, AFDEP_SIGNAL_COUNT_WORD, AFDEP_SIGNAL_COMBINE,
                                 AFDEP_SIGNAL_WITNESS, AFDEP_SIGNAL_DOMAIN_WORD };
    for (size_t i = 0; i < sizeof(whats) / sizeof(whats[0]); i++)
        for (int direct = 0; direct < 2; direct++) {
            afdep_fault_t r = rule(AFDEP_FAULT_DROP);
            int in_direct = whats[i] != AFDEP_SIGNAL_FINISH_TAIL && whats[i] != AFDEP_SIGNAL_DOMAIN_WORD;
            r.what = whats[i];
            r.count = 1;
            r.exchange = 4;
            r.rank = whats[i] == AFDEP_SIGNAL_FINISH_TAIL || whats[i] == AFDEP_SIGNAL_COUNT_WORD ? 3 : 0;
            if (direct && !in_direct)
                continue;
            run_case(&(fault_case_t){ .name = afdep_signal_kind_names[whats[i]], ONE(r), IMPATIENT, .direct = direct,
                                      .status = AFDEP_ERR_TIMEOUT, .sentence = " of rank " });
        }
}

static void test_stalls(void **state)
{
    (void)state;
    afdep_fault_t source = rule(AFDEP_FAULT_STALL), lane = rule(AFDEP_FAULT_STALL);
    source.rank = 3;
    source.after = 60;
    run_everywhere((fault_case_t){ .name = "a source that stops", ONE(source), IMPATIENT,
                                   .status = AFDEP_ERR_TIMEOUT });
    lane.rank = 0;
    lane.peer = 2;
    lane.count = 1;
    lane.after = 20;
    run_everywhere((fault_case_t){ .name = "a lane that stops", ONE(lane), IMPATIENT, .status = AFDEP_ERR_TIMEOUT });
}

static afdep_row_format_t format_of(void)
{
    afdep_shape_t shape = { 0 };
    shape.hidden = 256;
    shape.top_k = 2;
    shape.fp8 = 1;
    return afdep_row_format(&shape);
}

static void test_lost_and_spoilt_rows(void **state)
{
    (void)state;
    for (int direct = 0; direct < 2; direct++)
        for (int spoilt = 0; spoilt < 2; spoilt++)
            for (int reply = 0; reply < 2; reply++) {
                afdep_fault_t r = rule(spoilt ? AFDEP_FAULT_CORRUPT : AFDEP_FAULT_DROP);
                r.what = AFDEP_FAULT_PUT;
                r.exchange = 4;
                r.count = 1;
                r.rank = reply ? 0 : 3;
                if (reply && !direct)
                    r.lane = 2;
                r.bit = reply ? -64 : (int)format_of().tag_offset * 8 + 1;
                run_case(&(fault_case_t){ .name = spoilt ? "a spoilt tag" : "a lost row", ONE(r), CERTAIN,
                                          .direct = direct, .status = AFDEP_ERR_PROTOCOL,
                                          .sentence = reply ? "is not there" : direct ? "are there" : "is not there" });
            }
}

/* A flip in the tag of a word, and one in its value. */
static void test_spoilt_words(void **state)
{
    (void)state;
    static const struct {
        int what, rank, direct, bit;
        const char *sentence;
    } flips[] = {
        { AFDEP_SIGNAL_COUNT_WORD, 3, 0, 33, "the count word of rank 3 holds" },
        { AFDEP_SIGNAL_COUNT_WORD, 3, 1, 33, "the count word of rank 3 holds" },
        { AFDEP_SIGNAL_COUNT_WORD, 3, 0, 20, "rank 3 sent a token count of" },
        { AFDEP_SIGNAL_COUNT_WORD, 3, 1, 20, "rank 3 sent a row count of" },
        { AFDEP_SIGNAL_FINISH_TAIL, 3, 0, 40, "the finish tail of rank 3 holds" },
        { AFDEP_SIGNAL_FINISH_TAIL, 3, 0, 9, "the finish tail of rank 3 holds" },
        { AFDEP_SIGNAL_COMBINE, 0, 0, 3, "the combine tail of rank 0 holds" },
        { AFDEP_SIGNAL_COMBINE, 0, 1, 3, "the combine tail of rank 0 holds" },
        { AFDEP_SIGNAL_COMBINE, 0, 1, -1, "the combine tail of rank 0 holds" },
        { AFDEP_SIGNAL_WITNESS, 0, 0, 34, "the done witness of rank 0 holds" },
        { AFDEP_SIGNAL_WITNESS, 0, 1, 34, "the answer word of rank 0 holds" },
        { AFDEP_SIGNAL_DOMAIN_WORD, 0, 0, 35, "the forward word of rank 0 holds" },
    };
    for (size_t i = 0; i < sizeof(flips) / sizeof(flips[0]); i++) {
        afdep_fault_t r = rule(AFDEP_FAULT_CORRUPT);
        r.what = flips[i].what;
        r.rank = flips[i].rank;
        r.bit = flips[i].bit;
        r.exchange = 4;
        r.count = 1;
        run_case(&(fault_case_t){ .name = flips[i].sentence, ONE(r), CERTAIN, .direct = flips[i].direct,
                                  .status = AFDEP_ERR_PROTOCOL, .sentence = flips[i].sentence });
    }
}

static void test_duplicates(void **state)
{
    (void)state;
    static const int whats[] = { AFDEP_FAULT_PUT, AFDEP_SIGNAL_FINISH_TAIL, AFDEP_SIGNAL_COUNT_WORD,
                                 AFDEP_SIGNAL_COMBINE, AFDEP_SIGNAL_WITNESS, AFDEP_SIGNAL_DOMAIN_WORD };
    for (size_t i = 0; i < sizeof(whats) / sizeof(whats[0]); i++) {
        afdep_fault_t r = rule(AFDEP_FAULT_DUPLICATE);
        r.what = whats[i];
        r.after = 12;
        r.count = 1;
        for (int direct = 0; direct < 2; direct++)
            run_case(&(fault_case_t){ .name = "duplicate", ONE(r), .exchanges = 12, .timeout_ms = SHORT_MS,
                                      .outcome = HARMLESS_OR_NAMED, .direct = direct });
    }
    /* A row that comes again over its successor is found by its tag, before its word says that it is there. */
    afdep_fault_t row = rule(AFDEP_FAULT_DUPLICATE);
    row.what = AFDEP_FAULT_PUT;
    row.rank = 3;
    row.exchange = 4;
    run_case(&(fault_case_t){ .name = "duplicated rows", ONE(row), CERTAIN, .status = AFDEP_ERR_PROTOCOL,
                              .sentence = "is not there" });
}

/* ---- Killed -------------------------------------------------------------------------------------------------- */

static const char *refused_rank(const afdep_group_t *group, void *context)
{
    fault_run_t *run = context;
    afdep_scenario_t scenario = scenario_of(run->c);
    afdep_config_t config = config_of(run->c, &scenario);
    afdep_group_t faulty = *group;
    afdep_buffer_t *buffer = NULL;
    faulty.fabrics = &run->provider.super;
    if (afdep_buffer_open(&faulty, &config, &buffer) != AFDEP_ERR_UNSUPPORTED)
        return "a kill rule was let through";
    return strstr(afdep_last_error(), "share one") ? NULL : crowd_say("%s", afdep_last_error());
}

static void test_no_killing_of_threads(void **state)
{
    (void)state;
    fault_case_t c = { .name = "kill", ONE(rule(AFDEP_FAULT_KILL)), PATIENT };
    fault_run_t run = { .c = &c };
    run.faults = (afdep_faults_t){ c.rules, 1, 1 };
    afdep_fault_provider_init(&run.provider, &afdep_fabric_shm, &run.faults);
    const char *failed = crowd_run(RANKS, refused_rank, &run);
    if (failed)
        fail_msg("%s", failed);
}

static int survivor(const afdep_group_t *group, void *context)
{
    fault_run_t *run = context;
    char want[32];
    alarm(60); /* a hang is a failure */
    snprintf(want, sizeof(want), "rank %d is dead", run->c->victim);
    const char *failed = fault_rank(group, run);
    int rank = group->rank;
    if (!failed && run->rank[rank].status == AFDEP_ERR_PEER && strstr(run->rank[rank].why, want))
        return 0;
    fprintf(stderr, "rank %d: %s: %s\n", rank, failed ? failed : afdep_status_string(run->rank[rank].status),
            run->rank[rank].why);
    return 1;
}

static void kill_at(int direct, afdep_fault_t r)
{
    fault_case_t c = { .name = "kill", ONE(r), CERTAIN, .direct = direct };
    fault_run_t *run = calloc(1, sizeof(*run));
    assert_non_null(run);
    c.victim = r.rank;
    run->c = &c;
    run->faults = (afdep_faults_t){ c.rules, 1, 1 };
    afdep_fault_provider_init(&run->provider, &afdep_fabric_shm, &run->faults);
    int result = run_fork_ranks(RANKS, survivor, run, c.victim);
    free(run);
    if (result)
        fail_msg("rank %d killed after %llu %s: rank %d is not content", r.rank, (unsigned long long)r.after,
                 r.duty ? r.duty : "messages", result - 1);
}

static void test_kills(void **state)
{
    (void)state;
    static const struct {
        int rank, after;
        const char *duty;
    } points[] = { { 3, 0, NULL }, { 3, 77, NULL }, { 0, 150, NULL }, { 1, 40, "forward" }, { 5, 9, "collect" } };
    for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++)
        for (int direct = 0; direct < 2; direct++) {
            afdep_fault_t r = rule(AFDEP_FAULT_KILL);
            r.rank = points[i].rank;
            r.after = (uint64_t)points[i].after;
            r.duty = points[i].duty && direct && points[i].rank == 1 ? "receive" : points[i].duty;
            kill_at(direct, r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delays),       cmocka_unit_test(test_reorders),
        cmocka_unit_test(test_slow_actors),  cmocka_unit_test(test_mixtures),
        cmocka_unit_test(test_lost_words),   cmocka_unit_test(test_lost_among_many),
        cmocka_unit_test(test_stalls),       cmocka_unit_test(test_lost_and_spoilt_rows),
        cmocka_unit_test(test_spoilt_words), cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_no_killing_of_threads), cmocka_unit_test(test_kills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
