/*
 * afdep/status.h - what a call says it did.
 *
 * Every afdep function that can fail returns an afdep_status_t: 0 is success, errors are negative and grouped by what
 * is unusable afterwards. The sentence that goes with the last error of the calling thread is afdep_last_error().
 */
#ifndef AFDEP_STATUS_H
#define AFDEP_STATUS_H

#if defined(AFDEP_BUILD) && defined(__GNUC__)
#define AFDEP_EXPORT __attribute__((visibility("default")))
#else
#define AFDEP_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum afdep_status {
    AFDEP_OK = 0,

    /* The call was refused and changed nothing; what it was called on stays usable. */
    AFDEP_ERR_ARGUMENT = -1,    /* an argument is missing or out of its range */
    AFDEP_ERR_CONFIG = -2,      /* a configuration field or environment variable has no legal value */
    AFDEP_ERR_ROLE = -3,        /* this rank's role does not make that call */
    AFDEP_ERR_ORDER = -4,       /* the call does not fit the order of the exchange (two dispatches unmatched, ...) */
    AFDEP_ERR_UNSUPPORTED = -5, /* this build, machine or topology cannot do it */
    AFDEP_ERR_CAPACITY = -6,    /* the caller's tensors are too small; the same call may be made again with more room */

    /* What was being made does not exist; nothing is left behind. Returned by makers and by opening. */
    AFDEP_ERR_MEMORY = -20,    /* memory could not be had */
    AFDEP_ERR_SYSTEM = -21,    /* the operating system or a transport refused; the sentence holds its reason */
    AFDEP_ERR_BOOTSTRAP = -22, /* the group could not meet: an address, a missing rank, a stranger, a deadline */
    AFDEP_ERR_AGREEMENT = -23, /* ranks resolved different settings; every rank gets this */

    /* The exchange goes on everywhere, and is completed as usual; the input was not what it should have been. */
    AFDEP_ERR_ROUTE = -40, /* an expert id was outside [0, E) or repeated, and was treated as -1 */

    /* The buffer refuses further exchanges; afdep_buffer_close() is all that is left. */
    AFDEP_ERR_TIMEOUT = -60,  /* all ranks live, and one did not do its part before the deadline */
    AFDEP_ERR_PEER = -61,     /* a rank is dead, or told its peers that its buffer is poisoned */
    AFDEP_ERR_PROTOCOL = -62, /* a word or a row holds what no correct peer writes */
    AFDEP_ERR_POISONED = -63, /* an earlier call on this buffer failed fatally; its sentence is repeated */
    AFDEP_ERR_TRANSPORT = -64 /* the fabric under an open buffer failed; the sentence holds its reason */
} afdep_status_t;

/* The name of a status, such as "AFDEP_ERR_TIMEOUT"; "unknown status" for any other number. Static storage. */
AFDEP_EXPORT const char *afdep_status_string(afdep_status_t status);

/* Nonzero when `status` leaves the buffer that returned it unusable for exchanges (TIMEOUT to TRANSPORT). */
AFDEP_EXPORT int afdep_status_is_fatal(afdep_status_t status);

/*
 * The calling thread's last error as one sentence naming field, rank and value; "" before any. The string belongs to
 * the library and is valid until the thread's next afdep call. Successful calls do not clear it.
 */
AFDEP_EXPORT const char *afdep_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
