/* SPDX-License-Identifier: Apache-2.0 */
/* Staged calls of a build without CUDA: there are none. */
#include "validate/staged.h"

#include <stdio.h>

static afdep_status_t refuse(void)
{
    return AFDEP_ERR_UNSUPPORTED;
}

const char *afdep_staged_why(void)
{
    return "this build has no CUDA backend";
}

void afdep_staged_begin(int threads)
{
    (void)threads;
}

void afdep_staged_use_device(int rank)
{
    (void)rank;
}

afdep_staged_t *afdep_staged_create(const afdep_scenario_t *c, int rank, int bucket, char *why, size_t why_size)
{
    (void)c, (void)rank, (void)bucket;
    snprintf(why, why_size, "%s", afdep_staged_why());
    return NULL;
}

void afdep_staged_destroy(afdep_staged_t *s)
{
    (void)s;
}

afdep_status_t afdep_staged_record_calls(afdep_staged_t *s, afdep_buffer_t *buffer, const afdep_staged_calls_t *calls)
{
    (void)s, (void)buffer, (void)calls;
    return refuse();
}

void afdep_staged_run_eager(afdep_staged_t *s, int eager)
{
    (void)s, (void)eager;
}

afdep_status_t afdep_staged_dispatch(afdep_staged_t *s, afdep_buffer_t *buffer, const afdep_dispatch_t *d)
{
    (void)s, (void)buffer, (void)d;
    return refuse();
}

afdep_status_t afdep_staged_complete(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    (void)s, (void)buffer;
    return refuse();
}

afdep_status_t afdep_staged_receive(afdep_staged_t *s, afdep_buffer_t *buffer, afdep_receive_t *r)
{
    (void)s, (void)buffer, (void)r;
    return refuse();
}

afdep_status_t afdep_staged_reply(afdep_staged_t *s, afdep_buffer_t *buffer, const afdep_reply_t *reply)
{
    (void)s, (void)buffer, (void)reply;
    return refuse();
}

afdep_status_t afdep_staged_collect(afdep_staged_t *s, afdep_buffer_t *buffer, afdep_collect_t *c)
{
    (void)s, (void)buffer, (void)c;
    return refuse();
}

afdep_status_t afdep_staged_enqueue_first(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    (void)s, (void)buffer;
    return refuse();
}

afdep_status_t afdep_staged_enqueue_second(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    (void)s, (void)buffer;
    return refuse();
}

afdep_status_t afdep_staged_record(afdep_staged_t *s, afdep_buffer_t *buffer, const afdep_staged_run_t *run)
{
    (void)s, (void)buffer, (void)run;
    return refuse();
}

afdep_status_t afdep_staged_replay(afdep_staged_t *s, afdep_buffer_t *buffer, int times, double *us)
{
    (void)s, (void)buffer, (void)times, (void)us;
    return refuse();
}
