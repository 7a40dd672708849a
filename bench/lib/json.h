/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cJSON leaves open when files come from strangers: a bounded, strict reader with positions, and strings that are
 * valid UTF-8 whatever the environment held.
 */
#ifndef AFDEP_BENCH_JSON_H
#define AFDEP_BENCH_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>

#define AFDEP_JSON_DEPTH_MAX 64
#define AFDEP_JSON_CONFIG_BYTES ((size_t)1 << 20)  /* files that people write: scenarios, screens */
#define AFDEP_JSON_RECORD_BYTES ((size_t)256 << 20) /* files that programs write: records, traces */

/* Reads `file` (a pipe will do), at most `limit` bytes and AFDEP_JSON_DEPTH_MAX levels. NULL with one line in `why`
   naming the file, and line and column where it stops being JSON, or the key that an object holds twice. The caller
   owns the result. */
cJSON *afdep_json_read(const char *file, size_t limit, char *why, size_t why_size);

/* A JSON string of `text` (NULL: null); bytes that are not UTF-8 become U+FFFD. */
cJSON *afdep_json_string(const char *text);

/* The value as JSON text, cut to `size`, to be quoted in a refusal. Returns `text`. */
const char *afdep_json_quote(const cJSON *value, char *text, size_t size);

#endif
