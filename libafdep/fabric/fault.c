/* SPDX-License-Identifier: Apache-2.0 */
/* The fault fabric: rules that judge messages and steps, and the lanes that hold what has to wait. */
#include "fabric/fault.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "fabric/host_id.h"
#include "fabric/pause.h"
#include "fabric/round.h"

#define SHORT_SLEEP_NS 100000u /* below it a slow actor yields, since real sleeps end late */

const char *const afdep_fault_kind_names[AFDEP_FAULT_KINDS] = {
    [AFDEP_FAULT_DELAY] = "delay",         [AFDEP_FAULT_STALL] = "stall",
    [AFDEP_FAULT_DROP] = "drop",           [AFDEP_FAULT_DUPLICATE] = "duplicate",
    [AFDEP_FAULT_REORDER] = "reorder",     [AFDEP_FAULT_CORRUPT] = "corrupt",
    [AFDEP_FAULT_KILL] = "kill",           [AFDEP_FAULT_SLOW_ACTOR] = "slow-actor",
};

const char *const afdep_signal_kind_names[AFDEP_SIGNAL_KINDS] = {
    [AFDEP_SIGNAL_FINISH_TAIL] = "finish_tail", [AFDEP_SIGNAL_COUNT_WORD] = "count_word",
    [AFDEP_SIGNAL_PROGRESS_TAIL] = "progress_tail", [AFDEP_SIGNAL_COMBINE] = "combine",
    [AFDEP_SIGNAL_WITNESS] = "witness",         [AFDEP_SIGNAL_DOMAIN_WORD] = "domain_word",
    [AFDEP_SIGNAL_CONTROL] = "control",
};

/* The host backend's, host/host.h. */
const char *const afdep_fault_duties[] = { "source_dispatch", "count", "collect", "forward", "receive",
                                           "reply", "reply_forward", "drain", "part", NULL };

/* A put or a signal. */
typedef struct message {
    int lane, peer, is_signal;
    afdep_signal_kind_t kind;
    uint64_t offset, old_value, new_value;
    const void *src;
    size_t bytes;
    uint64_t due;      /* it is held until then */
    uint64_t overtake; /* or until the rank has handed on so many; 0: only until `due` */
    int repeat;        /* to be delivered a second time */
    int again;         /* this is the second time */
} message_t;

typedef struct held {
    struct held *next;
    message_t m; /* src: data */
    unsigned char data[];
} held_t;

typedef struct lane {
    held_t *head, *tail;
    held_t *repeats; /* waiting for the next message to their place */
    int stopped;
    int listed; /* among the busy ones */
} lane_t;

/* A rule that acts at this rank. */
typedef struct active {
    const afdep_fault_t *rule;
    uint64_t matches, fired, random;
} active_t;

typedef struct fault_fabric {
    afdep_fabric_t super;
    afdep_fabric_ops_t ops;
    afdep_fabric_t *inner;
    active_t *rules; /* [rule_count] */
    int rule_count;
    int through;     /* puts must go through put(): no windows */
    lane_t *lanes;   /* [size][lanes] */
    int *busy;       /* lanes that may hold something */
    int busy_count;
    held_t *sent;    /* copies whose puts the inner fabric may still read */
    uint64_t handed; /* messages given to the inner fabric */
    uint64_t exchange;
} fault_fabric_t;

static fault_fabric_t *fault_of(afdep_fabric_t *fabric)
{
    return (fault_fabric_t *)fabric; /* its first member */
}

/* ---- Rules --------------------------------------------------------------------------------------------------- */

/* Whether a rule counts actors' steps in place of messages. */
static int of_steps(const afdep_fault_t *rule)
{
    return rule->kind == AFDEP_FAULT_SLOW_ACTOR || rule->duty;
}

/* SplitMix64: 53 bits as a fraction. */
static double draw(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
}

/* A match: is it one at which the rule acts? */
static int fires(active_t *a)
{
    const afdep_fault_t *rule = a->rule;
    if (++a->matches <= rule->after || (rule->count && a->fired >= rule->count))
        return 0;
    if (rule->probability < 1 && draw(&a->random) >= rule->probability)
        return 0;
    a->fired++;
    return 1;
}

static int matches_lane(const fault_fabric_t *f, const afdep_fault_t *rule, int lane)
{
    int channels = f->super.lanes - 2;
    if (rule->lane == AFDEP_FAULT_ANY)
        return 1;
    if (rule->lane >= 0)
        return lane == rule->lane && lane < channels;
    if (rule->lane == AFDEP_FAULT_LANE_CONTROL)
        return lane == AFDEP_LANE_CONTROL(channels);
    return lane == AFDEP_LANE_DOMAIN(channels);
}

static int matches_what(const afdep_fault_t *rule, const message_t *m)
{
    if (rule->what == AFDEP_FAULT_ANY)
        return 1;
    if (rule->what == AFDEP_FAULT_PUT || !m->is_signal)
        return rule->what == AFDEP_FAULT_PUT && !m->is_signal;
    return rule->what == AFDEP_FAULT_SIGNAL || rule->what == (int)m->kind;
}

static int matches(const fault_fabric_t *f, const afdep_fault_t *rule, const message_t *m)
{
    return !of_steps(rule) && (rule->peer == AFDEP_FAULT_ANY || rule->peer == m->peer) &&
           (rule->exchange == 0 || rule->exchange == f->exchange) && matches_lane(f, rule, m->lane) &&
           matches_what(rule, m);
}

/* The rule that a message suffers, or NULL. */
static const afdep_fault_t *judge(fault_fabric_t *f, const message_t *m)
{
    for (int i = 0; i < f->rule_count; i++)
        if (matches(f, f->rules[i].rule, m) && fires(&f->rules[i]))
            return f->rules[i].rule;
    return NULL;
}

/* No cleanup of any kind: that is the point. */
static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void sleep_ns(afdep_fabric_t *inner, uint64_t ns)
{
    uint64_t now = inner->ops->now(inner), until = now + ns;
    for (; now < until; now = inner->ops->now(inner))
        inner->ops->idle(inner, until - now > SHORT_SLEEP_NS ? UINT_MAX : AFDEP_IDLE_SPINS);
}

static void fault_before_step(afdep_fabric_t *fabric, uint64_t exchange, const char *duty, int channel)
{
    fault_fabric_t *f = fault_of(fabric);
    f->exchange = exchange;
    for (int i = 0; i < f->rule_count; i++) {
        const afdep_fault_t *rule = f->rules[i].rule;
        if (!of_steps(rule) || (rule->duty && strcmp(rule->duty, duty) != 0) ||
            (rule->lane != AFDEP_FAULT_ANY && rule->lane != channel) ||
            (rule->exchange != 0 && rule->exchange != exchange) || !fires(&f->rules[i]))
            continue;
        if (rule->kind == AFDEP_FAULT_KILL)
            die();
        sleep_ns(f->inner, (uint64_t)rule->amount_us * 1000u);
        return;
    }
}

/* ---- Lanes --------------------------------------------------------------------------------------------------- */

static lane_t *lane_of(fault_fabric_t *f, const message_t *m)
{
    return &f->lanes[(size_t)m->peer * (size_t)f->super.lanes + (size_t)m->lane];
}

static held_t *copy_of(const message_t *m)
{
    held_t *held = malloc(sizeof(*held) + m->bytes);
    if (!held) {
        (void)afdep_fail(AFDEP_ERR_SYSTEM, "fault fabric: no memory to hold %zu bytes for rank %d", m->bytes, m->peer);
        return NULL;
    }
    held->next = NULL;
    held->m = *m;
    held->m.src = held->data;
    if (m->bytes)
        memcpy(held->data, m->src, m->bytes);
    return held;
}

static void list(fault_fabric_t *f, lane_t *lane)
{
    if (!lane->listed)
        f->busy[f->busy_count++] = (int)(lane - f->lanes);
    lane->listed = 1;
}

static void hold_last(fault_fabric_t *f, held_t *held)
{
    lane_t *lane = lane_of(f, &held->m);
    if (lane->head)
        lane->tail->next = held;
    else
        lane->head = held;
    lane->tail = held;
    list(f, lane);
}

static void hold_first(fault_fabric_t *f, held_t *held)
{
    lane_t *lane = lane_of(f, &held->m);
    held->next = lane->head;
    if (!lane->head)
        lane->tail = held;
    lane->head = held;
    list(f, lane);
}

/* Gives a message to the inner fabric. */
static afdep_status_t hand_on(fault_fabric_t *f, const message_t *m)
{
    afdep_fabric_t *inner = f->inner;
    afdep_status_t status;
    inner->kind = m->kind;
    if (m->is_signal)
        status = inner->ops->signal(inner, m->lane, m->peer, m->offset, m->old_value, m->new_value);
    else
        status = inner->ops->put(inner, m->lane, m->peer, m->offset, m->src, m->bytes);
    f->handed += status == AFDEP_OK;
    return status;
}

/* What a message that has gone sets off: an older one to the same place goes again, or this one will. */
static afdep_status_t follow_up(fault_fabric_t *f, const message_t *m)
{
    lane_t *lane = lane_of(f, m);
    if (m->again)
        return AFDEP_OK;
    for (held_t **at = &lane->repeats, *held; (held = *at) != NULL;) {
        if (held->m.offset != m->offset || held->m.is_signal != m->is_signal) {
            at = &held->next;
            continue;
        }
        *at = held->next;
        hold_first(f, held);
    }
    if (!m->repeat)
        return AFDEP_OK;
    held_t *again = copy_of(m);
    if (!again)
        return AFDEP_ERR_SYSTEM;
    again->m.repeat = 0;
    again->m.again = 1;
    again->m.due = 0;
    again->next = lane->repeats;
    lane->repeats = again;
    return AFDEP_OK;
}

static int is_due(const fault_fabric_t *f, const message_t *m)
{
    return m->due == 0 || (m->overtake && f->handed >= m->overtake) || f->inner->ops->now(f->inner) >= m->due;
}

/* Lets go what may go from the head of a lane. */
static afdep_status_t release(fault_fabric_t *f, lane_t *lane)
{
    while (lane->head && is_due(f, &lane->head->m)) {
        held_t *held = lane->head;
        afdep_status_t status = hand_on(f, &held->m);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? AFDEP_OK : status;
        lane->head = held->next;
        status = follow_up(f, &held->m);
        held->next = f->sent;
        f->sent = held;
        if (status != AFDEP_OK)
            return status;
    }
    return AFDEP_OK;
}

static afdep_status_t release_all(fault_fabric_t *f)
{
    for (int i = 0; i < f->busy_count;) {
        lane_t *lane = &f->lanes[f->busy[i]];
        afdep_status_t status = release(f, lane);
        if (status != AFDEP_OK)
            return status;
        if (lane->head) {
            i++;
            continue;
        }
        lane->listed = 0;
        f->busy[i] = f->busy[--f->busy_count];
    }
    return AFDEP_OK;
}

static void free_list(held_t **list)
{
    while (*list) {
        held_t *held = *list;
        *list = held->next;
        free(held);
    }
}

/* ---- Messages ------------------------------------------------------------------------------------------------ */

static void flip(held_t *held, int bit)
{
    int64_t bits = held->m.is_signal ? 64 : (int64_t)held->m.bytes * 8, at = bit;
    if (bits == 0)
        return;
    at = (at % bits + bits) % bits;
    if (held->m.is_signal)
        held->m.new_value ^= (uint64_t)1 << at;
    else
        held->data[at / 8] ^= (unsigned char)(1u << at % 8);
}

/* Holds a copy of a message until its time, spoilt where it has to be. */
static afdep_status_t hold(fault_fabric_t *f, message_t *m, const afdep_fault_t *fault)
{
    int later = fault && (fault->kind == AFDEP_FAULT_DELAY || fault->kind == AFDEP_FAULT_REORDER);
    m->due = later ? f->inner->ops->now(f->inner) + (uint64_t)fault->amount_us * 1000u + 1 : 0;
    m->overtake = later && fault->kind == AFDEP_FAULT_REORDER ? f->handed + fault->overtake : 0;
    held_t *held = copy_of(m);
    if (!held)
        return AFDEP_ERR_SYSTEM;
    if (fault && fault->kind == AFDEP_FAULT_CORRUPT)
        flip(held, fault->bit);
    hold_last(f, held);
    return AFDEP_OK;
}

/* Sends a message that suffers `fault` (NULL: none). Back-pressure of the inner fabric ends here: the message waits in
   its lane, since judging it twice would count it twice. */
static afdep_status_t send_message(fault_fabric_t *f, message_t *m, const afdep_fault_t *fault)
{
    lane_t *lane = lane_of(f, m);
    afdep_status_t status = AFDEP_AGAIN;
    if (fault && fault->kind == AFDEP_FAULT_KILL)
        die();
    if (fault && fault->kind == AFDEP_FAULT_STALL)
        lane->stopped = 1;
    if (lane->stopped || (fault && fault->kind == AFDEP_FAULT_DROP))
        return AFDEP_OK;
    m->repeat = fault && fault->kind == AFDEP_FAULT_DUPLICATE;
    if (!lane->head && (!fault || m->repeat)) {
        status = hand_on(f, m);
        if (status == AFDEP_OK)
            status = follow_up(f, m);
        if (status == AFDEP_OK)
            return release(f, lane);
    }
    if (status != AFDEP_AGAIN)
        return status;
    status = hold(f, m, fault);
    return status == AFDEP_OK ? release(f, lane) : status;
}

/* Whether a message can be looked at: the inner fabric refuses the others. */
static int reaches(const fault_fabric_t *f, int lane, int peer)
{
    return f->rule_count > 0 && lane >= 0 && lane < f->super.lanes && peer >= 0 && peer < f->super.size;
}

static message_t put_message(int lane, int peer, uint64_t offset, const void *src, size_t bytes)
{
    return (message_t){ .lane = lane, .peer = peer, .offset = offset, .src = src, .bytes = bytes };
}

static message_t signal_message(const fault_fabric_t *f, int lane, int peer, uint64_t offset, uint64_t old_value,
                                uint64_t new_value)
{
    return (message_t){ .lane = lane, .peer = peer, .is_signal = 1, .kind = f->super.kind, .offset = offset,
                        .old_value = old_value, .new_value = new_value };
}

static afdep_status_t fault_put(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, const void *src,
                                size_t bytes)
{
    fault_fabric_t *f = fault_of(fabric);
    message_t m = put_message(lane, peer, offset, src, bytes);
    return reaches(f, lane, peer) ? send_message(f, &m, judge(f, &m)) : hand_on(f, &m);
}

static afdep_status_t fault_signal(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, uint64_t old_value,
                                   uint64_t new_value)
{
    fault_fabric_t *f = fault_of(fabric);
    message_t m = signal_message(f, lane, peer, offset, old_value, new_value);
    return reaches(f, lane, peer) ? send_message(f, &m, judge(f, &m)) : hand_on(f, &m);
}

/* Two messages where one of them suffers, else the one that the inner fabric makes of them. */
static afdep_status_t fault_put_signal(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, const void *src,
                                       size_t bytes, uint64_t word, uint64_t old_value, uint64_t new_value)
{
    fault_fabric_t *f = fault_of(fabric);
    message_t put = put_message(lane, peer, offset, src, bytes);
    message_t signal = signal_message(f, lane, peer, word, old_value, new_value);
    const afdep_fault_t *of_put = NULL, *of_signal = NULL;
    int judged = reaches(f, lane, peer);
    if (judged) {
        of_put = judge(f, &put);
        of_signal = judge(f, &signal);
    }
    if (!judged || (!of_put && !of_signal && !lane_of(f, &put)->head && !lane_of(f, &put)->repeats &&
                    !lane_of(f, &put)->stopped)) {
        f->inner->kind = f->super.kind;
        afdep_status_t status = f->inner->ops->put_signal(f->inner, lane, peer, offset, src, bytes, word, old_value,
                                                          new_value);
        f->handed += status == AFDEP_OK ? 2 : 0;
        if (status != AFDEP_AGAIN || !judged)
            return status;
    }
    afdep_status_t status = send_message(f, &put, of_put);
    return status == AFDEP_OK ? send_message(f, &signal, of_signal) : status;
}

static void *fault_window(afdep_fabric_t *fabric, int peer, uint64_t offset, size_t bytes)
{
    fault_fabric_t *f = fault_of(fabric);
    return f->through ? NULL : f->inner->ops->window(f->inner, peer, offset, bytes);
}

/* ---- The rest of the ops ------------------------------------------------------------------------------------- */

static uint64_t fault_read(afdep_fabric_t *fabric, uint64_t offset)
{
    afdep_fabric_t *inner = fault_of(fabric)->inner;
    return inner->ops->read(inner, offset);
}

static afdep_status_t fault_flush(afdep_fabric_t *fabric)
{
    fault_fabric_t *f = fault_of(fabric);
    afdep_status_t status = release_all(f);
    if (status == AFDEP_OK)
        status = f->inner->ops->flush(f->inner);
    if (status != AFDEP_OK)
        return status;
    free_list(&f->sent);
    return f->busy_count ? AFDEP_AGAIN : AFDEP_OK;
}

/* Also starts what it lets go: its caller may have flushed long ago. */
static afdep_status_t fault_progress(afdep_fabric_t *fabric)
{
    fault_fabric_t *f = fault_of(fabric);
    afdep_status_t status = f->inner->ops->progress(f->inner);
    if (status == AFDEP_OK && f->busy_count)
        status = fault_flush(fabric);
    return status == AFDEP_AGAIN ? AFDEP_OK : status;
}

static uint64_t fault_now(afdep_fabric_t *fabric)
{
    afdep_fabric_t *inner = fault_of(fabric)->inner;
    return inner->ops->now(inner);
}

static void fault_idle(afdep_fabric_t *fabric, unsigned rounds)
{
    afdep_fabric_t *inner = fault_of(fabric)->inner;
    inner->ops->idle(inner, rounds);
}

static int fault_alive(afdep_fabric_t *fabric, int peer)
{
    afdep_fabric_t *inner = fault_of(fabric)->inner;
    return inner->ops->alive(inner, peer);
}

static void fault_free(fault_fabric_t *f)
{
    if (!f)
        return;
    for (int i = 0; f->lanes && i < f->super.size * f->super.lanes; i++) {
        free_list(&f->lanes[i].head);
        free_list(&f->lanes[i].repeats);
    }
    free_list(&f->sent);
    free(f->busy);
    free(f->lanes);
    free(f->rules);
    free(f->super.counters);
    free(f);
}

/* The inner fabric first: it may still read the copies. */
static void fault_close(afdep_fabric_t *fabric, int in_order)
{
    fault_fabric_t *f = fault_of(fabric);
    f->inner->ops->close(f->inner, in_order);
    fault_free(f);
}

static const afdep_fabric_ops_t fault_ops = {
    .window = fault_window,
    .put = fault_put,
    .signal = fault_signal,
    .put_signal = fault_put_signal,
    .read = fault_read,
    .flush = fault_flush,
    .progress = fault_progress,
    .now = fault_now,
    .idle = fault_idle,
    .alive = fault_alive,
    .close = fault_close,
};

/* ---- Opening ------------------------------------------------------------------------------------------------- */

/* Whether a rule touches puts: those it changes, and those that must stay behind what it holds. The same answer for
   all peers, since a row that is staged for one is not built anew for the next. */
static int touches_puts(const afdep_fault_t *rule)
{
    if (of_steps(rule))
        return 0;
    return rule->what == AFDEP_FAULT_ANY || rule->what == AFDEP_FAULT_PUT || rule->kind == AFDEP_FAULT_DELAY ||
           rule->kind == AFDEP_FAULT_STALL || rule->kind == AFDEP_FAULT_REORDER;
}

static void activate(fault_fabric_t *f, const afdep_faults_t *faults)
{
    for (int i = 0; i < faults->count; i++) {
        const afdep_fault_t *rule = &faults->rules[i];
        if (rule->rank != AFDEP_FAULT_ANY && rule->rank != f->super.rank)
            continue;
        active_t *a = &f->rules[f->rule_count++];
        a->rule = rule;
        a->random = faults->seed ^ (uint64_t)i << 32 ^ (uint64_t)f->super.rank;
        f->through |= touches_puts(rule);
        if (of_steps(rule) || rule->exchange)
            f->ops.before_step = fault_before_step;
    }
}

static fault_fabric_t *fault_new(int rank, int size, int lanes, const afdep_faults_t *faults)
{
    size_t all = (size_t)size * (size_t)lanes;
    fault_fabric_t *f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    f->super.rank = rank;
    f->super.size = size;
    f->super.lanes = lanes;
    f->super.counters = calloc((size_t)size, sizeof(*f->super.counters));
    f->rules = calloc((size_t)faults->count + 1, sizeof(*f->rules));
    f->lanes = calloc(all, sizeof(*f->lanes));
    f->busy = calloc(all, sizeof(*f->busy));
    if (!f->super.counters || !f->rules || !f->lanes || !f->busy) {
        fault_free(f);
        return NULL;
    }
    f->ops = fault_ops;
    f->super.ops = &f->ops;
    activate(f, faults);
    return f;
}

static void put_around(fault_fabric_t *f, afdep_fabric_t *inner)
{
    f->inner = inner;
    f->ops.name = inner->ops->name;
    f->super.base = inner->base;
    f->super.bytes = inner->bytes;
    f->super.peer_bytes = inner->peer_bytes;
}

static int kills(const afdep_faults_t *faults)
{
    for (int i = 0; i < faults->count; i++)
        if (faults->rules[i].kind == AFDEP_FAULT_KILL)
            return 1;
    return 0;
}

static afdep_status_t no_memory(int size)
{
    return afdep_fail(AFDEP_ERR_MEMORY, "no memory for the tables of the fault fabric with %d ranks", size);
}

afdep_status_t afdep_fault_wrap(afdep_fabric_t *inner, const afdep_faults_t *faults, afdep_fabric_t **fabric)
{
    if (kills(faults))
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "a kill rule would end all ranks of a fabric inside one process");
    fault_fabric_t *f = fault_new(inner->rank, inner->size, inner->lanes, faults);
    if (!f)
        return no_memory(inner->size);
    put_around(f, inner);
    *fabric = &f->super;
    return AFDEP_OK;
}

typedef struct fault_record {
    afdep_round_t round;
    afdep_host_id_t host;
    int64_t kills;
} fault_record_t;

/* Every rank draws the same verdict from the same records. */
static afdep_status_t check_killing(const fault_record_t *all, int size)
{
    int any = 0;
    for (int r = 0; r < size; r++)
        any |= all[r].kills != 0;
    for (int r = 0; any && r < size; r++)
        for (int other = 0; other < r; other++)
            if (afdep_host_id_same_process(&all[r].host, &all[other].host))
                return afdep_fail(AFDEP_ERR_UNSUPPORTED, "a kill rule needs ranks that are processes of their own: "
                                  "ranks %d and %d share one", other, r);
    return AFDEP_OK;
}

static afdep_status_t fault_open(const afdep_fabric_provider_t *self, const afdep_fabric_args_t *args,
                                 afdep_fabric_t **fabric)
{
    const afdep_fault_provider_t *provider = self->context;
    const afdep_group_t *group = args->group;
    fault_fabric_t *f = fault_new(group->rank, group->size, args->lanes, provider->faults);
    fault_record_t *all = f ? calloc((size_t)group->size, sizeof(*all)) : NULL, mine;
    afdep_fabric_t *inner = NULL;
    memset(&mine, 0, sizeof(mine));
    afdep_host_id_get(&mine.host);
    mine.kills = kills(provider->faults);
    afdep_status_t status = all ? AFDEP_OK : no_memory(group->size);
    status = afdep_round_gather(group, status, &mine, all, sizeof(mine));
    if (status == AFDEP_OK)
        status = check_killing(all, group->size);
    free(all);
    if (status == AFDEP_OK)
        status = provider->inner->open(provider->inner, args, &inner);
    if (status != AFDEP_OK) {
        fault_free(f);
        return status;
    }
    put_around(f, inner);
    *fabric = &f->super;
    return AFDEP_OK;
}

void afdep_fault_provider_init(afdep_fault_provider_t *provider, const afdep_fabric_provider_t *inner,
                               const afdep_faults_t *faults)
{
    *provider = (afdep_fault_provider_t){ { inner->name, fault_open, provider }, inner, faults };
}
