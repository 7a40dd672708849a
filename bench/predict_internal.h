/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the predictor share: events, links, ranks.
 *
 * A link serves first come, first served; who uses it asks in order of time, since every use happens inside an event
 * and events are taken in order. A row needs no event where it lands: the word behind it on its lane publishes it.
 */
#ifndef AFDEP_BENCH_PREDICT_INTERNAL_H
#define AFDEP_BENCH_PREDICT_INTERNAL_H

#include "bench/predict.h"

typedef int64_t afdep_ps_t;

/* ---- Events -------------------------------------------------------------------------------------------------- */

typedef enum afdep_event_kind {
    AFDEP_EVENT_DISPATCH, /* rank: a source's kernel begins */
    AFDEP_EVENT_SEND,     /* rank, channel: a source's warp has its row or signals ready */
    AFDEP_EVENT_NIC,      /* peer -> rank: a message's head is at the receiving NIC; value: bytes, 0 for a word */
    AFDEP_EVENT_NVLINK,   /* peer -> rank: the same at an NVLink port */
    AFDEP_EVENT_WORD,     /* peer -> rank: a word is there */
    AFDEP_EVENT_RECEIVE,  /* rank: an FFN rank's receive begins */
    AFDEP_EVENT_FORWARD,  /* rank, channel: a forward warp has handled a row */
    AFDEP_EVENT_LAID_OUT, /* rank: rows stand by expert */
    AFDEP_EVENT_REPLY,    /* rank: an FFN rank's reply begins */
    AFDEP_EVENT_SUM,      /* rank, channel: a warp has summed a token's rows */
    AFDEP_EVENT_BACK,     /* rank, channel: a warp has a row or a signal for its source ready */
    AFDEP_EVENT_COLLECT,  /* rank: a source's collect begins */
    AFDEP_EVENT_COLLECTED /* rank, channel: a warp has summed a token's replies */
} afdep_event_kind_t;

/* Words, by what they say. The first five are signals of fabric.h's kinds. */
typedef enum afdep_word_kind {
    AFDEP_SAYS_FINISH,  /* channel: a source is done with it */
    AFDEP_SAYS_COUNT,   /* a source's token count, or (direct) row count */
    AFDEP_SAYS_COMBINE, /* channel: an FFN rank's replies are there */
    AFDEP_SAYS_WITNESS,
    AFDEP_SAYS_FORWARD, /* a rail of the domain has forwarded all its rows */
    AFDEP_SAYS_REPLIED  /* a rank of the domain has written its partials */
} afdep_word_kind_t;

typedef struct afdep_event {
    afdep_ps_t at;
    uint64_t order; /* ties are taken as they were made */
    uint32_t rank, peer;
    uint32_t value;
    uint16_t channel;
    uint8_t kind, says;
} afdep_event_t;

typedef struct afdep_queue {
    afdep_event_t *heap;
    uint64_t count, limit, orders;
    int failed; /* out of memory */
} afdep_queue_t;

void afdep_queue_add(afdep_queue_t *queue, const afdep_event_t *event);
int afdep_queue_take(afdep_queue_t *queue, afdep_event_t *event); /* 0: empty */

/* ---- Links --------------------------------------------------------------------------------------------------- */

/*
 * 26 days. A cost model may ask for more: links stop at this time and run() refuses the case when an event reaches it.
 * Two services that bytes alone take, each at most as long, and all latencies still fit on top.
 */
#define AFDEP_CLOCK_ENDS ((afdep_ps_t)1 << 61)

typedef struct afdep_link {
    afdep_ps_t idle_at, busy;
} afdep_link_t;

/* Serves for `service` from `now` or when idle; returns when it began. */
static inline afdep_ps_t afdep_link_use(afdep_link_t *link, afdep_ps_t now, afdep_ps_t service)
{
    afdep_ps_t from = now > link->idle_at ? now : link->idle_at;
    from = from < AFDEP_CLOCK_ENDS ? from : AFDEP_CLOCK_ENDS;
    link->idle_at = from + service < AFDEP_CLOCK_ENDS ? from + service : AFDEP_CLOCK_ENDS;
    link->busy += link->idle_at - from;
    return from;
}

/* ---- Ranks --------------------------------------------------------------------------------------------------- */

typedef struct afdep_predict_source {
    afdep_ps_t began; /* the exchange under way */
    uint64_t exchange;
    int waiting, collecting; /* for witnesses; collect runs */
    uint64_t witnesses;      /* since the start */
    int32_t *next;           /* [C]: the next token of a channel */
    uint32_t *awaited;       /* [C]: combine signals yet to come (direct: in [0]) */
    int sending, channels_left;
    int32_t *ids[2]; /* [T][K], by exchange parity */
} afdep_predict_source_t;

/* A token at an FFN rank. */
typedef struct afdep_predict_arrival {
    uint32_t source; /* Attention index */
    uint32_t token;
    uint16_t rows, rail; /* rail: it came over; direct: 0 */
} afdep_predict_arrival_t;

typedef struct afdep_predict_arrivals {
    afdep_predict_arrival_t *list;
    uint32_t count, limit;
} afdep_predict_arrivals_t;

#define AFDEP_NO_LANE UINT32_MAX

typedef struct afdep_predict_ffn {
    uint64_t exchange;
    afdep_ps_t began; /* the call under way */
    int receiving;    /* its receive runs: words that come before wait in `early` */
    afdep_event_t *early;
    uint32_t early_count, early_limit;
    /* Forwarding. Lanes are [S][C]; a channel's landed lanes are a list. */
    uint32_t *lane_next, *lane_head, *lane_tail; /* [S*C], [C], [C] */
    int32_t *lane_token;                         /* [C]: next token of the lane at the head; -1: none begun */
    uint8_t *counted, *held;                     /* [S], [S*C]: count word is there; the tail waits for it */
    int32_t *pending;                            /* [C]: sources not yet retired */
    int channels_left;
    uint32_t *forwarded[2]; /* [D], by exchange parity */
    int joined[2];          /* words of rails that have come, its own among them */
    uint32_t *arrived[2];   /* [D] */
    int replied[2];         /* reply words that have come */
    int awaits_replies;     /* of this exchange */
    afdep_predict_arrivals_t arrivals[2];
    /* Reply. */
    uint32_t sums_left, *warp_index; /* [C]: the arrival that a warp sums */
    int summed, gate;
    int32_t *back_source, *back_token; /* [C] */
    int warps_left;
    uint32_t *source_left; /* direct: [A] */
    /* Counted since the start. */
    uint64_t finish, count, combine, witness, puts, bytes;
} afdep_predict_ffn_t;

typedef struct afdep_predictor {
    const afdep_predict_case_t *predict;
    afdep_shape_t shape;
    afdep_row_format_t row;
    uint32_t extent_bytes;        /* that go with a forward word: the largest token of each source */
    int direct, domains, per_nic; /* per_nic: ranks that share one, or 1 */
    int nics;                     /* of a rank, or 1 */
    int exchanges;
    /* Costs. */
    afdep_ps_t put, signal_send, signal_receive, nic_latency, nvlink_latency;
    afdep_ps_t send_row, issue, poll, forward_row, sum_row, back_row, collect_row, sm_row, gap, layout, bookkeeping;
    double nic_ps, nvlink_ps, load_ps, store_ps, memory_ps; /* of a byte */
    /* State. */
    afdep_queue_t queue;
    afdep_ps_t now;
    afdep_link_t *nic_send, *nic_receive, *port_out, *port_in, *sms, *memory, *warps;
    afdep_predict_source_t *sources;                 /* [A] */
    afdep_predict_ffn_t *ffns;                       /* [F] */
    afdep_source_tokens_t routes;                    /* where routes are made */
    afdep_ps_t last_start[2];                        /* the last source's start, by exchange parity */
    afdep_ps_t *longest, *first_start, *final_start; /* [exchanges] */
    uint64_t *in, *out;                              /* [ranks] */
    int sources_done, ffns_done; /* with all exchanges; or, with aligned starts, with the one under way */
    int begun;                   /* aligned starts: exchanges begun */
    uint64_t events;
    char *why;
    size_t why_size;
} afdep_predictor_t;

static inline afdep_ps_t afdep_bytes_ps(double ps_of_a_byte, uint64_t bytes)
{
    double ps = (double)bytes * ps_of_a_byte;
    return ps < (double)AFDEP_CLOCK_ENDS ? (afdep_ps_t)ps : AFDEP_CLOCK_ENDS;
}

static inline afdep_predict_source_t *afdep_predict_source(afdep_predictor_t *p, uint32_t rank)
{
    return &p->sources[rank - (uint32_t)p->shape.ffn_ranks];
}

/* The choices of a source's token in the exchange of a parity. */
static inline const int32_t *afdep_predict_ids(const afdep_predictor_t *p, uint32_t source, uint64_t exchange,
                                               int token)
{
    return p->sources[source].ids[exchange & 1] + (size_t)token * (size_t)p->shape.top_k;
}

static inline void afdep_predict_at(afdep_predictor_t *p, afdep_ps_t at, afdep_event_kind_t kind, int rank, int channel)
{
    afdep_event_t event = { at, 0, (uint32_t)rank, 0, 0, (uint16_t)channel, (uint8_t)kind, 0 };
    afdep_queue_add(&p->queue, &event);
}

/* predict.c: all that an Attention rank, or an FFN rank, does in an exchange is done. */
void afdep_predict_source_done(afdep_predictor_t *p, uint32_t rank);
void afdep_predict_ffn_done(afdep_predictor_t *p, uint32_t rank);

/* predict_links.c: what is issued at `now`. `channel`: of its lane; -1: the control lane. */
void afdep_predict_put(afdep_predictor_t *p, int from, int to, int channel, uint32_t bytes);
void afdep_predict_word(afdep_predictor_t *p, int from, int to, int channel, afdep_word_kind_t says, uint32_t value);
void afdep_predict_nvlink_put(afdep_predictor_t *p, int from, int to, uint32_t bytes);
void afdep_predict_nvlink_word(afdep_predictor_t *p, int from, int to, afdep_word_kind_t says, uint32_t value);
void afdep_predict_arrive_nic(afdep_predictor_t *p, const afdep_event_t *event);
void afdep_predict_arrive_nvlink(afdep_predictor_t *p, const afdep_event_t *event);
/* A warp's work on a row: its SM's share from now on, then its own latency. Returns when it is done. */
typedef struct afdep_predict_work {
    uint64_t loaded, stored; /* bytes, stored: to a peer of the domain */
    int crosses;             /* the row crosses domains */
    afdep_ps_t latency;
    const char *what;
} afdep_predict_work_t;
afdep_ps_t afdep_predict_warp(afdep_predictor_t *p, int rank, int warp, const afdep_predict_work_t *work);

/* Tells who watches that a call of the rank is over. */
static inline void afdep_predict_called(const afdep_predictor_t *p, uint32_t rank, uint64_t exchange, const char *call,
                                        afdep_ps_t from)
{
    const afdep_predict_watch_t *watch = p->predict->watch;
    if (watch && watch->called)
        watch->called(watch->context, (int)rank, exchange, call, from, p->now);
}

/* predict_source.c */
void afdep_predict_begin_exchange(afdep_predictor_t *p, uint32_t source);
void afdep_predict_dispatch(afdep_predictor_t *p, uint32_t rank);
void afdep_predict_send(afdep_predictor_t *p, uint32_t rank, int channel);
void afdep_predict_source_word(afdep_predictor_t *p, const afdep_event_t *event);
void afdep_predict_collect(afdep_predictor_t *p, uint32_t rank);
void afdep_predict_collected(afdep_predictor_t *p, uint32_t rank, int channel);

/* predict_receive.c */
void afdep_predict_receive(afdep_predictor_t *p, uint32_t rank);
void afdep_predict_ffn_word(afdep_predictor_t *p, const afdep_event_t *event);
void afdep_predict_forward(afdep_predictor_t *p, uint32_t rank, int channel);
void afdep_predict_laid_out(afdep_predictor_t *p, uint32_t rank);
void afdep_predict_add_arrival(afdep_predictor_t *p, uint32_t rank, uint64_t exchange, uint32_t source, int token,
                               int rail);

/* predict_reply.c */
void afdep_predict_reply(afdep_predictor_t *p, uint32_t rank);
void afdep_predict_sum(afdep_predictor_t *p, uint32_t rank, int warp);
void afdep_predict_gate(afdep_predictor_t *p, uint32_t rank);
void afdep_predict_back(afdep_predictor_t *p, uint32_t rank, int channel);
void afdep_predict_witness(afdep_predictor_t *p, uint32_t rank);

#endif
