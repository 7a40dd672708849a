/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's claim is a text of "name=value" lines in a fixed order. Texts are compared, not structs, so that two builds
 * whose structs differ still find the line they differ in.
 */
#include "core/agreement.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/group.h"

#define CLAIM_MAGIC 0x61666470u

typedef struct claim {
    uint32_t magic;
    int32_t status;
    char why[512];
    char lines[3576];
} claim_t;

_Static_assert(sizeof(claim_t) <= 4096, "the claim's size is part of what every version of the library gathers");

static void add_line(claim_t *claim, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_line(claim_t *claim, const char *format, ...)
{
    size_t used = strlen(claim->lines);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(claim->lines + used, sizeof(claim->lines) - used, format, arguments);
    va_end(arguments);
}

static void claim_settings(claim_t *claim, const afdep_settings_t *settings, const char *fabric)
{
    const afdep_shape_t *s = &settings->shape;
    const struct {
        const char *name;
        long long value;
    } numbers[] = {
        { "ffn_ranks", s->ffn_ranks },
        { "ranks_per_domain", s->ranks_per_domain },
        { "num_experts", s->num_experts },
        { "top_k", s->top_k },
        { "hidden", s->hidden },
        { "dtype", s->fp8 },
        { "capacity", s->capacity },
        { "num_sms", s->num_sms },
        { "expert_alignment", s->expert_alignment },
        { "in_flight", s->in_flight },
        { "timeout_ms", settings->timeout_ms },
        { "stagger", s->stagger },
        { "sparse_dispatch", s->sparse_dispatch },
        { "sparse_combine", s->sparse_combine },
        { "apply_weights", s->apply_weights },
        { "union_buffers", s->union_buffers },
        { "mixed_hybrid", (settings->flags & AFDEP_FLAG_MIXED_HYBRID) != 0 },
        { "entry_barrier", s->entry_barrier },
        { "survive_sources", s->survive_sources },
        { "fp8_combine", s->fp8_combine },
        { "fp8_combine_min_bucket", s->fp8_combine_min_bucket },
        { "num_qps", settings->gin.num_qps },
        { "gin_type", settings->gin.type },
        { "traffic_class", settings->gin.traffic_class },
        { "nic_send_ps", settings->nic.send_ps },
        { "nic_receive_ps", settings->nic.receive_ps },
        { "nic_signal_ps", settings->nic.signal_ps },
        { "nic_byte_ps", settings->nic.byte_ps },
        { "nic_latency_ps", settings->nic.latency_ps },
        { "first_exchange", (long long)settings->first_exchange },
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        add_line(claim, "%s=%lld\n", numbers[i].name, numbers[i].value);
    add_line(claim, "backend=%s\n", settings->backend);
    add_line(claim, "fabric=%s\n", fabric);
    add_line(claim, "native_tree=%s%s\n", afdep_native_tree(), afdep_native_tree_dirty() ? " (dirty)" : "");
}

/* Length of the line at `text`, without its newline. */
static int line_length(const char *text)
{
    return (int)strcspn(text, "\n");
}

/* Line `line` of a claim's lines; "" beyond the last. */
static const char *line_at(const char *lines, int line)
{
    for (; line > 0 && *lines; line--) {
        lines += line_length(lines);
        lines += *lines == '\n';
    }
    return lines;
}

static int line_equal(const char *a, const char *b)
{
    return line_length(a) == line_length(b) && strncmp(a, b, (size_t)line_length(a)) == 0;
}

/* "ranks 1, 4, 5 and 9 more" of those whose line `line` equals (or, with `equal` 0, differs from) `want`. */
static void name_ranks(char *out, size_t size, const claim_t *claims, int ranks, int line, const char *want)
{
    int named = 0, more = 0;
    size_t used = 0;
    for (int r = 0; r < ranks; r++) {
        if (!line_equal(line_at(claims[r].lines, line), want))
            continue;
        if (named == 4) {
            more++;
            continue;
        }
        used += (size_t)snprintf(out + used, size - used, "%s%d", named++ ? ", " : "", r);
    }
    if (more)
        snprintf(out + used, size - used, " and %d more", more);
}

/* What follows the name and its "=" on a line: nothing on one that is shorter, as another version may have sent it. */
static const char *value_at(const char *line, int name)
{
    return line_length(line) > name ? line + name + 1 : "";
}

static int value_length(const char *line, int name)
{
    return line_length(line) > name ? line_length(line) - name - 1 : 0;
}

static afdep_status_t refuse_difference(const claim_t *claims, int ranks, int other)
{
    const char *first = claims[0].lines, *second = claims[other].lines;
    int line = 0;
    for (; line_equal(first, second) && *first; line++) {
        first = line_at(first, 1);
        second = line_at(second, 1);
    }
    int name = (int)strcspn(first, "=\n");
    char these[96], those[96];
    name_ranks(these, sizeof(these), claims, ranks, line, first);
    name_ranks(those, sizeof(those), claims, ranks, line, second);
    return afdep_fail(AFDEP_ERR_AGREEMENT, "ranks disagree on %.*s: rank %s says %.*s, rank %s says %.*s", name, first,
                      these, value_length(first, name), value_at(first, name), those, value_length(second, name),
                      value_at(second, name));
}

/* Room on the stack for the claims of a few dozen ranks; only a rank that is out of memory needs it. */
#define EMERGENCY_CLAIMS 32

/* Takes part although the others' claims find no room, so that they learn of it. Apart, so that the stack of the
   ordinary path stays small. With more ranks than that they learn of it by the group's deadline. */
static __attribute__((noinline)) void gather_without_memory(const afdep_group_t *group, const claim_t *claim)
{
    claim_t claims[EMERGENCY_CLAIMS];
    if (group->size <= EMERGENCY_CLAIMS)
        (void)afdep_group_allgather(group, claim, claims, sizeof(*claim));
}

/* Gathers the claims; every rank comes here exactly once per agreement. */
static afdep_status_t gather(const afdep_group_t *group, afdep_status_t own, claim_t *claim, claim_t **claims)
{
    *claims = calloc((size_t)group->size, sizeof(**claims));
    int lost = !*claims;
    if (lost && own == AFDEP_OK)
        own = afdep_fail(AFDEP_ERR_MEMORY, "no memory for the settings of %d ranks", group->size);
    claim->magic = CLAIM_MAGIC;
    claim->status = own;
    if (own != AFDEP_OK)
        snprintf(claim->why, sizeof(claim->why), "%s", afdep_last_error());
    if (lost) {
        gather_without_memory(group, claim);
        return afdep_fail(own, "%s", claim->why);
    }
    afdep_status_t status = afdep_group_allgather(group, claim, *claims, sizeof(*claim));
    for (int r = 0; status == AFDEP_OK && r < group->size; r++) {
        claim_t *other = &(*claims)[r];
        other->why[sizeof(other->why) - 1] = other->lines[sizeof(other->lines) - 1] = '\0';
        if (other->magic != CLAIM_MAGIC)
            status = afdep_fail(AFDEP_ERR_AGREEMENT, "rank %d runs another version of the library", r);
    }
    return status;
}

/* The status of every rank when one of them failed. `own_why` is this rank's sentence, which stays its last error. */
static afdep_status_t first_failure(const claim_t *claims, const claim_t *mine, int ranks, const char *what)
{
    if (mine->status != AFDEP_OK)
        return afdep_fail((afdep_status_t)mine->status, "%s", mine->why);
    for (int r = 0; r < ranks; r++)
        if (claims[r].status != AFDEP_OK)
            return afdep_fail(AFDEP_ERR_AGREEMENT, "rank %d could not %s: %s", r, what, claims[r].why);
    return AFDEP_OK;
}

/* One allgather; every rank's lines must be rank 0's. */
static afdep_status_t agree(const afdep_group_t *group, afdep_status_t own, claim_t *mine)
{
    claim_t *claims = NULL;
    afdep_status_t status = gather(group, own, mine, &claims);
    if (status == AFDEP_OK)
        status = first_failure(claims, mine, group->size, "open");
    for (int r = 1; status == AFDEP_OK && r < group->size; r++)
        if (strcmp(claims[0].lines, claims[r].lines) != 0)
            status = refuse_difference(claims, group->size, r);
    free(claims);
    return status;
}

afdep_status_t afdep_agree(const afdep_group_t *group, afdep_status_t own, const afdep_settings_t *settings,
                           const char *fabric)
{
    claim_t mine;
    memset(&mine, 0, sizeof(mine));
    if (own == AFDEP_OK)
        claim_settings(&mine, settings, fabric);
    return agree(group, own, &mine);
}

afdep_status_t afdep_agree_lines(const afdep_group_t *group, afdep_status_t own, const char *lines)
{
    claim_t mine;
    memset(&mine, 0, sizeof(mine));
    if (own == AFDEP_OK)
        add_line(&mine, "%s", lines);
    return agree(group, own, &mine);
}

afdep_status_t afdep_agree_status(const afdep_group_t *group, afdep_status_t own, const char *what)
{
    claim_t mine, *claims = NULL;
    memset(&mine, 0, sizeof(mine));
    afdep_status_t status = gather(group, own, &mine, &claims);
    if (status == AFDEP_OK)
        status = first_failure(claims, &mine, group->size, what);
    free(claims);
    return status;
}
