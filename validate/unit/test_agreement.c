/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening when ranks do not say the same: every rank returns, with a sentence that names the field and who said what. A
 * rank whose own settings are refused gets its own error, the others learn whose it was. Nobody waits for a deadline.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "core/agreement.h"
#include "validate/unit/crowd.h"

#define RANKS 6

static const afdep_config_t agreed = {
    .struct_size = sizeof(afdep_config_t), .ffn_ranks = 2, .ranks_per_domain = 2, .num_experts = 8, .top_k = 2,
    .hidden = 256, .capacity = 8, .num_sms = 1, .expert_alignment = 1, .in_flight = 1, .timeout_ms = 20000,
};

typedef struct agreement_case {
    afdep_config_t other;
    int odd;                /* the rank that says `other` */
    int odd2;               /* a second one, or -1 */
    const char *field;      /* of the sentence, as "disagree on FIELD:" */
    const char *refused;    /* instead: the odd rank's own settings are refused with this text */
    afdep_status_t status;  /* and this status */
    int no_config, no_out;  /* the odd rank passes NULL */
} agreement_case_t;

static const char *agreement_rank(const afdep_group_t *group, void *context)
{
    const agreement_case_t *c = context;
    int odd = group->rank == c->odd || group->rank == c->odd2;
    afdep_buffer_t *untouched = (afdep_buffer_t *)(uintptr_t)16, *buffer = untouched;
    afdep_status_t status = afdep_buffer_open(group, odd && c->no_config ? NULL : odd ? &c->other : &agreed,
                                              odd && c->no_out ? NULL : &buffer);
    const char *said = afdep_last_error();
    char want[160];
    if (buffer != untouched)
        return crowd_say("a buffer was set");
    if (!c->refused) {
        snprintf(want, sizeof(want), "disagree on %s:", c->field);
        if (status != AFDEP_ERR_AGREEMENT || !strstr(said, want))
            return crowd_say("%s, wanted AGREEMENT with \"%s\": %s", afdep_status_string(status), want, said);
        snprintf(want, sizeof(want), c->odd2 < 0 ? "rank %d says" : "rank %d, %d says", c->odd, c->odd2);
        if (c->odd == 0)
            snprintf(want, sizeof(want), "rank 0 says");
        return strstr(said, want) ? NULL : crowd_say("\"%s\" is not in: %s", want, said);
    }
    if (odd)
        return status == c->status && strstr(said, c->refused)
                   ? NULL
                   : crowd_say("%s, wanted \"%s\": %s", afdep_status_string(status), c->refused, said);
    snprintf(want, sizeof(want), "rank %d could not open: ", c->odd);
    return status == AFDEP_ERR_AGREEMENT && strstr(said, want) && strstr(said, c->refused)
               ? NULL
               : crowd_say("%s, wanted \"%s%s\": %s", afdep_status_string(status), want, c->refused, said);
}

static void run(const agreement_case_t *c)
{
    time_t start = time(NULL);
    const char *failed = crowd_run(RANKS, agreement_rank, (void *)c);
    if (failed)
        fail_msg("%s%s: %s", c->field ? c->field : "", c->refused ? c->refused : "", failed);
    assert_true(time(NULL) - start < 8); /* nobody waited for a missing rank: the group would have taken 30 s */
}

typedef struct field_case {
    const char *name;
    size_t offset;
    int32_t value;
} field_case_t;

#define FIELD(field) #field, offsetof(afdep_config_t, field)

static void test_each_field(void **state)
{
    (void)state;
    static const field_case_t fields[] = {
        { FIELD(ffn_ranks), 4 },          { FIELD(ranks_per_domain), 1 }, { FIELD(num_experts), 16 },
        { FIELD(top_k), 3 },              { FIELD(hidden), 512 },         { FIELD(dtype), AFDEP_DTYPE_FP8 },
        { FIELD(capacity), 9 },           { FIELD(num_sms), 2 },          { FIELD(expert_alignment), 128 },
        { FIELD(in_flight), 2 },          { FIELD(timeout_ms), 20001 },   { FIELD(stagger), AFDEP_OFF },
        { FIELD(sparse_dispatch), AFDEP_OFF }, { FIELD(sparse_combine), AFDEP_OFF },
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        agreement_case_t c = { .other = agreed, .odd = (int)(i % RANKS), .odd2 = -1, .field = fields[i].name };
        memcpy((char *)&c.other + fields[i].offset, &fields[i].value, sizeof(fields[i].value));
        run(&c);
    }
}

static void test_flags(void **state)
{
    (void)state;
    agreement_case_t c = { .other = agreed, .odd = 3, .odd2 = -1, .field = "apply_weights" };
    c.other.flags = AFDEP_FLAG_APPLY_WEIGHTS;
    run(&c);
    c.field = "union_buffers";
    c.other.flags = AFDEP_FLAG_UNION_BUFFERS;
    run(&c);
    c.field = "mixed_hybrid"; /* also where no domain holds both roles */
    c.other.flags = AFDEP_FLAG_MIXED_HYBRID;
    run(&c);
}

static void test_several_ranks_are_named(void **state)
{
    (void)state;
    agreement_case_t c = { .other = agreed, .odd = 2, .odd2 = 5, .field = "capacity" };
    c.other.capacity = 7;
    run(&c);
}

static void test_a_refused_rank_takes_all_along(void **state)
{
    (void)state;
    agreement_case_t c = { .other = agreed, .odd = 4, .odd2 = -1, .status = AFDEP_ERR_CONFIG };
    c.other.hidden = 257;
    c.refused = "hidden is 257";
    run(&c);
    c.odd = 0; /* rank 0, whom the others are compared with */
    run(&c);
    c.other = agreed;
    c.other.ffn_ranks = 1; /* two domains of three cannot share one */
    c.other.ranks_per_domain = 3;
    c.refused = "ffn_ranks is 1";
    run(&c);
    c.other = agreed;
    c.other.backend = "abacus";
    c.refused = "backend is \"abacus\"";
    c.status = AFDEP_ERR_CONFIG;
    run(&c);
    c.other = agreed;
    c.status = AFDEP_ERR_UNSUPPORTED;
    c.other.fabric = "mpi";
    c.refused = "fabric is \"mpi\"";
    run(&c);
    c.other.fabric = "carrier pigeon";
    c.refused = "carrier pigeon";
    c.status = AFDEP_ERR_CONFIG;
    run(&c);
}

static void test_missing_arguments_take_all_along(void **state)
{
    (void)state;
    agreement_case_t c = { .other = agreed, .odd = 1, .odd2 = -1, .status = AFDEP_ERR_ARGUMENT };
    c.no_config = 1;
    c.refused = "config is NULL";
    run(&c);
    c.no_config = 0;
    c.no_out = 1;
    c.refused = "buffer is NULL";
    run(&c);
    c.no_out = 0;
    c.other.struct_size = 8;
    c.refused = "struct_size is 8";
    run(&c);
}

/* What threads of one process cannot be told apart by (environment, fabric) goes through the agreement itself. */
static const char *claim_rank(const afdep_group_t *group, void *context)
{
    static const char *const fields[] = { "first_exchange: rank 0, 1 says 0, rank 2 says 5",
                                          "fabric: rank 0, 1 says shm, rank 2 says mpi" };
    afdep_config_t config = agreed;
    afdep_settings_t settings;
    (void)context;
    config.ffn_ranks = config.ranks_per_domain = 1;
    if (afdep_settings_resolve(&config, group->size, &settings) != AFDEP_OK)
        return crowd_say("%s", afdep_last_error());
    if (afdep_agree(group, AFDEP_OK, &settings, "shm") != AFDEP_OK)
        return crowd_say("equal settings: %s", afdep_last_error());
    for (int i = 0; i < 2; i++) {
        settings.first_exchange = i == 0 && group->rank == 2 ? 5 : 0;
        afdep_status_t status = afdep_agree(group, AFDEP_OK, &settings, i == 1 && group->rank == 2 ? "mpi" : "shm");
        if (status != AFDEP_ERR_AGREEMENT || !strstr(afdep_last_error(), fields[i]))
            return crowd_say("%s: %s", afdep_status_string(status), afdep_last_error());
    }
    return NULL;
}

static void test_claims(void **state)
{
    (void)state;
    const char *failed = crowd_run(3, claim_rank, NULL);
    if (failed)
        fail_msg("%s", failed);
}

/* Rank 0 of another build: its lines have neither this build's names nor its form. A claim's lines stand behind magic,
   status and sentence. */
#define CLAIM_LINES 520

static afdep_status_t gather_foreign(void *context, const void *send, void *recv, size_t bytes)
{
    for (size_t rank = 0; rank < 2; rank++)
        memcpy((char *)recv + rank * bytes, send, bytes);
    memset((char *)recv + CLAIM_LINES, 0, bytes - CLAIM_LINES);
    memcpy((char *)recv + CLAIM_LINES, context, strlen(context));
    return AFDEP_OK;
}

static afdep_status_t no_barrier(void *context)
{
    (void)context;
    return AFDEP_OK;
}

static void test_foreign_claims(void **state)
{
    static const char *const foreign[] = { "", "\n", "of another form\nand more\n", "ffn_ranks\nhidden=3\n", "=" };
    afdep_config_t config = agreed;
    afdep_settings_t settings;
    (void)state;
    config.ffn_ranks = config.ranks_per_domain = 1;
    assert_int_equal(afdep_settings_resolve(&config, 2, &settings), AFDEP_OK);
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
        afdep_group_t group = AFDEP_GROUP_INIT;
        group.rank = 1;
        group.size = 2;
        group.context = (void *)(uintptr_t)foreign[i];
        group.allgather = gather_foreign;
        group.barrier = no_barrier;
        assert_int_equal(afdep_agree(&group, AFDEP_OK, &settings, "shm"), AFDEP_ERR_AGREEMENT);
        /* One line, which says nothing of rank 0 where it said nothing. */
        assert_null(strchr(afdep_last_error(), '\n'));
        assert_non_null(strstr(afdep_last_error(), ": rank 0 says , rank 1 says "));
    }
}

/* The group stands after a refused opening: the next one on it succeeds. */
static const char *again_rank(const afdep_group_t *group, void *context)
{
    afdep_config_t config = agreed;
    afdep_buffer_t *buffer = NULL;
    (void)context;
    if (group->rank == 2)
        config.capacity = 4;
    for (int i = 0; i < 3; i++)
        if (afdep_buffer_open(group, &config, &buffer) != AFDEP_ERR_AGREEMENT)
            return crowd_say("opened %d", i);
    if (afdep_buffer_open(group, &agreed, &buffer) != AFDEP_OK || afdep_buffer_close(buffer) != AFDEP_OK)
        return crowd_say("%s", afdep_last_error());
    return NULL;
}

static void test_the_group_outlives_a_refusal(void **state)
{
    (void)state;
    const char *failed = crowd_run(RANKS, again_rank, NULL);
    if (failed)
        fail_msg("%s", failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_field),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_several_ranks_are_named),
        cmocka_unit_test(test_a_refused_rank_takes_all_along),
        cmocka_unit_test(test_missing_arguments_take_all_along),
        cmocka_unit_test(test_claims),
        cmocka_unit_test(test_foreign_claims),
        cmocka_unit_test(test_the_group_outlives_a_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
