/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A screen's output folder: one screen at a time in it (a lock that the kernel drops with the process), no earlier
 * results overwritten unasked, and known to be writable before anything is measured.
 */
#ifndef AFDEP_BENCH_SCREEN_FOLDER_H
#define AFDEP_BENCH_SCREEN_FOLDER_H

#include <stddef.h>

#define AFDEP_SCREEN_RESULTS "benchmarks.json"

typedef struct afdep_screen_folder {
    char *results; /* FOLDER/benchmarks.json */
    char *record;  /* where an arm's record goes: FOLDER/.run/record.json */
    char *scratch; /* FOLDER/.run */
    char *lock;    /* FOLDER/.lock */
    int fd;        /* of the lock */
} afdep_screen_folder_t;

/* The names only; nothing is looked at. -1 without memory. */
int afdep_screen_folder_name(const char *path, afdep_screen_folder_t *folder);

/* Makes the folder if need be, locks and tries it. 0, or -1 with one line naming what is in the way. With `force`,
   earlier results are removed. */
int afdep_screen_folder_open(const char *path, int force, afdep_screen_folder_t *folder, char *why, size_t why_size);

/* Removes what runs have left in the scratch folder. */
void afdep_screen_folder_sweep(const afdep_screen_folder_t *folder);

/* Takes away scratch and lock, and frees the names. */
void afdep_screen_folder_close(afdep_screen_folder_t *folder);

#endif
