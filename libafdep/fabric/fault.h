/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fault fabric: a decorator that passes everything to another fabric and, where a rule says so, delays, loses,
 * repeats, reorders or spoils what goes by, slows actors down, or kills the process. For tests and measurements of what
 * goes wrong; nothing in the library opens it by itself.
 *
 * A message is a put or a signal (a put with its signal is two). A rule acts at the sender. A message suffers at most
 * one fault, that of the first rule that fires; rules behind that one do not see it. Counters say what was issued.
 *
 * Held messages are copied. A lane whose head is held holds everything behind it, so no rule breaks a lane's order.
 * flush() says AFDEP_AGAIN as long as something is held that will still go: a call does not return before what it
 * issued is on its way, as fabric.h promises, and a delay beyond the deadline is the sender's own timeout. What a lane
 * that stopped swallowed counts as on its way. Closed in order, nothing is held any more; out of order (after an error,
 * when nobody waits for it) what is still held is dropped.
 */
#ifndef AFDEP_FABRIC_FAULT_H
#define AFDEP_FABRIC_FAULT_H

#include "fabric/fabric.h"

typedef enum afdep_fault_kind {
    AFDEP_FAULT_DELAY,     /* the message, and what is behind it on its lane, waits amount_us */
    AFDEP_FAULT_STALL,     /* the lane stops for good: this message and all later ones vanish */
    AFDEP_FAULT_DROP,      /* the message vanishes */
    AFDEP_FAULT_DUPLICATE, /* delivered again right after the next message of its lane to the same place: what stands
                              there goes back to its older content */
    AFDEP_FAULT_REORDER,   /* the lane waits until `overtake` messages of other lanes have gone, at most amount_us */
    AFDEP_FAULT_CORRUPT,   /* bit `bit` of the word or of the put's bytes is flipped */
    AFDEP_FAULT_KILL,      /* this process dies by SIGKILL, the message unsent */
    AFDEP_FAULT_SLOW_ACTOR /* before the step of an actor the rank sleeps amount_us */
} afdep_fault_kind_t;
#define AFDEP_FAULT_KINDS 8

/* Values of rank, peer, lane and what. */
#define AFDEP_FAULT_ANY (-1)
#define AFDEP_FAULT_LANE_CONTROL (-2)
#define AFDEP_FAULT_LANE_DOMAIN (-3)
#define AFDEP_FAULT_PUT (-2)
#define AFDEP_FAULT_SIGNAL (-3)

typedef struct afdep_fault {
    afdep_fault_kind_t kind;
    /* Where. */
    int rank, peer;       /* the sender, the target */
    int lane;             /* a channel, or one of the lanes above; of a step: the actor's channel */
    int what;             /* a signal kind, or one of the above */
    const char *duty;     /* of a step, as afdep_fault_duties names it; NULL: any. Only slow-actor and kill: a kill with
                             a duty counts steps in place of messages */
    /* When: each rank counts what matches by itself. */
    uint64_t exchange;    /* in the n-th exchange since opening only; 0: in any */
    uint64_t after;       /* so many matches pass first */
    uint64_t count;       /* so many times at most; 0: as often as it matches */
    double probability;   /* of each match, drawn from the seed */
    /* How. */
    uint32_t amount_us;
    uint32_t overtake;
    int bit;              /* negative: from the end, -1 the last */
} afdep_fault_t;

#define AFDEP_FAULT_INIT(kind)                                                                                        \
    { kind, AFDEP_FAULT_ANY, AFDEP_FAULT_ANY, AFDEP_FAULT_ANY, AFDEP_FAULT_ANY, 0, 0, 0, 0, 1, 0, 4, 0 }

/* Must outlive the fabrics made with it, like the rules it points to. */
typedef struct afdep_faults {
    const afdep_fault_t *rules; /* [count] */
    int count;
    uint64_t seed;
} afdep_faults_t;

/* A provider that opens `inner` and puts the rules around it, under the inner one's name. All ranks of a group use one,
   or none does. Killing is refused (UNSUPPORTED) where two ranks share a process. */
typedef struct afdep_fault_provider {
    afdep_fabric_provider_t super;
    const afdep_fabric_provider_t *inner;
    const afdep_faults_t *faults;
} afdep_fault_provider_t;

void afdep_fault_provider_init(afdep_fault_provider_t *provider, const afdep_fabric_provider_t *inner,
                               const afdep_faults_t *faults);

/* Local. Puts the rules around a fabric that is open, such as the simulator's; closing the result closes `inner`.
   UNSUPPORTED with a rule that kills: all ranks are this process. */
afdep_status_t afdep_fault_wrap(afdep_fabric_t *inner, const afdep_faults_t *faults, afdep_fabric_t **fabric);

/* Names, as files and sentences have them: "slow-actor", "finish_tail"; NULL-terminated: "forward". */
extern const char *const afdep_fault_kind_names[AFDEP_FAULT_KINDS];
extern const char *const afdep_signal_kind_names[AFDEP_SIGNAL_KINDS];
extern const char *const afdep_fault_duties[];

#endif
