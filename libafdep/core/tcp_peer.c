/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meeting from the side of ranks 1 .. size-1: connect to rank 0 until it is there, prove the token, have rank 0
 * prove it too, and wait for everybody. Whatever answers at the address without proof is no rank 0, and is tried again
 * until the deadline; a refusal that rank 0 has reason for is final.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/tcp_group.h"

/* An attempt that gets no answer is given up after this long, since rank 0 may have lost it. */
#define ATTEMPT_MS 5000
#define FIRST_PAUSE_MS 10
#define LONGEST_PAUSE_MS 250

typedef enum afdep_tcp_outcome { ADMITTED, TRY_AGAIN, REFUSED } afdep_tcp_outcome_t;

typedef struct afdep_tcp_attempt {
    afdep_tcp_group_t *group;
    const uint8_t *job_key;
    int64_t deadline;
    int fd;
    afdep_tcp_transcript_t transcript;
    afdep_status_t status; /* of a refusal */
    char why[256];         /* it failed */
} afdep_tcp_attempt_t;

static afdep_tcp_outcome_t try_again(afdep_tcp_attempt_t *attempt, const char *what, int error)
{
    snprintf(attempt->why, sizeof attempt->why, "%s%s%s", what, error != 0 ? ": " : "",
             error != 0 ? strerror(error) : "");
    return TRY_AGAIN;
}

static afdep_tcp_outcome_t refuse(afdep_tcp_attempt_t *attempt, afdep_status_t status, const char *what)
{
    attempt->status = status;
    snprintf(attempt->why, sizeof attempt->why, "%s", what);
    return REFUSED;
}

/* Says hello and answers the challenge. */
static afdep_tcp_outcome_t prove(afdep_tcp_attempt_t *attempt)
{
    uint8_t hello[AFDEP_TCP_HELLO_BYTES], challenge[AFDEP_TCP_CHALLENGE_BYTES], proof[AFDEP_TCP_PROOF_BYTES];
    afdep_tcp_transcript_t *transcript = &attempt->transcript;
    transcript->rank = (uint32_t)attempt->group->rank;
    transcript->size = (uint32_t)attempt->group->size;
    if (!afdep_random_bytes(transcript->nonce, sizeof transcript->nonce))
        return refuse(attempt, AFDEP_ERR_SYSTEM, "the system has no random bytes");
    afdep_tcp_encode_hello(transcript, hello);
    int error = afdep_tcp_write_whole(attempt->fd, hello, sizeof hello, attempt->deadline);
    if (error == 0)
        error = afdep_tcp_read_whole(attempt->fd, challenge, sizeof challenge, attempt->deadline);
    if (error != 0)
        return try_again(attempt, "what answers there sent no challenge", error);
    if (!afdep_tcp_decode_challenge(challenge, transcript))
        return try_again(attempt, "what answers there is no rank 0 of this version", 0);
    if (!afdep_tcp_derive(attempt->job_key, AFDEP_TCP_LABEL_PROOF, 0, transcript, proof))
        return refuse(attempt, AFDEP_ERR_SYSTEM, "libcrypto refused HMAC-SHA256");
    error = afdep_tcp_write_whole(attempt->fd, proof, sizeof proof, attempt->deadline);
    return error == 0 ? ADMITTED : try_again(attempt, "what answers there took no proof", error);
}

static afdep_tcp_outcome_t refused_by_root(afdep_tcp_attempt_t *attempt, uint32_t verdict)
{
    char text[128];
    switch (verdict) {
    case AFDEP_TCP_WRONG_PROOF:
        return refuse(attempt, AFDEP_ERR_BOOTSTRAP, "the job tokens differ");
    case AFDEP_TCP_WRONG_SIZE:
        snprintf(text, sizeof text, "rank 0 counts %u ranks, this rank counts %d", attempt->transcript.root_size,
                 attempt->group->size);
        return refuse(attempt, AFDEP_ERR_BOOTSTRAP, text);
    case AFDEP_TCP_TAKEN_RANK:
        return refuse(attempt, AFDEP_ERR_BOOTSTRAP, "another process came as this rank before");
    default:
        return refuse(attempt, AFDEP_ERR_BOOTSTRAP, "rank 0 does not know such a rank");
    }
}

/* Reads rank 0's verdict, which is also its proof. Only "wrong proof" comes unsigned: who cannot check this rank's
   proof cannot be expected to prove anything. */
static afdep_tcp_outcome_t hear_verdict(afdep_tcp_attempt_t *attempt)
{
    uint8_t verdict[AFDEP_TCP_VERDICT_BYTES], proof[AFDEP_HMAC_BYTES];
    int error = afdep_tcp_read_whole(attempt->fd, verdict, sizeof verdict, attempt->deadline);
    if (error != 0)
        return try_again(attempt, "what answers there gave no verdict on this rank's proof", error);
    uint32_t code = afdep_tcp_get32(verdict);
    if (code == AFDEP_TCP_WRONG_PROOF)
        return refused_by_root(attempt, code);
    if (!afdep_tcp_derive(attempt->job_key, AFDEP_TCP_LABEL_VERDICT, code, &attempt->transcript, proof) ||
        !afdep_hmac_equal(proof, verdict + 4))
        return try_again(attempt, "what answers there does not know the job token", 0);
    return code == AFDEP_TCP_ADMITTED ? ADMITTED : refused_by_root(attempt, code);
}

/* Errors of connect() that another moment may cure. */
static bool may_pass(int error)
{
    switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case EAGAIN:
        return true;
    default:
        return false;
    }
}

static afdep_tcp_outcome_t try_once(afdep_tcp_attempt_t *attempt)
{
    attempt->fd = afdep_tcp_connect(&attempt->group->address, attempt->deadline);
    if (attempt->fd < 0 && may_pass(errno))
        return try_again(attempt, "connecting", errno);
    if (attempt->fd < 0)
        return refuse(attempt, AFDEP_ERR_SYSTEM, strerror(errno));
    afdep_tcp_outcome_t outcome = prove(attempt);
    if (outcome == ADMITTED)
        outcome = hear_verdict(attempt);
    if (outcome == ADMITTED && !afdep_tcp_link_open(&attempt->group->links[0], attempt->fd, false, attempt->job_key,
                                                    &attempt->transcript))
        outcome = refuse(attempt, AFDEP_ERR_SYSTEM, "libcrypto refused HMAC-SHA256");
    if (outcome != ADMITTED)
        close(attempt->fd);
    return outcome;
}

static void pause_ms(int ms)
{
    const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };
    nanosleep(&pause, NULL);
}

static afdep_status_t come_in(afdep_tcp_group_t *group, const uint8_t *job_key, int64_t deadline)
{
    afdep_tcp_attempt_t attempt = { .group = group, .job_key = job_key };
    int pause = FIRST_PAUSE_MS;
    for (;;) {
        int64_t limit = afdep_now_ms() + ATTEMPT_MS;
        attempt.deadline = limit < deadline ? limit : deadline;
        afdep_tcp_outcome_t outcome = try_once(&attempt);
        if (outcome == ADMITTED)
            return AFDEP_OK;
        if (outcome == REFUSED)
            return afdep_fail(attempt.status, "rank %d of %d was not admitted at %s: %s", group->rank, group->size,
                              group->address.place, attempt.why);
        int left = afdep_ms_left(deadline);
        if (left == 0)
            return afdep_fail(AFDEP_ERR_BOOTSTRAP, "rank 0 of %d did not come to %s within %d ms (%s)", group->size,
                              group->address.place, group->timeout_ms, attempt.why);
        pause_ms(pause < left ? pause : left);
        pause = 2 * pause < LONGEST_PAUSE_MS ? 2 * pause : LONGEST_PAUSE_MS;
    }
}

afdep_status_t afdep_tcp_meet_peer(afdep_tcp_group_t *group, const uint8_t job_key[AFDEP_TCP_KEY_BYTES])
{
    int64_t deadline = afdep_now_ms() + group->timeout_ms;
    afdep_status_t status = come_in(group, job_key, deadline);
    if (status != AFDEP_OK)
        return status;
    return afdep_tcp_await_result(group, NULL, 0, deadline);
}
