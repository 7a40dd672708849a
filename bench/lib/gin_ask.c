/* SPDX-License-Identifier: Apache-2.0 */
/* Asks NCCL for GIN as a buffer of several domains would. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdio.h>
#include <string.h>

#include "bench/lib/gin_note.h"
#include "bench/lib/why.h"

#ifdef AFDEP_HAVE_NCCL
#include "core/config.h"
#include "cuda/fabric.h"

#define ASK_MS 20000
#define ASK_BYTES 4096 /* of a window that nobody uses */

static afdep_status_t prepare_nothing(void *context, void *base, cudaStream_t stream)
{
    (void)context, (void)base, (void)stream;
    return AFDEP_OK;
}

/* What the environment asks of GIN. */
static afdep_status_t resolve(afdep_gin_settings_t *gin)
{
    afdep_config_t config = AFDEP_CONFIG_INIT;
    afdep_settings_t settings;
    config.ffn_ranks = config.ranks_per_domain = config.num_experts = config.top_k = config.capacity = 1;
    config.hidden = 256;
    config.backend = "cuda";
    config.fabric = "nccl";
    afdep_status_t status = afdep_settings_resolve(&config, 2, &settings);
    if (status == AFDEP_OK)
        *gin = settings.gin;
    return status;
}

static afdep_status_t ask(const afdep_group_t *group, afdep_gin_note_t *note)
{
    afdep_gin_settings_t asked;
    afdep_device_fabric_t *fabric = NULL;
    afdep_device_fabric_args_t args = { .group = group, .timeout_ms = ASK_MS, .bytes = ASK_BYTES, .ranks_per_domain = 1,
                                        .prepare = prepare_nothing };
    afdep_status_t status = afdep_device_nccl.available();
    if (status == AFDEP_OK)
        status = resolve(&asked);
    if (status != AFDEP_OK)
        return status;
    args.gin = (afdep_rail_gin_t){ .num_qps = asked.num_qps, .type = asked.type, .traffic_class = asked.traffic_class,
                                   .signals = 1, .alone = 1 };
    (void)cudaGetDevice(&args.device);
    status = afdep_device_nccl.open(&args, &fabric);
    if (status != AFDEP_OK)
        return status;
    const afdep_rail_gin_t *g = &fabric->gin;
    *note = (afdep_gin_note_t){ .contexts = g->contexts, .type = g->found_type, .traffic_class = g->traffic_class,
                                .loopback = g->loopback };
    snprintf(note->why, sizeof(note->why), "%s", g->why);
    fabric->close(fabric, 1);
    return AFDEP_OK;
}

int afdep_gin_note_ask(afdep_gin_note_t *note, char *why, size_t why_size)
{
    afdep_group_t group;
    memset(note, 0, sizeof(*note));
    if (afdep_group_threads_create(1, ASK_MS, &group) != AFDEP_OK)
        return afdep_why(why, why_size, "%s", afdep_last_error());
    int failed = ask(&group, note) != AFDEP_OK && afdep_why(why, why_size, "%s", afdep_last_error()) != 0;
    afdep_group_destroy(&group);
    return failed ? -1 : 0;
}
#else
int afdep_gin_note_ask(afdep_gin_note_t *note, char *why, size_t why_size)
{
    memset(note, 0, sizeof(*note));
    return afdep_why(why, why_size, "not built: configured without NCCL");
}
#endif
