/* SPDX-License-Identifier: Apache-2.0 */
/* What other programs and the kernel's files say, as text. */
#ifndef AFDEP_BENCH_COMMAND_H
#define AFDEP_BENCH_COMMAND_H

#include <stddef.h>

/* Runs a program (argv ended by NULL, found on PATH) without input, and returns what it wrote to standard output, at
   most 1 MiB, or NULL when it is not there, fails, or takes longer than `timeout_ms`. The caller frees it. */
char *afdep_command_output(const char *const *argv, int timeout_ms);

/* The beginning of a small file, at most 1 MiB; NULL when it cannot be read. The caller frees it. */
char *afdep_file_text(const char *file);

/* The value of "key" in text made of lines "key : value", copied to `value`; NULL when absent. */
const char *afdep_text_value(const char *text, const char *key, char *value, size_t size);

#endif
