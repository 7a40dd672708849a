/* SPDX-License-Identifier: Apache-2.0 */
/* Notes of NCCL's GPU-initiated networking. */
#include "bench/lib/gin_note.h"

#include <stdio.h>
#include <string.h>

void afdep_gin_note_take(afdep_gin_note_t *note, const afdep_buffer_t *buffer)
{
    afdep_buffer_info_t info = { .struct_size = sizeof(info) };
    memset(note, 0, sizeof(*note));
    if (afdep_buffer_info(buffer, &info) != AFDEP_OK || info.gin_contexts == 0)
        return;
    note->contexts = info.gin_contexts;
    note->type = info.gin_type;
    note->traffic_class = info.gin_traffic_class;
    note->loopback = info.gin_loopback;
    snprintf(note->why, sizeof(note->why), "%s", info.gin_why);
}

static const char *type_of(int type)
{
    return type == 2 ? "proxy" : type == 3 ? "gdaki" : "other";
}

cJSON *afdep_gin_note_json(const afdep_gin_note_t *note)
{
    cJSON *json = note->contexts ? cJSON_CreateObject() : NULL;
    if (!json)
        return NULL;
    cJSON_AddStringToObject(json, "type", type_of(note->type));
    cJSON_AddNumberToObject(json, "contexts", note->contexts);
    if (note->traffic_class >= 0)
        cJSON_AddNumberToObject(json, "traffic_class", note->traffic_class);
    else
        cJSON_AddNullToObject(json, "traffic_class");
    cJSON_AddBoolToObject(json, "loopback", note->loopback);
    cJSON_AddStringToObject(json, "why", note->why);
    return json;
}

void afdep_gin_note_print(const afdep_gin_note_t *note)
{
    if (note->contexts)
        printf("# GIN: %s%s\n", note->why, note->loopback ? "; over the loopback plugin, no network" : "");
}
