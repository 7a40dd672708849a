/*
 * Records: the common head that every record has, machine and build, and writing a file whole or not at all.
 */
#ifndef AFDEP_BENCH_RECORD_H
#define AFDEP_BENCH_RECORD_H

#include <cjson/cJSON.h>

#include "bench/lib/gin_note.h"
#include "bench/lib/scenario.h"

typedef struct afdep_arm {
    const char *name;     /* "sparse", "dense", "stagger", "alltoallv", ... */
    const char *protocol; /* as --protocol */
    const char *library_protocol; /* as afdep_buffer_info_t: "direct", "union", ...; NULL: none */
    int stagger, sparse_dispatch, sparse_combine;
    int fp8_combine; /* recorded where it is on */
    const char *dtype, *backend, *fabric;
    int emulated, graph, pinned;
    const char *domains; /* "declared" or "discovered" */
    const cJSON *nic;    /* the modelled NIC, as its file has it; NULL: none */
    const cJSON *fault;  /* the faults injected, as their file has them; NULL: none */
    const afdep_gin_note_t *gin; /* NULL: none, or not known yet */
} afdep_arm_t;

/* {"schema", "created", "command", "scenario", "arm", "native_tree", "build", "machine", "ranks"}. The caller adds its
   part and owns the object. `argv` becomes "command", as one string, quoted for a shell where needed. */
cJSON *afdep_record_begin(const char *schema, int argc, char **argv, const afdep_scenario_t *scenario,
                          const afdep_arm_t *arm, int ranks, int ranks_per_host);

cJSON *afdep_record_build(void);   /* compiler, flags, features, dirty, version */
cJSON *afdep_record_machine(void); /* cpu, cores, kernel, memory, gpus, driver, cuda, nccl, mpi, nics */

/* The words as one line that a shell would split into them again; NULL without memory. The caller frees it. */
char *afdep_command_line(int argc, char *const *argv);

/* NaN and infinities become null. */
cJSON *afdep_record_number(double value);

/* Whether a record could be written to `file`, tried before the work and not after it. 0, or -1 with one line. */
int afdep_record_probe(const char *file, char *why, size_t why_size);

/* Writes to a temporary name beside `file`, syncs, renames. 0, or -1 with one line naming file and reason. */
int afdep_file_write(const char *file, const char *bytes, size_t size, char *why, size_t why_size);

/* The record as text, so written. */
int afdep_record_write(const char *file, const cJSON *record, char *why, size_t why_size);

/* A file's content parsed as JSON; NULL with one line naming file, and line and column where it stops being JSON. */
cJSON *afdep_record_read(const char *file, char *why, size_t why_size);

#endif
