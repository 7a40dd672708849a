/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target's input as a file that a loader can open by name; it lives in memory and is written over each time. */
#ifndef AFDEP_FUZZ_FILE_H
#define AFDEP_FUZZ_FILE_H

#include <stddef.h>
#include <stdint.h>

/* The name of a file that holds `data`. Static storage. */
const char *afdep_fuzz_file(const uint8_t *data, size_t size);

/* A line that a loader wrote must be one line, ended, and say something. */
void afdep_fuzz_expect_line(const char *why, size_t why_size);

#endif
