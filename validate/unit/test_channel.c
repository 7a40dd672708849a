/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel arithmetic against counting by hand, for every source of up to 13 domains, up to 192 channels and token
 * counts beyond two rounds of them; and the words: halves that wrap by themselves, tags that are this exchange's, the
 * one before, or broken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "protocol/channel.h"
#include "protocol/word.h"

#define MOST_CHANNELS 192

static afdep_shape_t shape_of(int domains, int channels, int stagger)
{
    afdep_shape_t s = { 0 };
    s.protocol = AFDEP_PROTOCOL_DIRECTIONAL;
    s.attention_domains = domains;
    s.channels = channels;
    s.num_sms = channels / 8;
    s.stagger = stagger;
    s.capacity = 1;
    return s;
}

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition))                                                                                             \
            fail_msg("%s: source %d of %d domains, %d channels, stagger %d, %d tokens", #condition, source,           \
                     s->attention_domains, s->channels, s->stagger, tokens);                                          \
    } while (0)

/* What was counted by hand for the first `tokens` tokens: how many ride each channel, and the first of them. */
typedef struct tally {
    int count[MOST_CHANNELS], first[MOST_CHANNELS];
    int most;
} tally_t;

static void check_tally(const afdep_shape_t *s, int source, int tokens, const tally_t *tally)
{
    int total = 0, rounds = (tokens + s->channels - 1) / s->channels;
    for (int c = 0; c < s->channels; c++) {
        int n = afdep_channel_tokens(s, source, tokens, c), first = afdep_channel_first(s, source, c);
        CHECK(n == tally->count[c]);
        CHECK(n <= rounds);
        CHECK(n == 0 ? first >= tokens : first == tally->first[c]);
        CHECK(first >= 0 && first < s->channels);
        total += n;
    }
    CHECK(total == tokens);
    afdep_shape_t sized = *s;
    sized.capacity = tokens > 0 ? tokens : 1;
    CHECK(afdep_channel_slots(&sized) >= tally->most);
    CHECK(afdep_channel_slots(&sized) == (tokens > 0 ? rounds : 1));
}

/* Token counts at which all channels are looked at; between them, the one channel that changed. */
static int is_edge(int tokens, int channels)
{
    int distance = tokens % channels;
    return tokens < 12 || distance < 3 || distance > channels - 3 || tokens % 13 == 0;
}

static void check_source(const afdep_shape_t *s, int source)
{
    tally_t tally;
    memset(&tally, 0, sizeof(tally));
    check_tally(s, source, 0, &tally);
    for (int tokens = 1; tokens <= 2 * s->channels + 3; tokens++) {
        int token = tokens - 1, c = afdep_channel_of(s, source, token);
        CHECK(c >= 0 && c < s->channels);
        /* In order on the channel: the one before it came C tokens earlier. */
        CHECK(token < s->channels || c == afdep_channel_of(s, source, token - s->channels));
        if (tally.count[c]++ == 0)
            tally.first[c] = token;
        if (tally.count[c] > tally.most)
            tally.most = tally.count[c];
        CHECK(afdep_channel_tokens(s, source, tokens, c) == tally.count[c]);
        CHECK(afdep_channel_first(s, source, c) == tally.first[c]);
        if (is_edge(tokens, s->channels))
            check_tally(s, source, tokens, &tally);
    }
}

static void test_every_token_on_one_channel(void **state)
{
    (void)state;
    for (int domains = 1; domains <= 13; domains++)
        for (int channels = 8; channels <= MOST_CHANNELS; channels += 8)
            for (int stagger = 0; stagger < 2; stagger++) {
                afdep_shape_t s = shape_of(domains, channels, stagger);
                for (int source = 0; source < domains; source++)
                    check_source(&s, source);
            }
}

static void test_stagger_spreads_the_bases(void **state)
{
    (void)state;
    for (int domains = 1; domains <= 192; domains++)
        for (int channels = 8; channels <= MOST_CHANNELS; channels += 8) {
            afdep_shape_t on = shape_of(domains, channels, 1), off = shape_of(domains, channels, 0);
            for (int source = 0; source < domains; source++) {
                int base = afdep_channel_base(&on, source);
                assert_int_equal(base, source * channels / domains);
                assert_in_range(base, 0, channels - 1);
                assert_int_equal(afdep_channel_base(&off, source), 0);
                if (source > 0 && domains <= channels)
                    assert_true(base > afdep_channel_base(&on, source - 1));
            }
        }
}

static void test_large_numbers_do_not_overflow(void **state)
{
    (void)state;
    afdep_shape_t s = shape_of(1 << 20, 8192, 1);
    s.capacity = INT32_MAX;
    int source = (1 << 20) - 1, base = afdep_channel_base(&s, source);
    assert_int_equal(base, 8191);
    assert_int_equal(afdep_channel_of(&s, source, INT32_MAX), (int)(((int64_t)base + INT32_MAX) % 8192));
    assert_int_equal(afdep_channel_tokens(&s, source, INT32_MAX, base), 262144);
    assert_int_equal(afdep_channel_tokens(&s, source, INT32_MAX, base - 1), 262143);
    assert_int_equal(afdep_channel_slots(&s), 262144);
}

/* ---- Words --------------------------------------------------------------------------------------------------- */

static void test_halves_wrap_by_themselves(void **state)
{
    (void)state;
    assert_true(afdep_word(0x12345678u, 0x9ABCDEF0u) == 0x123456789ABCDEF0u);
    assert_int_equal(afdep_word_high(0x123456789ABCDEF0u), 0x12345678u);
    assert_int_equal(afdep_word_low(0x123456789ABCDEF0u), 0x9ABCDEF0u);
    static const uint32_t starts[] = { 0, 1, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFEu, 0xFFFFFFFFu };
    for (int h = 0; h < 6; h++)
        for (int l = 0; l < 6; l++)
            for (uint32_t finishes = 0; finishes < 3; finishes++)
                for (int t = 0; t < 6; t++) {
                    uint64_t before = afdep_word(starts[h], starts[l]);
                    uint64_t after = afdep_tail_advance(before, finishes, starts[t]);
                    /* A carry out of the token half would read as one finish more. */
                    assert_int_equal(afdep_tail_finishes(before, after), finishes);
                    assert_int_equal(afdep_tail_tokens(before, after), starts[t]);
                    assert_int_equal(afdep_word_high(after), (uint32_t)(starts[h] + finishes));
                }
}

static void test_tags(void **state)
{
    (void)state;
    static const uint32_t exchanges[] = { 1, 2, 7, 0x80000000u, 0xFFFFFFFFu, 0 };
    for (int e = 0; e < 6; e++)
        for (uint32_t step = 1; step <= 8; step++)
            for (int32_t offset = -20; offset <= 20; offset++) {
                uint32_t tag = exchanges[e] + (uint32_t)offset;
                afdep_word_state_t want = offset == 0               ? AFDEP_WORD_READY
                                          : offset == -(int32_t)step ? AFDEP_WORD_WAIT
                                                                     : AFDEP_WORD_BROKEN;
                /* Whatever the value: a full low half must not reach the tag. */
                assert_int_equal(afdep_tag_state(afdep_word(tag, 0), exchanges[e], step), want);
                assert_int_equal(afdep_tag_state(afdep_word(tag, 0xFFFFFFFFu), exchanges[e], step), want);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_on_one_channel), cmocka_unit_test(test_stagger_spreads_the_bases),
        cmocka_unit_test(test_large_numbers_do_not_overflow), cmocka_unit_test(test_halves_wrap_by_themselves),
        cmocka_unit_test(test_tags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
