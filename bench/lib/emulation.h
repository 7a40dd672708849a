/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a modelled NIC (afdep-nic/1): what messages, signals and bytes cost at both ends, and the way between.
 * Loaded strictly, as all files that people write. The library takes the model from its settings.
 */
#ifndef AFDEP_BENCH_EMULATION_H
#define AFDEP_BENCH_EMULATION_H

#include <cjson/cJSON.h>
#include <stddef.h>

/* Reads and checks `file`, and sets the library's settings by it (its variables of the environment), for this process.
   Returns the document, for records; NULL with one line naming file, field and value. The caller owns it. */
cJSON *afdep_emulation_load(const char *file, char *why, size_t why_size);

/* The first of those variables that is set to something else than 0, or NULL. */
const char *afdep_emulation_set(void);

#endif
