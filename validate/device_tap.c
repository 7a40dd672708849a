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
#include "protocol/word.h"
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

/* The area of few tokens, which stands behind the planes: `bytes` of them, then of both. */
static int connect_few(afdep_tap_t *tap, uint64_t *bytes)
{
    const afdep_shape_t *s = &tap->shape;
    if (!s->sparse_dispatch || !s->sparse_combine)
        return 0;
    uint64_t from = (*bytes + AFDEP_LINE_BYTES - 1) / AFDEP_LINE_BYTES * AFDEP_LINE_BYTES;
    if (afdep_few_layout_init(&tap->few, s, tap->ffn, from) != 0)
        return -1;
    *bytes = tap->few.bytes;
    return 0;
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
    } else if (connect_few(tap, &bytes) != 0) {
        return -1;
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

int afdep_tap_of_few(afdep_tap_word_t word)
{
    return word >= AFDEP_TAP_RAIL_LINE;
}

int afdep_tap_of_domain(afdep_tap_word_t word)
{
    return word == AFDEP_TAP_FORWARD || word == AFDEP_TAP_REPLY || word == AFDEP_TAP_CHOICES ||
           word == AFDEP_TAP_DOMAIN_LINE || word == AFDEP_TAP_PARTIAL_LINE;
}

static uint64_t row_line_at(const afdep_tap_t *tap, int source, int token, int line)
{
    const afdep_device_layout_t *l = &tap->few;
    return l->row_lines + AFDEP_LINE_BYTES * (uint64_t)((source * l->few_tokens + token) * l->row_line_count + line);
}

/* Of row `row` of replies of all tokens, one after the other. */
static uint64_t reply_line_at(const afdep_tap_t *tap, uint64_t region, int row, int token)
{
    const afdep_device_layout_t *l = &tap->few;
    return region + AFDEP_LINE_BYTES * (uint64_t)((row * l->few_tokens + token) * l->reply_line_count);
}

static uint64_t few_plane(const afdep_tap_t *tap, uint64_t exchange)
{
    return tap->few.control_bytes + exchange % 2 * tap->few.plane_bytes;
}

/* Offsets within the plane; the second domain rail's are Attention rank 1's, and the row of its partials is the one behind
   those of all source domains over the first. */
static uint64_t few_place_in_plane(const afdep_tap_t *tap, afdep_tap_word_t word)
{
    const afdep_shape_t *s = &tap->shape;
    switch (word) {
    case AFDEP_TAP_RAIL_LINE:
        return row_line_at(tap, 0, tap->token, 0);
    case AFDEP_TAP_RAIL_TAIL:
        return row_line_at(tap, 0, tap->token, afdep_lines(afdep_row_vectors(s)));
    case AFDEP_TAP_DOMAIN_LINE:
        return row_line_at(tap, 1, tap->token, 0);
    case AFDEP_TAP_CHOICES:
        return tap->few.choice_words + 16 * (uint64_t)((tap->few.few_tokens + tap->token) * afdep_choice_words(s));
    case AFDEP_TAP_PARTIAL_LINE:
        return reply_line_at(tap, tap->few.partial_lines, s->attention_domains, tap->token);
    default: /* AFDEP_TAP_COMBINE_LINE */
        return reply_line_at(tap, tap->few.combine_lines, 0, tap->token);
    }
}

/* Offsets within the plane. */
static uint64_t place_in_plane(const afdep_tap_t *tap, afdep_tap_word_t word, uint64_t exchange)
{
    const afdep_layout_t *l = &tap->layout;
    const afdep_shape_t *s = &tap->shape;
    int channel = afdep_channel_of(s, 0, tap->token);
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
        return afdep_at_combine_row(&l->attention, l, s, 0, tap->token) + l->row.reply_tag_offset;
    }
}

uint64_t afdep_tap_place(const afdep_tap_t *tap, afdep_tap_word_t word, uint64_t exchange)
{
    if (is_direct(tap))
        return word == AFDEP_TAP_ROUTE ? route_at(tap, 0, tap->token) : answer_at(tap, 0);
    if (afdep_tap_of_few(word))
        return few_plane(tap, exchange) + few_place_in_plane(tap, word) + 8;
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

/* All lines of the row's source, or of the replies' rail or domain. */
static int put_back_lines(afdep_tap_t *tap, afdep_tap_word_t word, uint64_t exchange)
{
    const afdep_shape_t *s = &tap->shape;
    uint64_t plane = few_plane(tap, exchange), from, to;
    if (word == AFDEP_TAP_RAIL_LINE || word == AFDEP_TAP_DOMAIN_LINE) {
        int source = word == AFDEP_TAP_DOMAIN_LINE;
        from = row_line_at(tap, source, 0, 0), to = row_line_at(tap, source + 1, 0, 0);
    } else if (word == AFDEP_TAP_PARTIAL_LINE) {
        from = reply_line_at(tap, tap->few.partial_lines, s->attention_domains, 0);
        to = reply_line_at(tap, tap->few.partial_lines, 2 * s->attention_domains, 0);
    } else {
        from = reply_line_at(tap, tap->few.combine_lines, 0, 0), to = reply_line_at(tap, tap->few.combine_lines, 1, 0);
    }
    return put_back(tap, plane + from, plane + to);
}

int afdep_tap_put_back(afdep_tap_t *tap, afdep_tap_word_t word, uint64_t exchange)
{
    const afdep_layout_t *l = &tap->layout;
    uint64_t plane = l->control_bytes;
    if (is_direct(tap))
        return put_back_direct(tap);
    if (afdep_tap_of_few(word))
        return put_back_lines(tap, word, exchange);
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

/* Words of rows, or of replies, that a line uses are lanes' (protocol/device.h); `lines` of them to each row from `at` on. */
static uint32_t oldest_of_lines(const afdep_tap_t *tap, uint64_t at, uint64_t rows, int lines, int reply, uint32_t now)
{
    const afdep_shape_t *s = &tap->shape;
    int vectors = reply ? afdep_reply_vectors(s) : afdep_row_vectors(s);
    uint32_t oldest = 0;
    for (uint64_t row = 0; row < rows; row++)
        for (int line = 0; line < lines; line++)
            for (int lane = 0; lane < 32; lane++, at += 16) {
                int tail = line - afdep_lines(vectors);
                int used = tail >= 0 ? tail * 32 + lane < afdep_tail_words(s)
                                     : afdep_line_uses(lane, vectors - line * AFDEP_LINE_VECTORS);
                uint32_t age = now - afdep_word_high(afdep_tap_taken(tap, at + 8));
                oldest = used && age > oldest ? age : oldest;
            }
    return oldest;
}

uint32_t afdep_tap_oldest_line(const afdep_tap_t *tap, uint32_t now)
{
    const afdep_shape_t *s = &tap->shape;
    const afdep_device_layout_t *l = is_direct(tap) ? &tap->direct : &tap->few;
    uint64_t few = (uint64_t)l->few_tokens, sources = (uint64_t)s->attention_ranks;
    uint32_t oldest = 0;
    for (int g = 0; g < l->planes; g++) {
        uint64_t plane = l->control_bytes + (uint64_t)g * l->plane_bytes;
        uint32_t of[3] = { 0 };
        if (!tap->ffn) {
            uint64_t replies = few * (uint64_t)(is_direct(tap) ? s->ffn_ranks : s->ffn_domains);
            of[0] = oldest_of_lines(tap, plane + l->combine_lines, replies, l->reply_line_count, 1, now);
        } else {
            of[0] = oldest_of_lines(tap, plane + l->row_lines, sources * few, l->row_line_count, 0, now);
        }
        if (tap->ffn && !is_direct(tap)) {
            uint64_t words = sources * few * (uint64_t)afdep_choice_words(s);
            for (uint64_t i = 0; i < words; i++) {
                uint32_t age = now - afdep_word_high(afdep_tap_taken(tap, plane + l->choice_words + 16 * i + 8));
                of[1] = age > of[1] ? age : of[1];
            }
            of[2] = oldest_of_lines(tap, plane + l->partial_lines,
                                    (uint64_t)s->ranks_per_domain * (uint64_t)s->attention_domains * few, l->reply_line_count, 1, now);
        }
        for (int i = 0; i < 3; i++)
            oldest = of[i] > oldest ? of[i] : oldest;
    }
    return oldest;
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
