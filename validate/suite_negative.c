/* SPDX-License-Identifier: Apache-2.0 */
/*
 * negative: every known wrong variant must be caught. The variants live in a program of their own
 * (afdep-validate-planted, in the build tree beside this one, never installed), so that no library and no installed
 * program holds them.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "validate/child.h"

#define SCHEDULES "10000"
#define SCHEDULES_OF_A_RIGHT_ONE "2000"
/* Enough by a wide margin: the rarest was caught within 52 in 35 runs on a loaded machine. */
#define EXCHANGES_ON_SHM "1000"
#define EXCHANGES_WITH_NOTHING "40"
#define TIMEOUT_MS 120000

/* "DIR/afdep-validate-planted" beside this program. 0 where it is not. */
static int planted_program(const afdep_validation_t *v, char *path, size_t size)
{
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length > 0)
        self[length] = '\0';
    else
        snprintf(self, sizeof(self), "%s", v->program);
    char *slash = strrchr(self, '/');
    snprintf(path, size, "%.*safdep-validate-planted", slash ? (int)(slash - self + 1) : 0, self);
    return access(path, X_OK) == 0;
}

static void run_planted(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    char path[4200], seed[32], said[480] = "";
    if (!planted_program(v, path, sizeof(path))) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "afdep-validate-planted is not beside this program: only the build "
                          "tree has it");
        return;
    }
    snprintf(seed, sizeof(seed), "%llu", (unsigned long long)v->seed);
    int wants_caught = strstr(c->name, "nothing") == NULL, on_shm = strchr(c->name, '@') != NULL;
    const char *count = on_shm ? (wants_caught ? EXCHANGES_ON_SHM : EXCHANGES_WITH_NOTHING)
                               : wants_caught ? SCHEDULES : SCHEDULES_OF_A_RIGHT_ONE;
    const char *const argv[] = { path, c->name, count, seed, NULL };
    int status = afdep_validate_spawn(argv, TIMEOUT_MS, said, sizeof(said));
    if (status == (wants_caught ? 0 : 1)) {
        snprintf(outcome->why, sizeof(outcome->why), "%s", said);
        return;
    }
    afdep_outcome_set(outcome, AFDEP_FAILED, "%s (status %d): %s",
                      wants_caught ? "the planted defect was not caught" : "a right protocol was refused", status,
                      said);
}

#define NEGATIVE(name) { name, AFDEP_SUITE_NEGATIVE, run_planted, NULL, 1, name }

const afdep_case_t afdep_cases_negative[] = {
    /* the planted build itself, with nothing planted */
    { "nothing", AFDEP_SUITE_NEGATIVE, run_planted, NULL, 1, NULL },
    NEGATIVE("no_witness"),
    NEGATIVE("witness_at_channel_0"),
    NEGATIVE("witness_to_the_served_only"),
    NEGATIVE("collect_channel_0_only"),
    NEGATIVE("one_forward_word"),
    NEGATIVE("untagged_count_words"),
    NEGATIVE("count_word_of_the_exchange_before"),
    NEGATIVE("silent_ranks_not_awaited"),
    NEGATIVE("tail_carries"),
    NEGATIVE("two_in_flight_on_one_plane"),
    { "nothing_union", AFDEP_SUITE_NEGATIVE, run_planted, NULL, 1, NULL },
    NEGATIVE("union_no_witness"),
    NEGATIVE("union_witness_at_channel_0"),
    NEGATIVE("union_rail_answers_not_awaited"),
    { "nothing_mixed", AFDEP_SUITE_NEGATIVE, run_planted, NULL, 1, NULL },
    NEGATIVE("mixed_no_witness"),
    NEGATIVE("mixed_rail_answers_not_awaited"),
    NEGATIVE("mixed_forward_word_before_answer"),
    { "nothing_symmetric", AFDEP_SUITE_NEGATIVE, run_planted, NULL, 1, NULL },
    NEGATIVE("symmetric_no_barrier"),
    NEGATIVE("symmetric_barrier_in_domain_only"),
    NEGATIVE("word_before_its_rows"),
    NEGATIVE("stagger_on_one_side"),
    { "nothing@shm", AFDEP_SUITE_NEGATIVE, run_planted, NULL, 1, "slow-actor: receive; delay: finish_tail, channel 5" },
    NEGATIVE("no_witness@shm"),
    NEGATIVE("witness_at_channel_0@shm"),
    NEGATIVE("witness_to_the_served_only@shm"),
    NEGATIVE("collect_channel_0_only@shm"),
    { NULL, AFDEP_SUITE_NEGATIVE, NULL, NULL, 1, NULL },
};

const afdep_case_t afdep_cases_ll_negative[] = {
    { "ll_nothing", AFDEP_SUITE_NEGATIVE, run_planted, NULL, 1, NULL },
    NEGATIVE("ll_silent_ranks_not_awaited"),
    NEGATIVE("ll_two_in_flight_on_one_plane"),
    NEGATIVE("ll_word_before_its_header"),
    { NULL, AFDEP_SUITE_NEGATIVE, NULL, NULL, 1, NULL },
};
