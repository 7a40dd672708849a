/* SPDX-License-Identifier: Apache-2.0 */
/* From what kernels recorded to statuses and sentences. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "cuda/cuda.h"
#include "protocol/word.h"

static const char *call_name(uint32_t call)
{
    static const char *const names[] = { "source_dispatch", "worker_receive", "worker_reply", "source_collect",
                                         "ll_dispatch", "ll_combine" };
    return call < sizeof(names) / sizeof(names[0]) ? names[call] : "a call";
}

static const char *word_name(uint32_t word)
{
    static const char *const names[] = { "the answer to an earlier exchange", "the route word", "the row word",
                                         "the position of a row",            "the combine word", "the failure word",
                                         "the done witness of an earlier exchange", "the count word", "the finish tail",
                                         "the forward word",                 "the reply word",   "the combine tail",
                                         "a row",                            "rows",             "the count word",
                                         "the route word",                   "the header",       "the weight word" };
    _Static_assert(sizeof(names) / sizeof(names[0]) == AFDEP_CUDA_WORD_WEIGHT + 1, "a name for every word");
    return word < sizeof(names) / sizeof(names[0]) ? names[word] : "a word";
}

/* What the record's piece is of depends on the word: a choice has a slot, a row pieces, and so have partials in lines. */
static void place_of(const afdep_cuda_record_t *r, char *text, size_t size)
{
    int used = 0;
    text[0] = '\0';
    if (r->token >= 0)
        used = snprintf(text, size, ", token %d", r->token);
    int slot = r->word == AFDEP_CUDA_WORD_ROUTE || r->word == AFDEP_CUDA_WORD_WEIGHT;
    int channel = r->word >= AFDEP_CUDA_WORD_WITNESS && r->word <= AFDEP_CUDA_WORD_BUCKET &&
                  (r->token < 0 || r->word == AFDEP_CUDA_WORD_TAG);
    if (r->piece >= 0)
        snprintf(text + used, size - (size_t)used, ", %s %d", slot ? "slot" : channel ? "channel" : "piece", r->piece);
}

static afdep_status_t fail_peer(const afdep_cuda_record_t *r)
{
    afdep_status_t status = (afdep_status_t)-(int)afdep_word_high(r->seen);
    int culprit = (int)afdep_word_low(r->seen) - 1;
    if (status == AFDEP_ERR_PEER && culprit >= 0)
        return afdep_fail(AFDEP_ERR_PEER, "rank %d is dead, says rank %d", culprit, r->peer);
    if (culprit >= 0)
        return afdep_fail(AFDEP_ERR_PEER, "rank %d gave up with %s about rank %d", r->peer, afdep_status_string(status),
                          culprit);
    return afdep_fail(AFDEP_ERR_PEER, "rank %d gave up with %s", r->peer, afdep_status_string(status));
}

/* A deadline means a dead rank where there is one, as only the host can tell. */
static afdep_status_t fail_late(const afdep_cuda_t *c, const afdep_cuda_record_t *r, const char *place)
{
    char verdict[96];
    afdep_status_t status = AFDEP_ERR_TIMEOUT;
    snprintf(verdict, sizeof(verdict), "nothing came in %d ms though all ranks live", c->settings->timeout_ms);
    for (int peer = 0; peer < c->shape->ranks && status == AFDEP_ERR_TIMEOUT; peer++)
        if (peer != c->rank && !c->fabric->alive(c->fabric, peer)) {
            snprintf(verdict, sizeof(verdict), "rank %d is dead", peer);
            status = AFDEP_ERR_PEER;
        }
    return afdep_fail(status, "%s: rank %d in %s of exchange %llu%s waited for %s of rank %d, which holds 0x%llx in place of "
                      "0x%llx", verdict, c->rank, call_name(r->call), (unsigned long long)r->exchange, place,
                      word_name(r->word), r->peer, (unsigned long long)r->seen, (unsigned long long)r->expected);
}

/* What a rank of a low-latency dispatch was given otherwise than this one. */
static afdep_status_t fail_header(const afdep_cuda_t *c, const afdep_cuda_record_t *r)
{
    static const char *const names[] = { "num_max_dispatch_tokens_per_rank", "num_experts", "hidden", "num_topk", "format" };
    if (r->piece >= 0 && r->piece < (int)(sizeof(names) / sizeof(names[0])))
        return afdep_fail(AFDEP_ERR_PROTOCOL,
                          "exchange %llu: rank %d dispatched with %s %llu and rank %d with %llu: all ranks of an exchange must "
                          "be given the same", (unsigned long long)r->exchange, r->peer, names[r->piece],
                          (unsigned long long)r->seen, c->rank, (unsigned long long)r->expected);
    if (r->piece == 5)
        return afdep_fail(AFDEP_ERR_PROTOCOL, "exchange %llu: the header of rank %d says %llu tokens",
                          (unsigned long long)r->exchange, r->peer, (unsigned long long)r->seen);
    return afdep_fail(AFDEP_ERR_PROTOCOL,
                      "exchange %llu: rank %d dispatched without topk_weights and rank %d wants to receive them",
                      (unsigned long long)r->exchange, r->peer, c->rank);
}

static afdep_status_t fail_record(const afdep_cuda_t *c, const afdep_cuda_record_t *r)
{
    char place[64];
    place_of(r, place, sizeof(place));
    if (r->word == AFDEP_CUDA_WORD_FAILURE)
        return fail_peer(r);
    if (r->status == (uint32_t)-AFDEP_ERR_TIMEOUT)
        return fail_late(c, r, place);
    if (r->word == AFDEP_CUDA_WORD_CACHED)
        return afdep_fail(AFDEP_ERR_PROTOCOL,
                          "rank %d in %s of exchange %llu%s: the routing of rank %d is not that of the exchange before, whose ids "
                          "were said to be used again, here or there", c->rank, call_name(r->call),
                          (unsigned long long)r->exchange, place, r->peer);
    if (r->word == AFDEP_CUDA_WORD_ROUTE && (uint32_t)r->seen == afdep_route_cached((int32_t)r->expected) &&
        afdep_word_high(r->seen) == (uint32_t)r->exchange)
        return afdep_fail(AFDEP_ERR_PROTOCOL,
                          "rank %d in %s of exchange %llu: the ids of rank %d were said to be used again there, and this receive was "
                          "not told so", c->rank, call_name(r->call), (unsigned long long)r->exchange,
                          r->peer);
    if (r->word == AFDEP_CUDA_WORD_HEADER)
        return fail_header(c, r);
    if (r->word == AFDEP_CUDA_WORD_ROUTE && afdep_word_high(r->seen) == (uint32_t)r->exchange)
        return afdep_fail(AFDEP_ERR_PROTOCOL,
                          "rank %d in %s of exchange %llu: rank %d sent for another bucket than the %llu here: all ranks of "
                          "an exchange must be given the same bucket", c->rank, call_name(r->call),
                          (unsigned long long)r->exchange, r->peer, (unsigned long long)r->expected);
    if (r->word == AFDEP_CUDA_WORD_TAG)
        return afdep_fail(AFDEP_ERR_PROTOCOL,
                          "rank %d in %s of exchange %llu%s: a row of rank %d is not there: its place holds exchange %u, token %u",
                          c->rank, call_name(r->call), (unsigned long long)r->exchange, place, r->peer,
                          afdep_word_high(r->seen), afdep_word_low(r->seen));
    if (r->word == AFDEP_CUDA_WORD_ROWS)
        return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d in %s of exchange %llu: rank %d sent %llu rows, %llu are there", c->rank,
                          call_name(r->call), (unsigned long long)r->exchange, r->peer, (unsigned long long)r->expected,
                          (unsigned long long)r->seen);
    if (r->word == AFDEP_CUDA_WORD_BUCKET)
        return afdep_fail(AFDEP_ERR_PROTOCOL,
                          "rank %d in %s of exchange %llu%s: rank %d sent %u tokens, more than the bucket here: all ranks of an "
                          "exchange must be given the same bucket", c->rank, call_name(r->call),
                          (unsigned long long)r->exchange, place, r->peer, afdep_word_low(r->seen));
    return afdep_fail((afdep_status_t)-(int)r->status, "rank %d in %s of exchange %llu%s: %s of rank %d holds 0x%016llx",
                      c->rank, call_name(r->call), (unsigned long long)r->exchange, place, word_name(r->word), r->peer,
                      (unsigned long long)r->seen);
}

afdep_status_t afdep_cuda_poison(afdep_cuda_t *c, afdep_status_t status)
{
    if (c->poison == AFDEP_OK) {
        c->poison = status;
        snprintf(c->poison_why, sizeof(c->poison_why), "%s", afdep_last_error());
        afdep_log(AFDEP_LOG_WARN, "rank %d: the buffer is poisoned: %s", c->rank, c->poison_why);
    }
    return status;
}

afdep_status_t afdep_cuda_look(afdep_cuda_t *c)
{
    if (c->poison == AFDEP_OK && __atomic_load_n(&c->record->ready, __ATOMIC_ACQUIRE))
        (void)afdep_cuda_poison(c, fail_record(c, c->record));
    return c->poison == AFDEP_OK ? AFDEP_OK : afdep_fail(c->poison, "%s", c->poison_why);
}

afdep_status_t afdep_cuda_check_call(afdep_cuda_t *c)
{
    if (afdep_cuda_look(c) == AFDEP_OK)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_POISONED, "the buffer failed before: %s: %s", afdep_status_string(c->poison),
                      c->poison_why);
}

afdep_status_t afdep_cuda_look_route(afdep_cuda_t *c)
{
    uint64_t exchange = __atomic_load_n(&c->record->route_exchange, __ATOMIC_ACQUIRE);
    if (exchange == 0 || exchange == c->told_route)
        return AFDEP_OK;
    uint64_t route = __atomic_load_n(&c->record->route, __ATOMIC_RELAXED);
    int token = (int)(route >> 39), slot = (int)(route >> 33 & 63), repeated = (int)(route >> 32 & 1);
    const char *call = c->low_latency ? "ll_dispatch" : "source_dispatch";
    if (repeated)
        return afdep_fail(AFDEP_ERR_ROUTE, "%s of exchange %llu: token %d, slot %d: expert %d is repeated; taken as -1", call,
                          (unsigned long long)exchange, token, slot, (int)(uint32_t)route);
    return afdep_fail(AFDEP_ERR_ROUTE, "%s of exchange %llu: token %d, slot %d: expert %d is outside 0 to %d; taken as -1", call,
                      (unsigned long long)exchange, token, slot, (int)(uint32_t)route, c->shape->num_experts - 1);
}
