/* SPDX-License-Identifier: Apache-2.0 */
/* A device fabric that lets a test at the rank's own segment. */
#include "validate/device_tap.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/config.h"
#include "validate/gpu.h"

/* A provider's open knows nothing of who calls it, so the tap that is opening is the thread's. */
static _Thread_local const afdep_device_provider_t *inner;
static _Thread_local afdep_device_fabric_t *opened;

static afdep_status_t open_inner(const afdep_device_fabric_args_t *args, afdep_device_fabric_t **fabric)
{
    afdep_status_t status = inner->open(args, fabric);
    opened = status == AFDEP_OK ? *fabric : NULL;
    return status;
}

static afdep_status_t inner_available(void)
{
    return inner->available();
}

int afdep_tap_init(afdep_tap_t *tap, const char *fabric)
{
    static const afdep_device_provider_t *const all[] = {
        &afdep_device_peer,
#ifdef AFDEP_HAVE_NCCL
        &afdep_device_nccl,
#endif
    };
    memset(tap, 0, sizeof(*tap));
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(fabric, all[i]->super.name) == 0) {
            inner = all[i];
            tap->provider = *all[i];
            tap->provider.open = open_inner;
            tap->provider.available = inner_available;
            return 0;
        }
    return -1;
}

int afdep_tap_connect(afdep_tap_t *tap, const afdep_rig_t *rig)
{
    afdep_settings_t settings;
    tap->fabric = opened;
    tap->ffn = rig->v->world->rank < rig->scenario.ffn_ranks;
    if (!tap->fabric ||
        afdep_settings_resolve(&rig->config, afdep_scenario_ranks(&rig->scenario), &settings) != AFDEP_OK ||
        afdep_device_layout_init(&tap->layout, &settings.shape, tap->ffn) != 0)
        return -1;
    tap->shape = settings.shape;
    tap->image = calloc(1, tap->layout.bytes);
    return tap->image ? 0 : -1;
}

void afdep_tap_disconnect(afdep_tap_t *tap)
{
    free(tap->image);
    tap->image = NULL;
    tap->fabric = NULL;
}

/* ---- Places ---------------------------------------------------------------------------------------------------- */

uint64_t afdep_tap_route(const afdep_tap_t *tap, int source, int token, int slot)
{
    const afdep_shape_t *s = &tap->shape;
    uint64_t index = ((uint64_t)source * (uint64_t)s->capacity + (uint64_t)token) * (uint64_t)s->top_k + (uint64_t)slot;
    return tap->layout.control_bytes + tap->layout.route_words + 8 * index;
}

uint64_t afdep_tap_answer(const afdep_tap_t *tap, int ffn_rank)
{
    return tap->layout.control_bytes + tap->layout.answers + 8 * (uint64_t)ffn_rank;
}

/* ---- The segment ----------------------------------------------------------------------------------------------- */

static int copy(afdep_tap_t *tap, void *to, const void *from, uint64_t bytes)
{
    cudaStream_t stream = tap->fabric->stream;
    return bytes && (afdep_gpu_failed(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "the segment") ||
                     afdep_gpu_finish(stream));
}

int afdep_tap_take(afdep_tap_t *tap)
{
    return copy(tap, tap->image, tap->fabric->base, tap->layout.bytes);
}

int afdep_tap_put_back(afdep_tap_t *tap)
{
    const afdep_shape_t *s = &tap->shape;
    uint64_t words = tap->ffn ? afdep_tap_route(tap, 0, 0, 0) : afdep_tap_answer(tap, 0);
    uint64_t behind = tap->ffn ? afdep_tap_route(tap, s->attention_ranks, 0, 0) : afdep_tap_answer(tap, s->ffn_ranks);
    uint64_t plane = tap->layout.control_bytes;
    return copy(tap, tap->fabric->base + plane, tap->image + plane, words - plane) ||
           copy(tap, tap->fabric->base + behind, tap->image + behind, tap->layout.bytes - behind);
}

uint64_t afdep_tap_taken(const afdep_tap_t *tap, uint64_t at)
{
    uint64_t word;
    memcpy(&word, tap->image + at, sizeof(word));
    return word;
}

int afdep_tap_read(afdep_tap_t *tap, uint64_t at, uint64_t *word)
{
    return copy(tap, word, tap->fabric->base + at, sizeof(*word));
}

int afdep_tap_write(afdep_tap_t *tap, uint64_t at, uint64_t word)
{
    return copy(tap, tap->fabric->base + at, &word, sizeof(word));
}

struct afdep_tap_later {
    afdep_tap_t *tap;
    uint64_t at, word;
    pthread_t thread;
    int ms, device, failed;
};

static void *write_then(void *argument)
{
    afdep_tap_later_t *l = argument;
    struct timespec pause = { l->ms / 1000, l->ms % 1000 * 1000000L };
    nanosleep(&pause, NULL);
    l->failed = cudaSetDevice(l->device) != cudaSuccess || afdep_tap_write(l->tap, l->at, l->word) != 0;
    return NULL;
}

afdep_tap_later_t *afdep_tap_write_later(afdep_tap_t *tap, uint64_t at, uint64_t word, int ms)
{
    afdep_tap_later_t *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    *l = (afdep_tap_later_t){ .tap = tap, .at = at, .word = word, .ms = ms };
    if (cudaGetDevice(&l->device) == cudaSuccess && pthread_create(&l->thread, NULL, write_then, l) == 0)
        return l;
    free(l);
    return NULL;
}

int afdep_tap_wait(afdep_tap_later_t *later)
{
    (void)pthread_join(later->thread, NULL);
    int failed = later->failed;
    free(later);
    return failed ? -1 : 0;
}
