/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Screen files: the arms of one exchange that are run interleaved and compared. Loaded strictly: an unknown or missing
 * field, a wrong type or an impossible value is refused in one line naming file, field and value.
 */
#ifndef AFDEP_BENCH_SCREEN_FILE_H
#define AFDEP_BENCH_SCREEN_FILE_H

#include <cjson/cJSON.h>
#include <stddef.h>

#include "bench/lib/scenario.h"

#define AFDEP_SCREEN_ARMS_MAX 64 /* as many as a comparison takes */

typedef struct afdep_screen_arm {
    const char *name, *program;
    const cJSON *launcher, *flags; /* lists of strings */
    const cJSON *env;              /* object of strings */
    const char *native_tree;       /* the tree demanded, or its beginning; NULL: any */
} afdep_screen_arm_t;

/* All pointers of the arms, `name` and `may_differ` lead into `json`. */
typedef struct afdep_screen {
    cJSON *json; /* the file as it was read; owned */
    char *file;  /* owned */
    const char *name;
    char *scenario_file;       /* as found; owned */
    afdep_scenario_t scenario; /* owned */
    int tokens[AFDEP_SCENARIO_TOKENS_MAX], token_counts;
    int repeats;
    int baseline;            /* index of an arm */
    int clean;               /* refuse builds with uncommitted changes */
    int deadline_s;          /* of one run of an arm */
    const cJSON *may_differ; /* fields of the scenario in which arms differ on purpose; or NULL */
    afdep_screen_arm_t arms[AFDEP_SCREEN_ARMS_MAX];
    int arm_count;
} afdep_screen_t;

/* Reads and checks `file` and the scenario that it names. -1 with one line in `why`; `screen` then holds nothing. */
int afdep_screen_load(const char *file, afdep_screen_t *screen, char *why, size_t why_size);
void afdep_screen_free(afdep_screen_t *screen);

#endif
