/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts per exchange. A rank counts what it sends to each peer, so what an FFN rank received in dispatch is the sum
 * over the Attention ranks of what they sent it. Words and rows inside an FFN domain cross no rail and stay out. Where
 * Attention ranks receive too, every rank is counted, with all its peers but itself.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_measure.h"

#include <stdlib.h>
#include <string.h>

enum { PUTS, BYTES, FINISH, COUNT, PROGRESS, COMBINE, WITNESS, KINDS };

void afdep_bench_count(afdep_bench_rank_t *rank, afdep_counters_t *counters)
{
    for (int peer = 0; peer < rank->world->size; peer++) {
        counters[peer].struct_size = sizeof(counters[peer]);
        afdep_bench_must(rank, rank->ops->counters(rank->path, peer, &counters[peer]), "counters");
    }
}

static void difference(uint64_t *sent, const afdep_counters_t *before, const afdep_counters_t *after)
{
    sent[PUTS] = after->puts - before->puts;
    sent[BYTES] = after->put_bytes - before->put_bytes;
    sent[FINISH] = after->finish_tails - before->finish_tails;
    sent[COUNT] = after->count_words - before->count_words;
    sent[PROGRESS] = after->progress_tails - before->progress_tails;
    sent[COMBINE] = after->combines - before->combines;
    sent[WITNESS] = after->witnesses - before->witnesses;
}

/* What rank `f` received of the ranks from `first` on in dispatch, and sent them in combine; rows both ways. `all` is
   [sender][receiver][KINDS]. */
static void at_rank(uint64_t *sum, const uint64_t *all, int f, int first, int size)
{
    memset(sum, 0, KINDS * sizeof(*sum));
    for (int peer = first; peer < size; peer++) {
        const uint64_t *in = all + ((size_t)peer * (size_t)size + (size_t)f) * KINDS;
        const uint64_t *out = all + ((size_t)f * (size_t)size + (size_t)peer) * KINDS;
        for (int kind = 0; peer != f && kind < KINDS; kind++)
            sum[kind] += (kind == COMBINE || kind == WITNESS ? 0 : in[kind]) +
                         (kind == FINISH || kind == COUNT || kind == PROGRESS ? 0 : out[kind]);
    }
}

int afdep_bench_counts_all_ranks(const afdep_bench_plan_t *plan)
{
    return plan->config.ffn_ranks == 0 || afdep_scenario_shares_domains(&plan->scenario);
}

static uint64_t signals_of(const uint64_t *sum)
{
    return sum[FINISH] + sum[COUNT] + sum[PROGRESS] + sum[COMBINE] + sum[WITNESS];
}

static int busier(const uint64_t *sum, const uint64_t *than)
{
    uint64_t a = signals_of(sum), b = signals_of(than);
    return a != b ? a > b : sum[BYTES] > than[BYTES];
}

/* What each rank received and sent, of whichever peer and kind. */
static void by_rank(const uint64_t *all, int size, double exchanges, double *in, double *out)
{
    for (int sender = 0; sender < size; sender++)
        for (int receiver = 0; receiver < size; receiver++) {
            double n = (double)signals_of(all + ((size_t)sender * (size_t)size + (size_t)receiver) * KINDS) / exchanges;
            out[sender] += n;
            in[receiver] += n;
        }
}

void afdep_bench_counts(afdep_bench_rank_t *rank, const afdep_counters_t *before, const afdep_counters_t *after,
                        int64_t exchanges, afdep_bench_counts_t *counts)
{
    int size = rank->world->size, every = afdep_bench_counts_all_ranks(rank->plan);
    int counted = every ? size : rank->plan->scenario.ffn_ranks, first = every ? 0 : counted;
    size_t row = (size_t)size * KINDS;
    uint64_t *sent = malloc(row * sizeof(*sent)), *all = malloc((size_t)size * row * sizeof(*all));
    counts->in = calloc((size_t)size, sizeof(double));
    counts->out = calloc((size_t)size, sizeof(double));
    if (!sent || !all || !counts->in || !counts->out)
        afdep_bench_fatal(rank, "counters", "no memory for the counters of all ranks");
    for (int peer = 0; peer < size; peer++)
        difference(sent + (size_t)peer * KINDS, &before[peer], &after[peer]);
    afdep_world_allgather(rank->world, sent, all, row * sizeof(*sent));
    uint64_t busiest[KINDS], sum[KINDS], bytes = 0;
    at_rank(busiest, all, 0, first, size);
    for (int f = 1; f < counted; f++) {
        at_rank(sum, all, f, first, size);
        if (busier(sum, busiest))
            memcpy(busiest, sum, sizeof(busiest));
    }
    for (size_t pair = 0; pair < (size_t)size * (size_t)size; pair++)
        bytes += all[pair * KINDS + BYTES];
    double n = exchanges > 0 ? (double)exchanges : 1;
    counts->finish_tail = (double)busiest[FINISH] / n;
    counts->count_word = (double)busiest[COUNT] / n;
    counts->progress_tail = (double)busiest[PROGRESS] / n;
    counts->combine = (double)busiest[COMBINE] / n;
    counts->witness = (double)busiest[WITNESS] / n;
    counts->total = (double)signals_of(busiest) / n;
    counts->puts = (double)busiest[PUTS] / n;
    counts->bytes = (double)busiest[BYTES] / n;
    counts->all_bytes = (double)bytes / n;
    by_rank(all, size, n, counts->in, counts->out);
    free(all);
    free(sent);
}
