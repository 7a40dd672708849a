/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the explorer share: the ranks, the network, and the chooser. */
#ifndef AFDEP_VALIDATE_EXPLORER_INTERNAL_H
#define AFDEP_VALIDATE_EXPLORER_INTERNAL_H

#include "fabric/sim.h"
#include "host/host.h"
#include "validate/exchanger.h"
#include "validate/explorer.h"

#define AFDEP_EXPLORE_EXCHANGES 16
#define AFDEP_EXPLORE_RANKS 64
#define AFDEP_EXPLORE_CHANGES 3

/* One rank and where it is in its program. */
typedef struct afdep_explore_rank {
    afdep_host_t *host;
    afdep_exchanger_t exchangers[4]; /* by exchange modulo in_flight */
    int firsts, seconds;             /* halves begun */
    int under_way;                   /* 0: between calls, 1: a first half, 2: a second half */
    int awake;                       /* something may move */
} afdep_explore_rank_t;

/* How the next mover is chosen. */
typedef struct afdep_chooser {
    afdep_strategy_t strategy;
    uint64_t state; /* of the generator */
    uint64_t salt;  /* of priorities */
    uint64_t change_at[AFDEP_EXPLORE_CHANGES];
    uint64_t demoted[AFDEP_EXPLORE_CHANGES];
    int changes;
    uint64_t starved; /* identity of an actor, a rank's actors or a lane */
    int starved_kind; /* 0: actor, 1: rank, 2: lane, 3: all lanes to one rank */
} afdep_chooser_t;

struct afdep_explorer {
    afdep_explore_case_t explore;
    afdep_settings_t settings;
    afdep_settings_t worker_settings; /* of FFN ranks: the same, but for a one-sided control */
    afdep_sim_t *sim;
    int ranks, created;
    afdep_explore_rank_t rank[AFDEP_EXPLORE_RANKS];
    afdep_exchange_plan_t plans[AFDEP_EXPLORE_EXCHANGES];
    int tokens[AFDEP_EXPLORE_EXCHANGES][AFDEP_EXPLORE_RANKS];
    unsigned char order[2 * AFDEP_EXPLORE_EXCHANGES]; /* 1: a first half, 2: a second half */
    afdep_chooser_t chooser;
    uint64_t steps;
};

/* A mover: a rank's actor (actor -1: it begins its next call), or a pending lane (rank -1). */
typedef struct afdep_mover {
    int rank, actor, lane;
} afdep_mover_t;

/* explorer_choose.c */
uint64_t afdep_explore_random(uint64_t *state);
void afdep_chooser_start(afdep_chooser_t *chooser, uint64_t seed);
/* 0: nothing can move. */
int afdep_explore_choose(afdep_explorer_t *e, afdep_mover_t *mover);

/* explorer_check.c: invariants. OK, or a line in `why`. */
afdep_status_t afdep_explore_check_landing(const afdep_explorer_t *e, const afdep_sim_message_t *message, char *why,
                                           size_t why_size);
afdep_status_t afdep_explore_check_counts(const afdep_explorer_t *e, char *why, size_t why_size);

#endif
