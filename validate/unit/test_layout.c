/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segment layouts of both roles and protocols over many shapes: regions that are aligned, large enough by a count made
 * here, and apart from each other; offset functions that stay inside their region at their extreme indices and never
 * give two indices one place; sizes by role; overflow refused.
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/config.h"
#include "protocol/layout.h"

typedef struct region {
    const char *name;
    uint64_t start, bytes;
} region_t;

static afdep_shape_t shape_of(int ffn, int attention, int per_domain, int top_k, int capacity, int num_sms)
{
    afdep_shape_t s = { 0 };
    s.ranks = ffn + attention;
    s.ffn_ranks = ffn;
    s.attention_ranks = attention;
    s.ranks_per_domain = per_domain;
    s.protocol = per_domain == s.ranks ? AFDEP_PROTOCOL_DIRECT : AFDEP_PROTOCOL_DIRECTIONAL;
    s.ffn_domains = per_domain == s.ranks ? 1 : ffn / per_domain;
    s.attention_domains = per_domain == s.ranks ? 1 : attention / per_domain;
    s.experts_per_rank = 32;
    s.num_experts = 32 * ffn;
    s.top_k = top_k;
    s.hidden = 256;
    s.capacity = capacity;
    s.num_sms = num_sms;
    s.channels = 8 * num_sms;
    s.expert_alignment = 1;
    s.in_flight = 1;
    s.stagger = s.sparse_dispatch = s.sparse_combine = 1;
    return s;
}

static int is_direct(const afdep_shape_t *s)
{
    return s->protocol == AFDEP_PROTOCOL_DIRECT;
}

/* The regions of one role's plane with the sizes they must have. */
static int ffn_regions(region_t *r, const afdep_layout_t *l, const afdep_plane_layout_t *p, const afdep_shape_t *s)
{
    uint64_t capacity = (uint64_t)s->capacity, a = (uint64_t)s->attention_ranks, d = (uint64_t)s->ranks_per_domain;
    uint64_t sources = (uint64_t)s->attention_domains, c = (uint64_t)s->channels;
    uint64_t slots = (capacity + c - 1) / c;
    int n = 0;
    if (is_direct(s)) {
        r[n++] = (region_t){ "count words", p->count_words, 8 * a };
        r[n++] = (region_t){ "inbox", p->inbox, a * capacity * l->row.stride };
        return n;
    }
    r[n++] = (region_t){ "count words", p->count_words, 8 * sources };
    r[n++] = (region_t){ "finish tails", p->finish_tails, 8 * sources * c };
    r[n++] = (region_t){ "forward words", p->forward_words, 16 * d };
    r[n++] = (region_t){ "reply words", p->reply_words, 8 * d };
    r[n++] = (region_t){ "extents", p->extents, 4 * d * sources };
    r[n++] = (region_t){ "rail inbox", p->inbox, sources * c * slots * l->row.stride };
    if (d > 1) {
        r[n++] = (region_t){ "domain inbox", p->domain_inbox, d * sources * capacity * l->row.stride };
        r[n++] = (region_t){ "partials", p->partials, d * sources * capacity * l->row.reply_stride };
    }
    return n;
}

static int attention_regions(region_t *r, const afdep_layout_t *l, const afdep_plane_layout_t *p,
                             const afdep_shape_t *s)
{
    uint64_t targets = (uint64_t)(is_direct(s) ? s->ffn_ranks : s->ffn_domains);
    uint64_t channels = is_direct(s) ? 1 : (uint64_t)s->channels;
    r[0] = (region_t){ "witness words", p->witness_words, 8 * targets };
    r[1] = (region_t){ "combine tails", p->combine_tails, 8 * targets * channels };
    r[2] = (region_t){ "combine rows", p->combine_rows, targets * (uint64_t)s->capacity * l->row.reply_stride };
    return 3;
}

static void check_apart(const region_t *r, int count, uint64_t plane_bytes)
{
    for (int i = 0; i < count; i++) {
        if (r[i].start % 4096 != 0 || r[i].start + r[i].bytes > plane_bytes)
            fail_msg("%s: at %llu, %llu bytes, in a plane of %llu", r[i].name, (unsigned long long)r[i].start,
                     (unsigned long long)r[i].bytes, (unsigned long long)plane_bytes);
        for (int j = 0; j < i; j++)
            if (r[i].start < r[j].start + r[j].bytes && r[j].start < r[i].start + r[i].bytes)
                fail_msg("%s and %s overlap", r[i].name, r[j].name);
    }
}

static const region_t *find(const region_t *r, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(r[i].name, name) == 0)
            return &r[i];
    fail_msg("no region %s", name);
    return NULL;
}

/* The last place of an index must end inside of the region, and the first be its start. */
static void check_span(const region_t *r, uint64_t first, uint64_t last, uint64_t bytes, uint64_t align)
{
    if (first != r->start || last + bytes > r->start + r->bytes || last < first || last % align != 0)
        fail_msg("%s: places from %llu to %llu of %llu bytes, region from %llu, %llu bytes", r->name,
                 (unsigned long long)first, (unsigned long long)last, (unsigned long long)bytes,
                 (unsigned long long)r->start, (unsigned long long)r->bytes);
}

static void check_ffn_offsets(const region_t *r, int n, const afdep_layout_t *l, const afdep_plane_layout_t *p,
                              const afdep_shape_t *s)
{
    int a = s->attention_ranks - 1, sd = s->attention_domains - 1, d = s->ranks_per_domain - 1, c = s->channels - 1;
    int last = s->capacity - 1;
    uint64_t row = l->row.bytes, reply = l->row.reply_bytes;
    check_span(find(r, n, "count words"), afdep_at_count_word(p, 0), afdep_at_count_word(p, is_direct(s) ? a : sd), 8,
               8);
    if (is_direct(s)) {
        check_span(find(r, n, "inbox"), afdep_at_direct_row(p, l, s, 0, 0), afdep_at_direct_row(p, l, s, a, last), row,
                   128);
        return;
    }
    check_span(find(r, n, "finish tails"), afdep_at_finish_tail(p, s, 0, 0), afdep_at_finish_tail(p, s, sd, c), 8, 8);
    check_span(find(r, n, "forward words"), afdep_at_forward_word(p, 0, 0), afdep_at_forward_word(p, d, 1), 8, 8);
    check_span(find(r, n, "reply words"), afdep_at_reply_word(p, 0), afdep_at_reply_word(p, d), 8, 8);
    /* Extents travel as one put of whole 16 bytes, which may be more than S of them. */
    uint64_t extents = afdep_at_extents(p, l, d) + 4u * (uint64_t)l->extent_stride;
    assert_true(afdep_at_extents(p, l, 0) == p->extents && afdep_at_extents(p, l, d) % 16 == 0);
    assert_true(l->extent_stride % 4 == 0 && (int)l->extent_stride > sd && extents <= p->inbox);
    check_span(find(r, n, "rail inbox"), afdep_at_rail_row(p, l, s, 0, 0, 0),
               afdep_at_rail_row(p, l, s, sd, c, (int)l->slots - 1), row, 128);
    if (d == 0)
        return;
    check_span(find(r, n, "domain inbox"), afdep_at_domain_row(p, l, s, 0, 0, 0),
               afdep_at_domain_row(p, l, s, d, sd, last), row, 128);
    check_span(find(r, n, "partials"), afdep_at_partial(p, l, s, 0, 0, 0), afdep_at_partial(p, l, s, d, sd, last),
               reply, 128);
}

static void check_attention_offsets(const region_t *r, int n, const afdep_layout_t *l, const afdep_plane_layout_t *p,
                                    const afdep_shape_t *s)
{
    int target = (is_direct(s) ? s->ffn_ranks : s->ffn_domains) - 1, c = is_direct(s) ? 0 : s->channels - 1;
    check_span(find(r, n, "witness words"), afdep_at_witness(p, 0), afdep_at_witness(p, target), 8, 8);
    check_span(find(r, n, "combine tails"), afdep_at_combine_tail(p, s, 0, 0), afdep_at_combine_tail(p, s, target, c),
               8, 8);
    check_span(find(r, n, "combine rows"), afdep_at_combine_row(p, l, s, 0, 0),
               afdep_at_combine_row(p, l, s, target, s->capacity - 1), l->row.reply_bytes, 128);
}

static void check_segment(const afdep_layout_t *l, const afdep_plane_layout_t *p, const afdep_shape_t *s,
                          uint64_t segment_bytes)
{
    assert_true(l->control_bytes % 4096 == 0);
    /* The fabric's own bytes, then every rank's two words. */
    assert_true(afdep_closing_word(0) >= AFDEP_CONTROL_FABRIC_BYTES);
    assert_true(afdep_failure_word(s->ranks - 1) + 8 <= l->control_bytes);
    assert_true(afdep_failure_word(0) >= afdep_closing_word(0) + 8);
    assert_true(afdep_closing_word(1) >= afdep_failure_word(0) + 8);
    for (int g = 0; g < s->in_flight; g++) {
        uint64_t start = afdep_plane_start(l, p, g);
        assert_true(start % 4096 == 0 && start >= l->control_bytes + (uint64_t)g * p->bytes);
        assert_true(start + p->bytes <= segment_bytes);
    }
}

static void check_shape(const afdep_shape_t *s)
{
    afdep_layout_t l;
    region_t ffn[16], attention[16];
    assert_int_equal(afdep_layout_init(&l, s), 0);
    int f = ffn_regions(ffn, &l, &l.ffn, s), a = attention_regions(attention, &l, &l.attention, s);
    check_ffn_offsets(ffn, f, &l, &l.ffn, s);
    check_attention_offsets(attention, a, &l, &l.attention, s);
    if (s->union_buffers) {
        f += attention_regions(ffn + f, &l, &l.ffn, s);
        a += ffn_regions(attention + a, &l, &l.attention, s);
        assert_true(l.ffn_bytes == l.attention_bytes);
    }
    check_apart(ffn, f, l.ffn.bytes);
    check_apart(attention, a, l.attention.bytes);
    check_segment(&l, &l.ffn, s, l.ffn_bytes);
    check_segment(&l, &l.attention, s, l.attention_bytes);
    assert_true(afdep_segment_bytes(&l, s, 0) == l.ffn_bytes);
    assert_true(afdep_segment_bytes(&l, s, s->ffn_ranks) == l.attention_bytes);
    assert_ptr_equal(afdep_plane_of(&l, s, s->ffn_ranks - 1), &l.ffn);
    assert_ptr_equal(afdep_plane_of(&l, s, s->ffn_ranks), &l.attention);
}

static void test_regions(void **state)
{
    (void)state;
    static const int topologies[][3] = { { 1, 1, 2 },  { 1, 1, 1 },  { 2, 3, 5 },   { 2, 4, 2 },  { 4, 20, 2 },
                                         { 8, 16, 4 }, { 2, 22, 2 }, { 3, 5, 1 },   { 7, 1, 8 },  { 4, 4, 8 },
                                         { 4, 20, 4 }, { 1, 13, 1 }, { 16, 48, 16 },
                                         /* the small regions larger than a page: */
                                         { 1024, 2048, 1024 }, { 300, 900, 1200 } };
    static const int capacities[] = { 1, 7, 8, 9, 191, 192, 193, 2048 };
    static const int sms[] = { 1, 2, 24 };
    for (size_t t = 0; t < sizeof(topologies) / sizeof(topologies[0]); t++)
        for (size_t k = 0; k < sizeof(capacities) / sizeof(capacities[0]); k++)
            for (size_t m = 0; m < 3; m++)
                for (int bits = 0; bits < 8; bits++) {
                    const int *topology = topologies[t];
                    afdep_shape_t s = shape_of(topology[0], topology[1], topology[2], bits & 1 ? 32 : 1, capacities[k],
                                               sms[m]);
                    s.fp8 = bits >> 1 & 1;
                    s.union_buffers = bits >> 2;
                    s.in_flight = 1 + (int)(t + k) % 4;
                    s.hidden = 256 * (1 + (int)(k % 3));
                    check_shape(&s);
                }
}

/* No two (source, channel, position), and no two (rail, source, token), share bytes: all of them, on a small shape. */
static void test_every_slot_is_its_own(void **state)
{
    (void)state;
    afdep_shape_t s = shape_of(2, 6, 2, 3, 19, 1);
    afdep_layout_t l;
    assert_int_equal(afdep_layout_init(&l, &s), 0);
    unsigned char *seen = calloc(1, (size_t)l.ffn.bytes / 128);
    assert_non_null(seen);
    for (int source = 0; source < 3; source++) {
        for (int c = 0; c < s.channels; c++)
            for (uint32_t position = 0; position < l.slots; position++)
                assert_int_equal(seen[afdep_at_rail_row(&l.ffn, &l, &s, source, c, (int)position) / 128]++, 0);
        for (int rail = 0; rail < 2; rail++)
            for (int token = 0; token < s.capacity; token++) {
                assert_int_equal(seen[afdep_at_domain_row(&l.ffn, &l, &s, rail, source, token) / 128]++, 0);
                assert_int_equal(seen[afdep_at_partial(&l.ffn, &l, &s, rail, source, token) / 128]++, 0);
            }
    }
    free(seen);
}

static void test_row_formats(void **state)
{
    (void)state;
    for (int hidden = 256; hidden <= 8192; hidden += 256)
        for (int k = 1; k <= 32; k++)
            for (int fp8 = 0; fp8 < 2; fp8++) {
                afdep_shape_t s = shape_of(1, 1, 1, k, 1, 1);
                s.hidden = hidden;
                s.fp8 = fp8;
                afdep_row_format_t f = afdep_row_format(&s);
                assert_int_equal(f.payload_bytes, fp8 ? hidden : 2 * hidden);
                assert_int_equal(f.scale_offset, f.payload_bytes);
                assert_int_equal(f.scale_bytes, fp8 ? hidden / 128 * 4 : 0);
                assert_true(f.tag_offset >= f.scale_offset + f.scale_bytes && f.tag_offset % 16 == 0);
                assert_true(f.ids_offset >= f.tag_offset + sizeof(afdep_row_tag_t) && f.ids_offset % 4 == 0);
                assert_true(f.weights_offset >= f.ids_offset + 4 * (uint32_t)k);
                assert_true(f.bytes >= f.weights_offset + 4 * (uint32_t)k && f.bytes % 16 == 0);
                assert_true(f.stride >= f.bytes && f.stride - f.bytes < 128 && f.stride % 128 == 0);
                assert_int_equal(f.reply_payload_bytes, 2 * hidden);
                assert_true(f.reply_tag_offset >= f.reply_payload_bytes && f.reply_tag_offset % 16 == 0);
                assert_true(f.reply_bytes >= f.reply_tag_offset + sizeof(afdep_row_tag_t));
                assert_true(f.reply_stride >= f.reply_bytes && f.reply_stride % 128 == 0);
            }
}

static void test_planes(void **state)
{
    (void)state;
    for (int g = 1; g <= 4; g++) {
        afdep_shape_t s = shape_of(2, 4, 2, 2, 8, 1);
        s.in_flight = g;
        for (uint64_t n = 1; n < 40; n++) {
            assert_int_equal(afdep_plane_index(&s, n), (int)((n - 1) % (uint64_t)g));
            /* The two entries alternate between one use of a plane and the next. */
            assert_int_equal(afdep_plane_parity(&s, n), !afdep_plane_parity(&s, n + (uint64_t)g));
        }
    }
}

static void test_ranks(void **state)
{
    (void)state;
    afdep_shape_t s = shape_of(4, 6, 2, 2, 8, 1);
    s.experts_per_rank = 3;
    s.num_experts = 12;
    for (int m = 0; m < 2; m++)
        for (int rail = 0; rail < 2; rail++) {
            int rank = afdep_ffn_rank(&s, m, rail);
            assert_true(afdep_is_ffn(&s, rank));
            assert_int_equal(afdep_domain_of(&s, rank), m);
            assert_int_equal(afdep_rail_of(&s, rank), rail);
        }
    for (int d = 0; d < 3; d++)
        for (int rail = 0; rail < 2; rail++) {
            int rank = afdep_source_rank(&s, d, rail);
            assert_false(afdep_is_ffn(&s, rank));
            assert_int_equal(afdep_source_domain(&s, rank), d);
            assert_int_equal(afdep_domain_of(&s, rank), 2 + d);
            assert_int_equal(afdep_rail_of(&s, rank), rail);
        }
    for (int e = 0; e < 12; e++) {
        assert_int_equal(afdep_expert_owner(&s, e), e / 3);
        assert_int_equal(afdep_expert_target(&s, e), e / 6);
    }
    s = shape_of(4, 6, 10, 2, 8, 1);
    s.experts_per_rank = 3;
    assert_int_equal(afdep_expert_target(&s, 11), 3);
}

/* Domains of both roles, or of ranks that are both: every rank has one place, and FFN ranks come first. */
static void test_shared_domains(void **state)
{
    (void)state;
    static const int topologies[][3] = {
        { 2, 6, 4 }, { 6, 18, 4 }, { 4, 2, 3 }, { 2, 2, 2 }, { 6, 2, 4 }, { 0, 8, 4 }
    };
    for (size_t t = 0; t < sizeof(topologies) / sizeof(topologies[0]); t++) {
        const int *topology = topologies[t];
        afdep_shape_t s = shape_of(topology[0], topology[1], topology[2], 2, 8, 1);
        int domains = s.ranks / s.ranks_per_domain, per_domain = topology[0] / domains, seen[32] = { 0 };
        s.protocol = AFDEP_PROTOCOL_UNION;
        s.ffn_domains = s.attention_domains = domains;
        for (int m = 0; m < domains; m++)
            for (int rail = 0, last = -1; rail < s.ranks_per_domain; rail++) {
                int rank = afdep_ffn_rank(&s, m, rail), symmetric = topology[0] == 0;
                assert_true(rank > last && rank < s.ranks); /* the order of sums and rows is that of rails */
                last = rank;
                seen[rank]++;
                assert_int_equal(afdep_domain_of(&s, rank), m);
                assert_int_equal(afdep_rail_of(&s, rank), rail);
                assert_int_equal(afdep_is_worker(&s, rank), symmetric || rail < per_domain);
                assert_int_equal(afdep_is_forwarder(&s, rank), symmetric || rail >= per_domain);
                assert_int_equal(afdep_is_source(&s, rank), symmetric || rail >= per_domain);
                if (afdep_is_worker(&s, rank))
                    assert_true(symmetric || rank < topology[0]);
                if (!afdep_is_source(&s, rank))
                    continue;
                assert_int_equal(afdep_source_rank(&s, m, rail), rank);
                assert_int_equal(afdep_source_domain(&s, rank), m);
            }
        for (int rank = 0; rank < s.ranks; rank++)
            assert_int_equal(seen[rank], 1);
        assert_int_equal(afdep_first_forwarder_rail(&s), per_domain);
        assert_int_equal(afdep_worker_rails(&s), per_domain ? per_domain : s.ranks_per_domain);
    }
}

/* A plane holds the regions of its rank's duties, apart from each other, and a peer finds them by duty. */
static void check_duties(const afdep_shape_t *s, int rank)
{
    afdep_layout_t l;
    region_t r[16];
    assert_int_equal(afdep_layout_init(&l, s), 0);
    const afdep_plane_layout_t *p = afdep_plane_of(&l, s, rank);
    uint64_t sd = (uint64_t)s->attention_domains, d = (uint64_t)s->ranks_per_domain, c = (uint64_t)s->channels;
    uint64_t tokens = d * sd * (uint64_t)s->capacity;
    int n = 0;
    if (afdep_is_worker(s, rank)) {
        r[n++] = (region_t){ "forward words", p->forward_words, 16 * d };
        r[n++] = (region_t){ "extents", p->extents, 4 * d * l.extent_stride };
        r[n++] = (region_t){ "domain inbox", p->domain_inbox, tokens * l.row.stride };
        assert_memory_equal(p, afdep_worker_plane(&l), sizeof(*p));
    }
    if (afdep_is_forwarder(s, rank)) {
        r[n++] = (region_t){ "count words", p->count_words, 8 * sd };
        r[n++] = (region_t){ "finish tails", p->finish_tails, 8 * sd * c };
        r[n++] = (region_t){ "reply words", p->reply_words, 8 * d };
        r[n++] = (region_t){ "rail inbox", p->inbox, sd * c * l.slots * l.row.stride };
        r[n++] = (region_t){ "partials", p->partials, tokens * l.row.reply_stride };
        if (!afdep_is_worker(s, rank))
            r[n++] = (region_t){ "rail answers", p->rail_answers, 8 * d };
        assert_memory_equal(p, afdep_forwarder_plane(&l, s), sizeof(*p));
    }
    if (afdep_is_source(s, rank)) {
        n += attention_regions(r + n, &l, p, s);
        assert_memory_equal(p, afdep_source_plane(&l), sizeof(*p));
    }
    if (s->entry_barrier)
        r[n++] = (region_t){ "barrier words", p->barrier_words, 8 * (d + sd) };
    check_apart(r, n, p->bytes);
    check_segment(&l, p, s, afdep_segment_bytes(&l, s, rank));
}

static void test_duties(void **state)
{
    (void)state;
    for (int bits = 0; bits < 16; bits++) {
        afdep_shape_t s = bits & 1 ? shape_of(0, 24, 4, 3, 19, 1) : shape_of(6, 18, 4, 3, 19, 1);
        s.protocol = bits & 2 && !(bits & 1) ? AFDEP_PROTOCOL_MIXED : AFDEP_PROTOCOL_UNION;
        s.ffn_domains = s.attention_domains = 6;
        s.entry_barrier = bits & 1 ? bits >> 1 & 1 : 0;
        s.in_flight = bits & 4 ? 2 : 1;
        s.union_buffers = bits >> 3;
        for (int rank = 0; rank < s.ranks; rank++)
            check_duties(&s, rank);
    }
}

static void test_receive_rows(void **state)
{
    (void)state;
    afdep_shape_t s = shape_of(2, 22, 2, 8, 2048, 24);
    assert_true(afdep_receive_rows(&s, 2048) == 22 * 2048 * 8);
    s.experts_per_rank = 3; /* a token meets each of them at most once */
    assert_true(afdep_receive_rows(&s, 2048) == 22 * 2048 * 3);
    s.expert_alignment = 128;
    assert_true(afdep_receive_rows(&s, 1) == 22 * 3 + 3 * 127);
    s.attention_ranks = 1000000; /* beyond 32 bits, not wrapped */
    s.expert_alignment = 1;
    assert_true(afdep_receive_rows(&s, 1 << 24) == (int64_t)1000000 * (1 << 24) * 3);
    /* It is a bound: padding of every expert at its worst. */
    s = shape_of(1, 1, 2, 2, 4, 1);
    s.experts_per_rank = 2;
    s.expert_alignment = 4;
    for (int a = 0; a <= 4; a++)
        for (int b = 0; b <= 4; b++)
            assert_true((a + 3) / 4 * 4 + (b + 3) / 4 * 4 <= afdep_receive_rows(&s, 4));
}

static void test_overflow_is_refused(void **state)
{
    (void)state;
    afdep_layout_t l;
    afdep_shape_t s = shape_of(2, 2, 2, 32, INT32_MAX, 1024);
    s.hidden = 1 << 20;
    s.in_flight = 4;
    assert_int_equal(afdep_layout_init(&l, &s), 0); /* large, but it can be counted */
    assert_true(l.ffn_bytes > (uint64_t)1 << 52);
    s = shape_of(1 << 20, 1 << 20, 1 << 20, 32, INT32_MAX, 1024);
    s.hidden = 1 << 20;
    assert_int_not_equal(afdep_layout_init(&l, &s), 0);
    s = shape_of(1 << 20, 1 << 20, 1 << 21, 32, INT32_MAX, 1024);
    s.hidden = 1 << 20;
    assert_int_not_equal(afdep_layout_init(&l, &s), 0);
    /* The plane of one role alone does not fit. */
    s = shape_of(1 << 20, 1, (1 << 20) + 1, 32, INT32_MAX, 1024);
    s.hidden = 1 << 20;
    assert_int_not_equal(afdep_layout_init(&l, &s), 0);
    s = shape_of(1, 1 << 20, (1 << 20) + 1, 32, INT32_MAX, 1024);
    s.hidden = 1 << 20;
    assert_int_not_equal(afdep_layout_init(&l, &s), 0);
    /* One plane fits into 63 bits, four do not. */
    s = shape_of(2, 1 << 10, 2, 32, 1 << 21, 1);
    s.hidden = 1 << 20;
    s.attention_domains = 1 << 18;
    s.in_flight = 1;
    assert_int_equal(afdep_layout_init(&l, &s), 0);
    for (s.in_flight = 2; s.in_flight <= 4; s.in_flight++) /* beyond 63 bits, beyond 64 */
        assert_int_not_equal(afdep_layout_init(&l, &s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regions),      cmocka_unit_test(test_every_slot_is_its_own),
        cmocka_unit_test(test_row_formats),  cmocka_unit_test(test_planes),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_shared_domains),
        cmocka_unit_test(test_duties),        cmocka_unit_test(test_receive_rows),
        cmocka_unit_test(test_overflow_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
