/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: one table (name, environment variable, range, default, help), resolved once when a buffer is opened or
 * sized. A field of afdep_config_t that is left at its default takes the environment's value.
 */
#ifndef AFDEP_CORE_CONFIG_H
#define AFDEP_CORE_CONFIG_H

#include <afdep/afdep.h>

#include "protocol/layout.h"

/* A modelled NIC, one for each rank: picoseconds that its two ends are busy, and the way between. All 0: none. */
typedef struct afdep_nic {
    int64_t send_ps, receive_ps; /* a put */
    int64_t signal_ps;           /* a signal, at either end */
    int64_t byte_ps;             /* a byte, at either end */
    int64_t latency_ps;
} afdep_nic_t;

static inline int afdep_nic_modelled(const afdep_nic_t *n)
{
    return n->send_ps || n->receive_ps || n->signal_ps || n->byte_ps || n->latency_ps;
}

/* What is asked of NCCL's GPU-initiated networking (GIN). */
typedef struct afdep_gin_settings {
    int num_qps;       /* contexts, each with a queue pair for every peer; 0: what NCCL gives, 4 at most */
    int type;          /* NCCL's number: 2 the proxy, 3 GDAKI; 0: what NCCL chooses */
    int traffic_class; /* -1: NCCL's own */
} afdep_gin_settings_t;

typedef struct afdep_settings {
    afdep_shape_t shape;
    afdep_layout_t layout;
    uint32_t flags;
    int timeout_ms;
    afdep_nic_t nic;
    afdep_gin_settings_t gin;
    int slow_forward_us;
    int default_sms;         /* num_sms was left at its default */
    uint64_t first_exchange; /* exchanges that count as done when the buffer opens: 0 but in tests of the wrap */
    const char *backend;     /* static storage */
    char fabric[16];         /* "" : the group's own, else shm */
    char row_ops[16];
} afdep_settings_t;

/* Where a setting's value came from. */
typedef enum afdep_origin { AFDEP_FROM_DEFAULT, AFDEP_FROM_ENVIRONMENT, AFDEP_FROM_CONFIG } afdep_origin_t;

typedef enum afdep_setting_type { AFDEP_SETTING_INT, AFDEP_SETTING_TOGGLE, AFDEP_SETTING_FLAG, AFDEP_SETTING_TEXT }
    afdep_setting_type_t;

typedef struct afdep_setting {
    const char *name;        /* of the field, or of the variable where there is none */
    const char *environment; /* NULL: no variable */
    afdep_setting_type_t type;
    int64_t low, high;
    int64_t fallback; /* the default */
    size_t offset;    /* into afdep_config_t; AFDEP_SETTING_NO_FIELD: environment only */
    uint32_t flag;    /* AFDEP_SETTING_FLAG: the bit of afdep_config_t.flags */
    const char *help;
} afdep_setting_t;

#define AFDEP_SETTING_NO_FIELD ((size_t)-1)

/* The table, ended by a NULL name, and the most rows it may have. */
#define AFDEP_SETTINGS_MOST 48
extern const afdep_setting_t afdep_settings_table[];

/* A struct_size beyond this was never set: no version of the struct will have it, and reading that far is unsafe. */
#define AFDEP_STRUCT_MOST(known_size) (2 * (known_size) + 4096)

/*
 * A caller's struct as this library knows it: copies the common prefix of `size` bytes into `*known` (zero-filled
 * first), refusing a larger struct whose unknown tail is not zero. `what` names the struct in the message.
 */
afdep_status_t afdep_struct_copy(void *known, size_t known_size, const void *given, size_t given_size, size_t least,
                                 const char *what);

/* Copies a result to a caller's struct of an older or newer version, keeping its struct_size. */
afdep_status_t afdep_struct_give(void *out, size_t out_size, size_t least, const void *known, size_t known_size,
                                 const char *what);

/* Resolves and checks everything for a world of `size` ranks. */
afdep_status_t afdep_settings_resolve(const afdep_config_t *config, int size, afdep_settings_t *settings);

/* One table row's value for `config` (NULL: as if every field were left at its default): what, and from where. Text
   settings give *text, the others *value. */
afdep_status_t afdep_setting_value(const afdep_setting_t *setting, const afdep_config_t *config, int64_t *value,
                                   const char **text, afdep_origin_t *origin);

#endif
