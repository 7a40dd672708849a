/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs, NVLink ports and SMs. Each serves first come, first served. A message leaves its sender's link, travels, and is
 * served by its receiver's from the moment its head is there; it cannot be there whole before its tail has left and
 * travelled, so a message alone pays for its bytes once, and messages that meet queue at either end.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/predict_internal.h"

static const char *const word_names[] = { "finish tail", "count word",   "combine",
                                          "witness",     "forward word", "reply word" };

static void served(const afdep_predictor_t *p, afdep_resource_t resource, int rank, int index, afdep_ps_t from,
                   afdep_ps_t to, const char *what)
{
    const afdep_predict_watch_t *watch = p->predict->watch;
    if (watch && watch->served)
        watch->served(watch->context, resource, rank, index, from, to, what);
}

static afdep_signal_kind_t signal_kind(afdep_word_kind_t says)
{
    static const afdep_signal_kind_t kinds[] = { AFDEP_SIGNAL_FINISH_TAIL, AFDEP_SIGNAL_COUNT_WORD,
                                                 AFDEP_SIGNAL_COMBINE,     AFDEP_SIGNAL_WITNESS,
                                                 AFDEP_SIGNAL_DOMAIN_WORD, AFDEP_SIGNAL_DOMAIN_WORD };
    return kinds[says];
}

/* ---- Counting ------------------------------------------------------------------------------------------------ */

static uint64_t exchange_of(const afdep_predictor_t *p, int rank)
{
    return rank < p->shape.ffn_ranks ? p->ffns[rank].exchange : p->sources[rank - p->shape.ffn_ranks].exchange;
}

static void note(afdep_predictor_t *p, int from, int to, int lane, uint32_t bytes, afdep_word_kind_t says)
{
    const afdep_predict_watch_t *watch = p->predict->watch;
    if (watch && watch->issued) {
        afdep_predict_message_t message = { from, to, lane, bytes, signal_kind(says) };
        watch->issued(watch->context, exchange_of(p, from), &message);
    }
    if (from < p->shape.ffn_ranks && to < p->shape.ffn_ranks)
        return; /* inside an FFN domain: crosses no rail */
    afdep_predict_ffn_t *ffn = &p->ffns[from < p->shape.ffn_ranks ? from : to];
    if (bytes) {
        ffn->puts++;
        ffn->bytes += bytes;
        return;
    }
    uint64_t *const counters[] = { &ffn->finish, &ffn->count, &ffn->combine, &ffn->witness };
    (*counters[says])++;
    p->out[from]++;
    p->in[to]++;
}

/* ---- NICs ---------------------------------------------------------------------------------------------------- */

/* A lane has one NIC at either end, equal for its puts and words: its order depends on that. */
static int nic_of(const afdep_predictor_t *p, int rank, int channel)
{
    int domain = rank / p->shape.ranks_per_domain, rail = rank % p->shape.ranks_per_domain;
    if (p->per_nic > 1)
        return domain * ((p->shape.ranks_per_domain - 1) / p->per_nic + 1) + rail / p->per_nic;
    return rank * p->nics + (channel < 0 ? 0 : channel % p->nics);
}

static void nic_issue(afdep_predictor_t *p, int from, int to, int channel, afdep_ps_t service, uint32_t bytes,
                      afdep_word_kind_t says, uint32_t value)
{
    int nic = nic_of(p, from, channel);
    afdep_ps_t start = afdep_link_use(&p->nic_send[nic], p->now, service);
    served(p, AFDEP_RESOURCE_NIC_SEND, from, nic, start, start + service, bytes ? "row" : word_names[says]);
    afdep_event_t event = { start + p->nic_latency, 0,
                            (uint32_t)to,           (uint32_t)from,
                            bytes ? bytes : value,  (uint16_t)(channel + 1),
                            AFDEP_EVENT_NIC,        (uint8_t)(bytes ? UINT8_MAX : says) };
    afdep_queue_add(&p->queue, &event);
}

void afdep_predict_put(afdep_predictor_t *p, int from, int to, int channel, uint32_t bytes)
{
    note(p, from, to, channel, bytes, AFDEP_SAYS_FINISH);
    nic_issue(p, from, to, channel, p->put + afdep_bytes_ps(p->nic_ps, bytes), bytes, AFDEP_SAYS_FINISH, 0);
}

void afdep_predict_word(afdep_predictor_t *p, int from, int to, int channel, afdep_word_kind_t says, uint32_t value)
{
    note(p, from, to, channel < 0 ? AFDEP_LANE_CONTROL(p->shape.channels) : channel, 0, says);
    nic_issue(p, from, to, channel, p->signal_send, 0, says, value);
}

void afdep_predict_arrive_nic(afdep_predictor_t *p, const afdep_event_t *event)
{
    int is_row = event->says == UINT8_MAX, channel = (int)event->channel - 1;
    int nic = nic_of(p, (int)event->rank, channel);
    afdep_ps_t bytes = is_row ? afdep_bytes_ps(p->nic_ps, event->value) : 0;
    afdep_ps_t service = is_row ? p->put + bytes : p->signal_receive;
    /* Its tail is one sending service behind its head. */
    afdep_ps_t tail = p->now + (is_row ? p->put + bytes : p->signal_send);
    afdep_ps_t start = afdep_link_use(&p->nic_receive[nic], p->now, service), end = start + service;
    served(p, AFDEP_RESOURCE_NIC_RECEIVE, (int)event->rank, nic, start, end, is_row ? "row" : word_names[event->says]);
    if (is_row)
        return;
    afdep_event_t word = *event;
    word.at = end > tail ? end : tail;
    word.kind = AFDEP_EVENT_WORD;
    afdep_queue_add(&p->queue, &word);
}

/* ---- NVLink -------------------------------------------------------------------------------------------------- */

static void nvlink_issue(afdep_predictor_t *p, int from, int to, uint32_t bytes, afdep_word_kind_t says, uint32_t value)
{
    afdep_ps_t service = afdep_bytes_ps(p->nvlink_ps, bytes ? bytes : sizeof(uint64_t));
    afdep_ps_t start = afdep_link_use(&p->port_out[from], p->now, service);
    if (bytes)
        served(p, AFDEP_RESOURCE_NVLINK_OUT, from, 0, start, start + service, "row");
    /* The exchange's parity: a forward word has an entry for each. */
    afdep_event_t event = { start + p->nvlink_latency,
                            0,
                            (uint32_t)to,
                            (uint32_t)from,
                            bytes ? bytes : value,
                            (uint16_t)(exchange_of(p, from) & 1),
                            AFDEP_EVENT_NVLINK,
                            (uint8_t)(bytes ? UINT8_MAX : says) };
    afdep_queue_add(&p->queue, &event);
}

void afdep_predict_nvlink_put(afdep_predictor_t *p, int from, int to, uint32_t bytes)
{
    note(p, from, to, AFDEP_LANE_DOMAIN(p->shape.channels), bytes, AFDEP_SAYS_FINISH);
    nvlink_issue(p, from, to, bytes, AFDEP_SAYS_FINISH, 0);
}

void afdep_predict_nvlink_word(afdep_predictor_t *p, int from, int to, afdep_word_kind_t says, uint32_t value)
{
    int control = says == AFDEP_SAYS_WITNESS; /* publishes no row */
    note(p, from, to, control ? AFDEP_LANE_CONTROL(p->shape.channels) : AFDEP_LANE_DOMAIN(p->shape.channels), 0, says);
    nvlink_issue(p, from, to, 0, says, value);
}

void afdep_predict_arrive_nvlink(afdep_predictor_t *p, const afdep_event_t *event)
{
    int is_row = event->says == UINT8_MAX;
    afdep_ps_t service = afdep_bytes_ps(p->nvlink_ps, is_row ? event->value : sizeof(uint64_t));
    afdep_ps_t start = afdep_link_use(&p->port_in[event->rank], p->now, service);
    if (is_row) {
        served(p, AFDEP_RESOURCE_NVLINK_IN, (int)event->rank, 0, start, start + service, "row");
        return;
    }
    afdep_event_t word = *event;
    word.at = start + service;
    word.kind = AFDEP_EVENT_WORD;
    afdep_queue_add(&p->queue, &word);
}

/* ---- Warps --------------------------------------------------------------------------------------------------- */

/* In a channel protocol the warps of an SM serve neighbouring channels; in one domain rows are dealt to the SMs in
 * turn. */
static int sm_of(const afdep_predictor_t *p, int warp)
{
    return p->direct ? warp % p->shape.num_sms : warp / (p->shape.channels / p->shape.num_sms);
}

afdep_ps_t afdep_predict_warp(afdep_predictor_t *p, int rank, int warp, const afdep_predict_work_t *work)
{
    int sms = p->shape.num_sms, sm = sm_of(p, warp);
    afdep_ps_t service = afdep_bytes_ps(p->load_ps, work->loaded) + afdep_bytes_ps(p->store_ps, work->stored) +
                         (work->crosses ? p->sm_row : 0);
    afdep_ps_t start = afdep_link_use(&p->sms[(size_t)rank * (size_t)sms + (size_t)sm], p->now, service);
    afdep_ps_t end = start + service + work->latency;
    served(p, AFDEP_RESOURCE_SM, rank, sm, start, start + service, work->what);
    if (rank < p->shape.ffn_ranks)
        p->warps[(size_t)rank * (size_t)p->shape.channels + (size_t)warp].busy += end - p->now;
    served(p, AFDEP_RESOURCE_WARP, rank, warp, p->now, end, work->what);
    return end;
}
