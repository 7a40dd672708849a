/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of one connection: a header, a payload and a MAC, read and written as far as the socket allows. */
#include "core/tcp_link.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PARTS = 3 };

void afdep_tcp_link_clear(afdep_tcp_link_t *link)
{
    memset(link, 0, sizeof *link);
    link->fd = -1;
}

bool afdep_tcp_link_open(afdep_tcp_link_t *link, int fd, bool root, const uint8_t job_key[AFDEP_TCP_KEY_BYTES],
                         const afdep_tcp_transcript_t *transcript)
{
    afdep_tcp_link_clear(link);
    uint8_t *to_root = root ? link->key_in : link->key_out;
    uint8_t *from_root = root ? link->key_out : link->key_in;
    if (!afdep_tcp_derive(job_key, AFDEP_TCP_LABEL_TO_ROOT, 0, transcript, to_root) ||
        !afdep_tcp_derive(job_key, AFDEP_TCP_LABEL_FROM_ROOT, 0, transcript, from_root))
        return false;
    link->fd = fd;
    return true;
}

void afdep_tcp_link_close(afdep_tcp_link_t *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    afdep_wipe(link->key_in, sizeof link->key_in);
    afdep_wipe(link->key_out, sizeof link->key_out);
}

bool afdep_tcp_link_alive(const afdep_tcp_link_t *link)
{
    if (link->fd < 0)
        return false;
    char byte;
    ssize_t got = recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

/* The rest of three parts after the first `done` bytes. Returns how many parts are left. */
static int parts_after(struct iovec parts[PARTS], uint64_t done)
{
    int left = 0;
    for (int i = 0; i < PARTS; i++) {
        if (done >= parts[i].iov_len) {
            done -= parts[i].iov_len;
            continue;
        }
        parts[left].iov_base = (uint8_t *)parts[i].iov_base + done;
        parts[left].iov_len = parts[i].iov_len - (size_t)done;
        done = 0;
        left++;
    }
    return left;
}

static afdep_tcp_step_t after_transfer(ssize_t moved)
{
    if (moved > 0)
        return AFDEP_TCP_DONE;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return AFDEP_TCP_AGAIN;
    return AFDEP_TCP_CLOSED;
}

/* One recvmsg() into what is missing of header, payload and MAC. The header is read alone, since only it says whether
   there may be a payload. */
static afdep_tcp_step_t receive_some(afdep_tcp_link_t *link)
{
    bool headed = link->in_got >= AFDEP_TCP_HEADER_BYTES;
    struct iovec parts[PARTS] = { { link->in_bytes, sizeof link->in_bytes },
                                  { link->in_payload, headed ? (size_t)link->in.length : 0 },
                                  { link->in_mac, headed ? sizeof link->in_mac : 0 } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)parts_after(parts, link->in_got) };
    ssize_t got;
    do {
        got = recvmsg(link->fd, &message, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got > 0)
        link->in_got += (uint64_t)got;
    return after_transfer(got);
}

/* Judges a complete header: kind, operation, number and length must be those of a message that may come now. */
static bool header_fits(afdep_tcp_link_t *link, const afdep_tcp_expect_t *expect)
{
    const afdep_tcp_header_t *in = &link->in;
    if (!afdep_tcp_decode_header(link->in_bytes, &link->in)) {
        snprintf(link->complaint, sizeof link->complaint, "bytes that begin no message");
        return false;
    }
    bool data = in->kind == AFDEP_TCP_DATA && expect->data;
    bool note = in->kind == expect->note_kind && expect->note_length > 0;
    uint64_t length = data ? expect->length : expect->note_length;
    if ((!data && !note) || in->sequence != link->sequence_in || (data && in->operation != expect->operation)) {
        snprintf(link->complaint, sizeof link->complaint, "a message out of turn (kind %u of collective %llu)",
                 in->kind, (unsigned long long)in->operation);
        return false;
    }
    if (in->length != length) {
        snprintf(link->complaint, sizeof link->complaint, "a message of %llu bytes where %llu are expected",
                 (unsigned long long)in->length, (unsigned long long)length);
        return false;
    }
    link->in_payload = data ? expect->payload : expect->note;
    return true;
}

static bool mac_fits(afdep_tcp_link_t *link)
{
    const struct iovec parts[2] = { { link->in_bytes, sizeof link->in_bytes },
                                    { link->in_payload, (size_t)link->in.length } };
    uint8_t mac[AFDEP_HMAC_BYTES];
    if (afdep_hmac_sha256(link->key_in, sizeof link->key_in, parts, 2, mac) && afdep_hmac_equal(mac, link->in_mac))
        return true;
    snprintf(link->complaint, sizeof link->complaint, "a message whose MAC is wrong");
    return false;
}

afdep_tcp_step_t afdep_tcp_link_receive(afdep_tcp_link_t *link, const afdep_tcp_expect_t *expect)
{
    for (;;) {
        bool headed = link->in_got >= AFDEP_TCP_HEADER_BYTES;
        afdep_tcp_step_t step = receive_some(link);
        if (step != AFDEP_TCP_DONE)
            return step;
        if (!headed && link->in_got == AFDEP_TCP_HEADER_BYTES && !header_fits(link, expect))
            return AFDEP_TCP_GARBLED;
        if (link->in_got == AFDEP_TCP_HEADER_BYTES + link->in.length + AFDEP_HMAC_BYTES)
            break;
    }
    if (!mac_fits(link))
        return AFDEP_TCP_GARBLED;
    link->in_got = 0;
    link->sequence_in++;
    return AFDEP_TCP_DONE;
}

afdep_tcp_step_t afdep_tcp_link_begin(afdep_tcp_link_t *link, uint32_t kind, uint64_t operation, const void *payload,
                                      uint64_t length)
{
    const afdep_tcp_header_t header = { .kind = kind, .operation = operation, .length = length,
                                        .sequence = link->sequence_out };
    afdep_tcp_encode_header(&header, link->out_bytes);
    const struct iovec parts[2] = { { link->out_bytes, sizeof link->out_bytes }, { (void *)payload, (size_t)length } };
    if (!afdep_hmac_sha256(link->key_out, sizeof link->key_out, parts, 2, link->out_mac)) {
        snprintf(link->complaint, sizeof link->complaint, "nothing, since libcrypto refused HMAC-SHA256");
        return AFDEP_TCP_GARBLED;
    }
    link->sequence_out++;
    link->out_payload = payload;
    link->out_length = length;
    link->out_sent = 0;
    link->out_busy = true;
    return AFDEP_TCP_DONE;
}

afdep_tcp_step_t afdep_tcp_link_send(afdep_tcp_link_t *link)
{
    while (link->out_busy) {
        struct iovec parts[PARTS] = { { link->out_bytes, sizeof link->out_bytes },
                                      { (void *)link->out_payload, (size_t)link->out_length },
                                      { link->out_mac, sizeof link->out_mac } };
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)parts_after(parts, link->out_sent) };
        ssize_t sent = sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        afdep_tcp_step_t step = after_transfer(sent);
        if (step != AFDEP_TCP_DONE)
            return step;
        link->out_sent += (uint64_t)sent;
        link->out_busy = link->out_sent < AFDEP_TCP_HEADER_BYTES + link->out_length + AFDEP_HMAC_BYTES;
    }
    return AFDEP_TCP_DONE;
}
