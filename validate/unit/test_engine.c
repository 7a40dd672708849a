/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engines ask for beside the exchange: cached routing, send-only dispatch, load statistics.
 *
 * Would catch: a cached exchange that lays rows out by stale weights or places, or accepts another routing; a dispatch
 * that waits although it was asked not to, or a later call that does not notice that it is unfinished; counts that miss
 * an exchange or show a part of one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "validate/exchanger.h"
#include "validate/unit/crowd.h"
#include "validate/unit/rig.h"

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != AFDEP_OK)                                                                                        \
            return crowd_say("%s: %s", #call, afdep_last_error());                                                     \
    } while (0)

static void run(int size, crowd_rank_fn body, void *context)
{
    const char *failed = crowd_run(size, body, context);
    if (failed)
        fail_msg("%s", failed);
}

/* Whether a call was refused with `status` and a sentence that has `part` in it. */
static const char *refused(afdep_status_t got, afdep_status_t status, const char *part)
{
    if (got == status && strstr(afdep_last_error(), part))
        return NULL;
    return crowd_say("%s (%s), wanted %s with \"%s\"", afdep_status_string(got), afdep_last_error(),
                     afdep_status_string(status), part);
}

/* ---- Cached routing ------------------------------------------------------------------------------------------ */

typedef struct cached_case {
    int ffn, attention, per_domain, in_flight, fp8_combine, mixed;
} cached_case_t;

#define ROUNDS 8

/* Exchanges on `in_flight` planes; in each plane one counted exchange, then cached ones, then a counted one again. */
static const char *cached_rank(const afdep_group_t *group, void *context)
{
    const cached_case_t *c = context;
    afdep_scenario_t s = { .ffn_ranks = c->ffn, .attention_ranks = c->attention, .ranks_per_domain = c->per_domain,
                           .num_experts = 4 * c->ffn, .top_k = 3, .hidden = 256, .dtype = AFDEP_DTYPE_FP8,
                           .capacity = 20, .num_sms = 1, .expert_alignment = 4, .seed = 3 };
    afdep_config_t config = afdep_exchanger_config(&s);
    afdep_buffer_t *buffer = NULL;
    afdep_exchanger_t x[4];
    afdep_exchange_plan_t plans[4];
    int tokens[4][16], g = c->in_flight;
    config.in_flight = g;
    config.fp8_combine = c->fp8_combine ? AFDEP_ON : AFDEP_OFF;
    config.flags = c->mixed ? AFDEP_FLAG_MIXED_HYBRID : 0;
    config.timeout_ms = 20000;
    MUST(afdep_buffer_open(group, &config, &buffer));
    for (int i = 0; i < g; i++)
        if (afdep_exchanger_init(&x[i], &s, buffer, s.seed) != 0)
            return crowd_say("no memory");
    for (int n = 0; n < ROUNDS * g + g - 1; n++) {
        int plane = n % g, second = n - g + 1, counted = n / g % 3 == 0;
        if (n < ROUNDS * g) {
            for (int a = 0; counted && a < c->attention; a++)
                tokens[plane][a] = (a * 5 + n) % 19;
            plans[plane] = (afdep_exchange_plan_t){ .number = (uint64_t)n, .bucket = 20, .tokens = tokens[plane],
                                                    .inactive_percent = 25, .read_host_counts = n % 2,
                                                    .cached = !counted, .routing = (uint64_t)(n - n / g % 3 * g) };
            if (afdep_exchanger_first(&x[plane], &plans[plane]) != AFDEP_OK)
                return crowd_say("exchange %d: %s", n, x[plane].why);
        }
        if (second >= 0 && afdep_exchanger_second(&x[second % g], &plans[second % g]) != AFDEP_OK)
            return crowd_say("exchange %d: %s", second, x[second % g].why);
    }
    for (int i = 0; i < g; i++)
        afdep_exchanger_free(&x[i]);
    MUST(afdep_buffer_close(buffer));
    return NULL;
}

static void test_cached_routing(void **state)
{
    static cached_case_t cases[] = { { 2, 3, 5, 1, 0, 0 }, { 1, 2, 3, 2, 0, 0 }, { 2, 4, 2, 1, 0, 0 },
                                    { 4, 4, 2, 2, 1, 0 }, { 2, 4, 3, 2, 0, 0 }, { 2, 4, 3, 1, 0, 1 } };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        run(cases[i].ffn + cases[i].attention, cached_rank, &cases[i]);
}

static const char *cached_refusals_rank(const afdep_group_t *group, void *context)
{
    afdep_config_t config = rig_config(1, 0, 20000);
    afdep_status_t status;
    rig_t *rig = rig_open(group, &config, &status);
    const char *failed;
    (void)context;
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    afdep_dispatch_t d = rig_dispatch_args(rig, 4, 3);
    afdep_receive_t r = rig_receive_args(rig, 4);
    d.cached = r.cached = 1;
    d.ids = NULL;
    status = rig->ffn ? afdep_worker_receive(rig->buffer, &r, NULL) : afdep_source_dispatch(rig->buffer, &d, NULL);
    if ((failed = refused(status, AFDEP_ERR_ORDER, "exchange 1 is the first")) != NULL)
        return failed;
    MUST(rig_first(rig, 4, 3));
    MUST(rig_second(rig));
    d.bucket = r.bucket = 5;
    status = rig->ffn ? afdep_worker_receive(rig->buffer, &r, NULL) : afdep_source_dispatch(rig->buffer, &d, NULL);
    if ((failed = refused(status, AFDEP_ERR_ARGUMENT, "it was 4 with these ids")) != NULL)
        return failed;
    d.bucket = 4;
    d.tokens = 2;
    if (!rig->ffn && (failed = refused(afdep_source_dispatch(rig->buffer, &d, NULL), AFDEP_ERR_ARGUMENT,
                                       "there were 3 of these ids")) != NULL)
        return failed;
    MUST(rig_first(rig, 4, 3)); /* nothing was changed by what was refused */
    MUST(rig_second(rig));
    if (!rig->ffn && rig_wrong_token(rig, 3) >= 0)
        return crowd_say("a wrong value");
    MUST(rig_close(rig));
    return NULL;
}

static void test_cached_refusals(void **state)
{
    (void)state;
    run(3, cached_refusals_rank, NULL);
}

/* The workers are told that the ids are the old ones, and they are not: named, in one domain and across, whether rows
   moved or only their choices did. */
static const char *cached_wrongly_rank(const afdep_group_t *group, void *context)
{
    const int *per_domain = context;
    afdep_config_t config = rig_config(2, *per_domain, 20000);
    afdep_status_t status;
    rig_t *rig = rig_open(group, &config, &status);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    MUST(rig_first(rig, 4, 4));
    MUST(rig_second(rig));
    MUST(group->barrier(group->context)); /* who gives up in the second exchange would end the first for who is late */
    if (!rig->ffn) {
        rig->ids[2][0] ^= 1; /* another expert of the same rank */
        (void)rig_first(rig, 4, 4);
        (void)rig_second(rig);
    } else {
        afdep_receive_t r = rig_receive_args(rig, 4);
        r.cached = 1;
        status = afdep_worker_receive(rig->buffer, &r, NULL);
        if (status != AFDEP_ERR_PROTOCOL && status != AFDEP_ERR_PEER)
            return crowd_say("%s: %s", afdep_status_string(status), afdep_last_error());
        if (status == AFDEP_ERR_PROTOCOL && !strstr(afdep_last_error(), "were said to be used again"))
            return crowd_say("%s", afdep_last_error());
    }
    (void)rig_close(rig);
    return NULL;
}

static void test_cached_wrongly(void **state)
{
    int per_domain[] = { 0, 2 };
    (void)state;
    for (int i = 0; i < 2; i++)
        run(4, cached_wrongly_rank, &per_domain[i]);
}

/* ---- Send-only dispatch -------------------------------------------------------------------------------------- */

/* One domain, two FFN ranks. The source's tokens go to rank 0 only; rank 1 is not let into its first receive before the
   source has come back from its second dispatch, which needs rank 1's answer to the first exchange. */
static atomic_int let_in;

static const char *send_only_rank(const afdep_group_t *group, void *context)
{
    afdep_config_t config = rig_config(2, 0, 20000);
    afdep_status_t status;
    rig_t *rig = rig_open(group, &config, &status);
    const char *failed;
    (void)context;
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (rig->ffn) {
        for (int ms = 0; rig->rank == 1 && !atomic_load(&let_in) && ms < 10000; ms++)
            nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
        for (int n = 0; n < 3; n++) {
            MUST(rig_receive(rig, 4));
            MUST(rig_reply(rig));
        }
        MUST(rig_close(rig));
        return NULL;
    }
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < RIG_TOP_K; k++)
            rig->ids[t][k] = k;
    MUST(rig_first(rig, 4, 4));
    MUST(rig_second(rig));
    afdep_dispatch_t d = rig_dispatch_args(rig, 4, 4);
    d.send_only = 1;
    rig->ids[3][1] = RIG_EXPERTS; /* no expert */
    MUST(afdep_source_dispatch(rig->buffer, &d, NULL));
    if ((failed = refused(rig_second(rig), AFDEP_ERR_ORDER, "exchange 2 is not completed yet")) != NULL)
        return failed;
    if ((failed = refused(afdep_source_dispatch(rig->buffer, &d, NULL), AFDEP_ERR_ORDER, "")) != NULL)
        return failed;
    atomic_store(&let_in, 1);
    if ((failed = refused(afdep_source_dispatch_complete(rig->buffer), AFDEP_ERR_ROUTE, "token 3, slot 1")) != NULL)
        return failed;
    MUST(afdep_source_dispatch_complete(rig->buffer)); /* nothing is left to do */
    MUST(rig_second(rig));
    if (rig_wrong_token(rig, 4) >= 0)
        return crowd_say("a wrong value in exchange 2");
    rig->ids[3][1] = 1;
    MUST(rig_first(rig, 4, 4));
    MUST(rig_second(rig));
    if (rig_wrong_token(rig, 4) >= 0)
        return crowd_say("a wrong value in exchange 3");
    MUST(rig_close(rig));
    return NULL;
}

static void test_send_only(void **state)
{
    (void)state;
    atomic_store(&let_in, 0);
    run(3, send_only_rank, NULL);
}

/* ---- Load statistics ----------------------------------------------------------------------------------------- */

#define EXCHANGES 3000
#define TOKENS 5
#define READ_EVERY_NS 20000

typedef struct reader {
    afdep_buffer_t *buffer;
    uint64_t each_expert[RIG_EXPERTS], each_source[4]; /* of one exchange */
    atomic_int stop;
    char failed[256];
} reader_t;

/* Every exchange is the same, so whatever is read is a multiple of one of them. Readers rest between reads: six that
   spin leave two processors no time for the exchanges that they watch. */
static const char *check_load(reader_t *r, uint64_t *exchanges)
{
    uint64_t experts[RIG_EXPERTS], sources[4];
    afdep_load_t load = AFDEP_LOAD_INIT;
    load.expert_tokens = experts;
    load.source_tokens = sources;
    MUST(afdep_buffer_load(r->buffer, &load));
    for (int e = 0; e < RIG_EXPERTS; e++)
        if (experts[e] != load.exchanges * r->each_expert[e])
            return crowd_say("expert %d has %llu tokens after %llu exchanges", e, (unsigned long long)experts[e],
                             (unsigned long long)load.exchanges);
    for (int a = 0; a < 4; a++)
        if (sources[a] != load.exchanges * r->each_source[a])
            return crowd_say("source %d has %llu tokens after %llu exchanges", a, (unsigned long long)sources[a],
                             (unsigned long long)load.exchanges);
    *exchanges = load.exchanges;
    return NULL;
}

static void *read_all_along(void *context)
{
    reader_t *r = context;
    uint64_t before = 0, now = 0;
    while (!atomic_load(&r->stop) && !r->failed[0]) {
        const char *failed = check_load(r, &now);
        if (!failed && now < before)
            failed = "the count of exchanges went back";
        if (failed)
            snprintf(r->failed, sizeof(r->failed), "%s", failed);
        before = now;
        nanosleep(&(struct timespec){ 0, READ_EVERY_NS }, NULL);
    }
    return NULL;
}

/* What this rank counts in one exchange in which every source sends TOKENS tokens. */
static void expect(reader_t *r, const rig_t *rig, int ffn_ranks, int ranks)
{
    for (int source = ffn_ranks; source < ranks; source++) {
        rig_t *other = rig_new(source, 0);
        for (int t = 0; t < TOKENS; t++) {
            int served = 0;
            for (int k = 0; k < RIG_TOP_K; k++) {
                int id = other->ids[t][k];
                int mine = rig->ffn ? id * ffn_ranks / RIG_EXPERTS == rig->rank : source == rig->rank;
                r->each_expert[id] += (uint64_t)mine;
                served |= mine;
            }
            r->each_source[source - ffn_ranks] += (uint64_t)served;
        }
        free(other);
    }
}

static const char *load_rank(const afdep_group_t *group, void *context)
{
    const int *per_domain = context;
    afdep_config_t config = rig_config(2, *per_domain, 20000);
    afdep_status_t status;
    rig_t *rig = rig_open(group, &config, &status);
    pthread_t thread;
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    reader_t reader = { .buffer = rig->buffer };
    expect(&reader, rig, 2, group->size);
    if (pthread_create(&thread, NULL, read_all_along, &reader) != 0)
        return crowd_say("no thread");
    for (int n = 0; n < EXCHANGES; n++) {
        MUST(rig_first(rig, TOKENS, TOKENS));
        MUST(rig_second(rig));
    }
    atomic_store(&reader.stop, 1);
    pthread_join(thread, NULL);
    if (reader.failed[0])
        return crowd_say("while exchanging: %s", reader.failed);
    uint64_t exchanges = 0;
    const char *failed = check_load(&reader, &exchanges);
    if (!failed && exchanges != EXCHANGES)
        failed = crowd_say("%llu exchanges are counted", (unsigned long long)exchanges);
    if (failed)
        return failed;
    MUST(rig_close(rig));
    return NULL;
}

static void test_load(void **state)
{
    int per_domain[] = { 0, 2 };
    (void)state;
    for (int i = 0; i < 2; i++)
        run(6, load_rank, &per_domain[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cached_routing), cmocka_unit_test(test_cached_refusals),
        cmocka_unit_test(test_cached_wrongly), cmocka_unit_test(test_send_only),
        cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
