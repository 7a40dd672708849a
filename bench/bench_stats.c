/* SPDX-License-Identifier: Apache-2.0 */
/* The reservoir and the order statistics. */
#include "bench/bench_stats.h"

#include <math.h>

#include "bench/lib/stats.h"

void afdep_reservoir_init(afdep_reservoir_t *reservoir, uint64_t seed)
{
    reservoir->seen = 0;
    reservoir->kept = 0;
    reservoir->state = seed;
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

void afdep_reservoir_add(afdep_reservoir_t *reservoir, int64_t start_ns, int64_t took_ns)
{
    uint64_t place = reservoir->seen++;
    if (place >= AFDEP_BENCH_SAMPLES_MAX)
        place = next_random(&reservoir->state) % reservoir->seen;
    else
        reservoir->kept++;
    if (place >= AFDEP_BENCH_SAMPLES_MAX)
        return;
    reservoir->start_ns[place] = start_ns;
    reservoir->took_ns[place] = took_ns;
}

afdep_summary_t afdep_summarize(double *values, int count)
{
    afdep_summary_t summary = { NAN, NAN, NAN, NAN };
    if (count < 1)
        return summary;
    summary.median = afdep_median(values, count); /* sorts them */
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    int p99 = (int)(((int64_t)count * 99 + 99) / 100);
    summary.min = values[0];
    summary.mean = sum / count;
    summary.p99 = values[p99 - 1];
    return summary;
}
