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

/* One domain has a layout of its own. */
static int is_direct(const afdep_tap_t *tap)
{
    return tap->shape.protocol == AFDEP_PROTOCOL_DIRECT;
}

int afdep_tap_connect(afdep_tap_t *tap, const afdep_rig_t *rig)
{
    afdep_settings_t settings;
    tap->ffn = rig->v->world->rank < rig->scenario.ffn_ranks;
    if (!opened || afdep_settings_resolve(&rig->config, afdep_scenario_ranks(&rig->scenario), &settings) != AFDEP_OK)
        return -1;
    tap->shape = settings.shape;
    tap->layout = settings.layout;
    uint64_t bytes = tap->ffn ? tap->layout.ffn_bytes : tap->layout.attention_bytes;
    if (is_direct(tap)) {
        if (afdep_device_layout_init(&tap->direct, &settings.shape, tap->ffn) != 0)
            return -1;
        bytes = tap->direct.bytes;
    }
    return afdep_tap_connect_segment(tap, bytes);
}

int afdep_tap_connect_segment(afdep_tap_t *tap, uint64_t bytes)
{
    tap->fabric = opened;
    tap->bytes = bytes;
    tap->image = opened ? calloc(1, bytes) : NULL;
    return tap->image ? 0 : -1;
}

void afdep_tap_disconnect(afdep_tap_t *tap)
{
    free(tap->image);
    tap->image = NULL;
    tap->fabric = NULL;
}

/* ---- Places ---------------------------------------------------------------------------------------------------- */

static uint64_t route_at(const afdep_tap_t *tap, int source, int token)
{
    const afdep_shape_t *s = &tap->shape;
    uint64_t index = ((uint64_t)source * (uint64_t)s->capacity + (uint64_t)token) * (uint64_t)s->top_k;
    return tap->direct.control_bytes + tap->direct.route_words + 8 * index;
}

static uint64_t answer_at(const afdep_tap_t *tap, int ffn_rank)
{
    return tap->direct.control_bytes + tap->direct.answers + 8 * (uint64_t)ffn_rank;
}

/* Offsets within the plane. */
static uint64_t place_in_plane(const afdep_tap_t *tap, afdep_tap_word_t word, uint64_t exchange)
{
    const afdep_layout_t *l = &tap->layout;
    const afdep_shape_t *s = &tap->shape;
    int channel = afdep_channel_of(s, 0, AFDEP_TAP_TOKEN);
    switch (word) {
    case AFDEP_TAP_COUNT:
        return afdep_at_count_word(&l->ffn, 0);
    case AFDEP_TAP_FINISH:
        return afdep_at_finish_tail(&l->ffn, s, 0, channel);
    case AFDEP_TAP_ROW_TAG:
        return afdep_at_rail_row(&l->ffn, l, s, 0, channel, 0) + l->row.tag_offset;
    case AFDEP_TAP_FORWARD:
        return afdep_at_forward_word(&l->ffn, 1, afdep_plane_parity(s, exchange));
    case AFDEP_TAP_REPLY:
        return afdep_at_reply_word(&l->ffn, 1);
    case AFDEP_TAP_WITNESS:
        return afdep_at_witness(&l->attention, 0);
    case AFDEP_TAP_COMBINE:
        return afdep_at_combine_tail(&l->attention, s, 0, channel);
    default: /* AFDEP_TAP_REPLY_TAG */
        return afdep_at_combine_row(&l->attention, l, s, 0, AFDEP_TAP_TOKEN) + l->row.reply_tag_offset;
    }
}

uint64_t afdep_tap_place(const afdep_tap_t *tap, afdep_tap_word_t word, uint64_t exchange)
{
    if (is_direct(tap))
        return word == AFDEP_TAP_ROUTE ? route_at(tap, 0, AFDEP_TAP_TOKEN) : answer_at(tap, 0);
    return tap->layout.control_bytes + place_in_plane(tap, word, exchange);
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
    return copy(tap, tap->image, tap->fabric->base, tap->bytes);
}

static int put_back(afdep_tap_t *tap, uint64_t from, uint64_t to)
{
    return copy(tap, tap->fabric->base + from, tap->image + from, to - from);
}

static int put_back_direct(afdep_tap_t *tap)
{
    const afdep_shape_t *s = &tap->shape;
    uint64_t words = tap->ffn ? route_at(tap, 0, 0) : answer_at(tap, 0);
    uint64_t behind = tap->ffn ? route_at(tap, s->attention_ranks, 0) : answer_at(tap, s->ffn_ranks);
    return put_back(tap, tap->direct.control_bytes, words) || put_back(tap, behind, tap->bytes);
}

int afdep_tap_put_back(afdep_tap_t *tap, afdep_tap_word_t word)
{
    const afdep_layout_t *l = &tap->layout;
    uint64_t plane = l->control_bytes;
    if (is_direct(tap))
        return put_back_direct(tap);
    if (!tap->ffn)
        return put_back(tap, plane + l->attention.combine_rows, plane + l->attention.bytes);
    if (word == AFDEP_TAP_FORWARD)
        return put_back(tap, plane + l->ffn.domain_inbox, plane + l->ffn.count_words);
    return word == AFDEP_TAP_REPLY ? put_back(tap, plane + l->ffn.partials, plane + l->ffn.bytes)
                                   : put_back(tap, plane + l->ffn.inbox, plane + l->ffn.partials);
}

int afdep_tap_put_back_range(afdep_tap_t *tap, uint64_t from, uint64_t bytes)
{
    return put_back(tap, from, from + bytes);
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
