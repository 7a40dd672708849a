/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shm fabric, its shared memory objects and the liveness marks: rows before words on every lane, between threads
 * and between processes; nobody writes outside a segment; ranks fail together; names are private and do not stay.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "fabric/fabric.h"
#include "fabric/liveness.h"
#include "fabric/shm_object.h"
#include "validate/unit/exchange.h"
#include "validate/unit/ranks.h"

#define RANKS EXCHANGE_RANKS
#define LANES EXCHANGE_LANES
#define START_WORD 77

static void prepare_nothing(void *context, void *base)
{
    (void)context;
    (void)base;
}

static afdep_status_t open_shm(const afdep_group_t *group, const uint64_t *sizes,
                               void (*prepare)(void *context, void *base), void *context, afdep_fabric_t **fabric)
{
    afdep_fabric_args_t args = {
        .group = group,
        .lanes = LANES,
        .ranks_per_domain = group->size,
        .timeout_ms = 10000,
        .bytes = sizes[group->rank],
        .peer_bytes = sizes,
        .prepare = prepare,
        .prepare_context = context,
    };

    return afdep_fabric_shm.open(&afdep_fabric_shm, &args, fabric);
}

static afdep_status_t open_equal(const afdep_group_t *group, afdep_fabric_t **fabric)
{
    uint64_t sizes[RANKS_MOST];

    for (int r = 0; r < RANKS_MOST; r++)
        sizes[r] = SEGMENT_BYTES;
    return open_shm(group, sizes, prepare_nothing, NULL, fabric);
}

/* ---- Lanes ------------------------------------------------------------------------------------------------------- */

static int lanes_rank(const afdep_group_t *group, void *context)
{
    afdep_fabric_t *f;

    (void)context;
    RANK_REQUIRE(open_equal(group, &f) == AFDEP_OK);
    RANK_REQUIRE(exchange(f) == 0);
    RANK_REQUIRE(f->ops->flush(f) == AFDEP_OK && f->ops->progress(f) == AFDEP_OK);
    for (int r = 0; r < f->size; r++) {
        RANK_REQUIRE(f->counters[r].puts == EXCHANGE_ROUNDS * LANES);
        RANK_REQUIRE(f->counters[r].put_bytes == EXCHANGE_ROUNDS * LANES * EXCHANGE_ROW_BYTES);
        RANK_REQUIRE(f->counters[r].signals[AFDEP_SIGNAL_FINISH_TAIL] == EXCHANGE_ROUNDS * LANES);
        RANK_REQUIRE(f->ops->alive(f, r) == 1);
    }
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    f->ops->close(f, 1);
    return 0;
}

static void test_lanes_between_threads(void **state)
{
    (void)state;
    assert_int_equal(run_thread_ranks(RANKS, lanes_rank, NULL), 0);
}

static void test_lanes_between_processes(void **state)
{
    (void)state;
    assert_int_equal(run_fork_ranks(RANKS, lanes_rank, NULL, -1), 0);
}

/* ---- One mapping for threads, which outlives the first that closes ----------------------------------------------- */

static int shared_mapping_rank(const afdep_group_t *group, void *context)
{
    unsigned char **bases = context;
    uint64_t value = 5;
    afdep_fabric_t *f;

    RANK_REQUIRE(open_equal(group, &f) == AFDEP_OK);
    bases[group->rank] = f->base;
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    for (int r = 0; r < group->size; r++)
        RANK_REQUIRE(afdep_fabric_window(f, r, 0, 8) == bases[r]);
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    if (group->rank == 0)
        f->ops->close(f, 0);
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    if (group->rank == 0)
        return 0;
    RANK_REQUIRE(afdep_fabric_put(f, 0, 0, ROW_AT(group->rank, 0), &value, sizeof(value)) == AFDEP_OK);
    f->ops->close(f, 1);
    return 0;
}

static void test_threads_share_one_mapping(void **state)
{
    unsigned char *bases[RANKS] = { NULL };

    (void)state;
    assert_int_equal(run_thread_ranks(RANKS, shared_mapping_rank, bases), 0);
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/* Rank 0's segment is shorter than rank 1's: a check against the own size would let rank 1 write past its end. */
static int check_bounds(afdep_fabric_t *f)
{
    static const unsigned char row[64];

    RANK_REQUIRE(afdep_fabric_put(f, 0, 0, 64, row, 64) == AFDEP_OK);
    RANK_REQUIRE(afdep_fabric_put(f, 0, 0, 65, row, 64) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(strstr(afdep_last_error(), "64 bytes at offset 65"));
    RANK_REQUIRE(strstr(afdep_last_error(), "128 bytes of rank 0"));
    RANK_REQUIRE(afdep_fabric_put(f, 0, 0, UINT64_MAX - 7, row, 64) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_put(f, 0, 0, 8, row, SIZE_MAX) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_put(f, 0, 2, 0, row, 8) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_put(f, 0, -1, 0, row, 8) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, 0, 0, 120, 0, 1) == AFDEP_OK);
    RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, 0, 0, 128, 0, 1) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, 0, 0, 12, 0, 1) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(strstr(afdep_last_error(), "multiple of 8"));
    RANK_REQUIRE(afdep_fabric_put_signal(f, AFDEP_SIGNAL_CONTROL, 0, 0, 0, row, 64, 128, 0, 1) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_window(f, 0, 64, 64) != NULL && afdep_fabric_window(f, 0, 65, 64) == NULL);
    RANK_REQUIRE(afdep_fabric_window(f, 5, 0, 8) == NULL);
    RANK_REQUIRE(f->counters[0].puts == 1 && f->counters[0].signals[AFDEP_SIGNAL_CONTROL] == 1);
    return 0;
}

static int bounds_rank(const afdep_group_t *group, void *context)
{
    const uint64_t sizes[2] = { 128, 8192 };
    afdep_fabric_t *f;

    (void)context;
    RANK_REQUIRE(open_shm(group, sizes, prepare_nothing, NULL, &f) == AFDEP_OK);
    RANK_REQUIRE(group->rank == 0 || check_bounds(f) == 0);
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    f->ops->close(f, 1);
    return 0;
}

static void test_bounds(void **state)
{
    (void)state;
    assert_int_equal(run_thread_ranks(2, bounds_rank, NULL), 0);
    assert_int_equal(run_fork_ranks(2, bounds_rank, NULL, -1), 0);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* The file behind a mapping, from /proc/self/maps; "" when there is none. */
static void file_of(const void *base, char *path, size_t bytes)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];

    path[0] = '\0';
    while (maps && fgets(line, sizeof(line), maps)) {
        char *slash = strchr(line, '/');

        if (strtoull(line, NULL, 16) != (unsigned long long)(uintptr_t)base || !slash)
            continue;
        slash[strcspn(slash, "\n")] = '\0';
        snprintf(path, bytes, "%s", slash);
    }
    if (maps)
        fclose(maps);
}

typedef struct name_seen {
    char path[256];
    struct stat st;
    int zeroed;
} name_seen_t;

static void look_at_name(void *context, void *base)
{
    name_seen_t *seen = context;
    const unsigned char *bytes = base;

    file_of(base, seen->path, sizeof(seen->path));
    if (stat(seen->path, &seen->st) != 0)
        memset(&seen->st, 0, sizeof(seen->st));
    seen->zeroed = 1;
    for (size_t i = 0; i < SEGMENT_BYTES; i++)
        seen->zeroed &= bytes[i] == 0;
    *(uint64_t *)base = START_WORD;
}

static int names_rank(const afdep_group_t *group, void *context)
{
    uint64_t sizes[2] = { SEGMENT_BYTES, SEGMENT_BYTES };
    name_seen_t seen;
    struct stat st;
    char now[256];
    afdep_fabric_t *f;

    (void)context;
    umask(group->rank == 0 ? 0 : 0377); /* neither a loose nor a tight mask may change the mode */
    RANK_REQUIRE(open_shm(group, sizes, look_at_name, &seen, &f) == AFDEP_OK);
    RANK_REQUIRE(strncmp(seen.path, "/dev/shm/afdep-", 15) == 0 && strlen(seen.path) == 15 + 32);
    RANK_REQUIRE((seen.st.st_mode & 07777) == 0600 && seen.st.st_uid == geteuid() && seen.zeroed);
    RANK_REQUIRE(stat(seen.path, &st) != 0);
    file_of(f->base, now, sizeof(now));
    RANK_REQUIRE(strstr(now, "(deleted)") != NULL);
    /* What prepare wrote is there, in this rank's segment and seen from the other. */
    RANK_REQUIRE(afdep_fabric_read(f, 0) == START_WORD);
    RANK_REQUIRE(*(uint64_t *)afdep_fabric_window(f, 1 - group->rank, 0, 8) == START_WORD);
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    f->ops->close(f, 1);
    return 0;
}

static void test_names_are_private_and_short_lived(void **state)
{
    (void)state;
    assert_int_equal(run_fork_ranks(2, names_rank, NULL, -1), 0);
}

static int exists(const char *name)
{
    char path[64];
    struct stat st;

    snprintf(path, sizeof(path), "/dev/shm%s", name);
    return stat(path, &st) == 0;
}

/* The child is killed between making the object and removing its name. While it lives nobody may sweep the name. */
static void test_sweep_takes_what_the_dead_left(void **state)
{
    afdep_shm_address_t address = { { 0 }, 0, 0 };
    afdep_shm_object_t mine = AFDEP_SHM_OBJECT_INIT;
    int ready[2];
    pid_t child;

    (void)state;
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        afdep_shm_object_t object = AFDEP_SHM_OBJECT_INIT;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (afdep_shm_object_create(&object) != AFDEP_OK ||
            write(ready[1], &object.address, sizeof(object.address)) != (ssize_t)sizeof(object.address))
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &address, sizeof(address)), sizeof(address));
    afdep_shm_sweep();
    assert_true(exists(address.name));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    /* Making an object is what sweeps. */
    assert_int_equal(afdep_shm_object_create(&mine), AFDEP_OK);
    assert_false(exists(address.name));
    assert_true(exists(mine.address.name));
    afdep_shm_object_close(&mine);
    close(ready[0]);
    close(ready[1]);
}

/* Sweeping all the time while objects are made: an object that create() returns keeps its name. */
static void test_sweep_never_takes_the_living(void **state)
{
    pid_t sweeper = fork();
    int lost = 0;

    (void)state;
    if (sweeper == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            afdep_shm_sweep();
    }
    for (int i = 0; i < 3000; i++) {
        afdep_shm_object_t object = AFDEP_SHM_OBJECT_INIT;

        lost += afdep_shm_object_create(&object) != AFDEP_OK || !exists(object.address.name);
        afdep_shm_object_close(&object);
    }
    kill(sweeper, SIGKILL);
    waitpid(sweeper, NULL, 0);
    assert_int_equal(lost, 0);
}

static void test_attach_verifies(void **state)
{
    afdep_shm_object_t object = AFDEP_SHM_OBJECT_INIT;
    afdep_shm_address_t other;
    int fd = -1;

    (void)state;
    assert_int_equal(afdep_shm_object_create(&object), AFDEP_OK);
    assert_int_equal(ftruncate(object.fd, 4096), 0);
    assert_int_equal(afdep_shm_object_attach(&object.address, 4096, 3, &fd), AFDEP_OK);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(fd);
    assert_int_equal(afdep_shm_object_attach(&object.address, 8192, 3, &fd), AFDEP_ERR_PROTOCOL);
    assert_non_null(strstr(afdep_last_error(), "rank 3"));
    other = object.address;
    other.ino++;
    assert_int_equal(afdep_shm_object_attach(&other, 4096, 3, &fd), AFDEP_ERR_SYSTEM);
    assert_non_null(strstr(afdep_last_error(), "not the one it announced"));
    assert_int_equal(fchmod(object.fd, 0660), 0);
    assert_int_equal(afdep_shm_object_attach(&object.address, 4096, 3, &fd), AFDEP_ERR_SYSTEM);
    assert_non_null(strstr(afdep_last_error(), "mode 660"));
    memset(&other, 'x', sizeof(other)); /* no end */
    assert_int_equal(afdep_shm_object_attach(&other, 4096, 3, &fd), AFDEP_ERR_PROTOCOL);
    snprintf(other.name, sizeof(other.name), "/afdep-../../etc/passwd");
    assert_int_equal(afdep_shm_object_attach(&other, 4096, 3, &fd), AFDEP_ERR_PROTOCOL);
    afdep_shm_object_close(&object);
}

/* ---- Failing together -------------------------------------------------------------------------------------------- */

/* A group that counts its allgathers, and moves one rank to another host by changing its boot id. */
typedef struct moved_group {
    const afdep_group_t *inner;
    char boot[40];
    int moved; /* -1: none */
    int calls;
} moved_group_t;

static afdep_status_t moved_allgather(void *context, const void *send, void *recv, size_t bytes)
{
    moved_group_t *g = context;
    afdep_status_t status = g->inner->allgather(g->inner->context, send, recv, bytes);

    g->calls++;
    if (g->moved >= 0) {
        unsigned char *record = (unsigned char *)recv + (size_t)g->moved * bytes;
        unsigned char *boot = memmem(record, bytes, g->boot, strlen(g->boot));

        if (boot)
            boot[0] = boot[0] == 'x' ? 'y' : 'x';
    }
    return status;
}

static void move_rank(moved_group_t *g, const afdep_group_t *group, int rank, afdep_group_t *out)
{
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");

    memset(g, 0, sizeof(*g));
    g->inner = group;
    g->moved = rank;
    if (!boot || !fgets(g->boot, sizeof(g->boot), boot))
        abort();
    fclose(boot);
    g->boot[strcspn(g->boot, "\n")] = '\0';
    *out = *group;
    out->context = g;
    out->allgather = moved_allgather;
}

typedef struct outcome {
    afdep_status_t status[RANKS];
    char sentence[RANKS][512];
    int calls[RANKS];
    int moved;
    int failing; /* the rank whose own size is wrong; -1: none */
    uint64_t bytes;
} outcome_t;

static int failing_rank(const afdep_group_t *group, void *context)
{
    outcome_t *o = context;
    uint64_t sizes[RANKS];
    afdep_group_t wrapped;
    afdep_fabric_t *f = NULL;
    moved_group_t moved;

    move_rank(&moved, group, o->moved, &wrapped);
    for (int r = 0; r < RANKS; r++)
        sizes[r] = o->bytes;
    if (group->rank == o->failing)
        sizes[group->rank] += 8; /* contradicts what the others expect */
    o->status[group->rank] = open_shm(&wrapped, sizes, prepare_nothing, NULL, &f);
    snprintf(o->sentence[group->rank], sizeof(o->sentence[0]), "%s", afdep_last_error());
    o->calls[group->rank] = moved.calls;
    RANK_REQUIRE(f == NULL);
    return 0;
}

static void fail_together(outcome_t *o, afdep_status_t status, const char *word)
{
    assert_int_equal(run_thread_ranks(RANKS, failing_rank, o), 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(o->status[r], status);
        if (!strstr(o->sentence[r], word))
            fail_msg("rank %d: '%s' does not say '%s'", r, o->sentence[r], word);
        assert_int_equal(o->calls[r], o->calls[0]);
    }
}

static void test_another_host_is_refused(void **state)
{
    outcome_t o = { .moved = 2, .failing = -1, .bytes = SEGMENT_BYTES };

    (void)state;
    fail_together(&o, AFDEP_ERR_UNSUPPORTED, "fabric shm reaches only ranks of one host; rank 2 is on another");
}

static void test_one_rank_that_fails_takes_the_others_along(void **state)
{
    outcome_t o = { .moved = -1, .failing = 1, .bytes = SEGMENT_BYTES };

    (void)state;
    fail_together(&o, AFDEP_ERR_AGREEMENT, "rank 1 has a segment of");
}

static void test_no_room_is_said_before_it_kills(void **state)
{
    outcome_t o = { .moved = -1, .failing = -1, .bytes = (uint64_t)1 << 50 };

    (void)state;
    fail_together(&o, AFDEP_ERR_MEMORY, "need 4503599627370496 bytes and /dev/shm has ");
    o.bytes = UINT64_MAX - 100;
    fail_together(&o, AFDEP_ERR_MEMORY, "larger than can be counted");
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1 << 20; /* beyond it, growing the segment would end the process */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    o.bytes = 2 << 20;
    fail_together(&o, AFDEP_ERR_MEMORY, "file size limit is 1048576");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
}

/* ---- Liveness ---------------------------------------------------------------------------------------------------- */

static int wait_dead(afdep_fabric_t *f, int peer)
{
    uint64_t deadline = f->ops->now(f) + (uint64_t)RANKS_WAIT_S * 1000000000u;

    while (f->ops->alive(f, peer)) {
        RANK_REQUIRE(f->ops->now(f) < deadline);
        f->ops->idle(f, 100);
    }
    return 0;
}

/* Rank 2 is killed, rank 1 closes by itself and lives on: only the first is dead. */
static int liveness_rank(const afdep_group_t *group, void *context)
{
    afdep_fabric_t *f;

    (void)context;
    RANK_REQUIRE(open_equal(group, &f) == AFDEP_OK);
    for (int r = 0; r < group->size; r++)
        RANK_REQUIRE(f->ops->alive(f, r) == 1);
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    if (group->rank == 2)
        raise(SIGKILL);
    RANK_REQUIRE(wait_dead(f, 2) == 0);
    RANK_REQUIRE(f->ops->alive(f, 0) == 1 && f->ops->alive(f, 1) == 1);
    /* Rank 0 goes by a word in its segment: rank 2 cannot come to a barrier any more. */
    if (group->rank == 1) {
        uint64_t done = ANSWER_AT(1, 0);

        RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, 0, 0, done, 0, 1) == AFDEP_OK);
        f->ops->close(f, 0);
        return 0;
    }
    while (afdep_fabric_read(f, ANSWER_AT(1, 0)) != 1)
        f->ops->idle(f, 100);
    f->ops->close(f, 0);
    return 0;
}

static void test_a_killed_rank_is_dead(void **state)
{
    (void)state;
    assert_int_equal(run_fork_ranks(3, liveness_rank, NULL, 2), 0);
}

/* A rank that closed in order is not reported dead, whether its process lives on or not. */
static int leaving_rank(const afdep_group_t *group, void *context)
{
    afdep_liveness_t *l;

    (void)context;
    RANK_REQUIRE(afdep_liveness_open(group, &l) == AFDEP_OK);
    RANK_REQUIRE(afdep_liveness_tells(l, 1 - group->rank) == 1 && afdep_liveness_tells(l, group->rank) == 0);
    if (group->rank == 1)
        afdep_liveness_close(l);
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    if (group->rank == 1)
        return 0;
    RANK_REQUIRE(afdep_liveness_alive(l, 1) == 1 && afdep_liveness_alive(l, 0) == 1);
    afdep_liveness_close(l);
    return 0;
}

static int thread_liveness_rank(const afdep_group_t *group, void *context)
{
    afdep_liveness_t *l;

    (void)context;
    RANK_REQUIRE(afdep_liveness_open(group, &l) == AFDEP_OK);
    for (int r = -1; r <= group->size; r++)
        RANK_REQUIRE(afdep_liveness_tells(l, r) == 0 && afdep_liveness_alive(l, r) == 1);
    afdep_liveness_close(l);
    return 0;
}

static void test_leaving_is_not_dying(void **state)
{
    (void)state;
    assert_int_equal(run_fork_ranks(2, leaving_rank, NULL, -1), 0);
    assert_int_equal(run_thread_ranks(3, thread_liveness_rank, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_between_processes),
        cmocka_unit_test(test_lanes_between_threads),
        cmocka_unit_test(test_threads_share_one_mapping),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_names_are_private_and_short_lived),
        cmocka_unit_test(test_sweep_takes_what_the_dead_left),
        cmocka_unit_test(test_sweep_never_takes_the_living),
        cmocka_unit_test(test_attach_verifies),
        cmocka_unit_test(test_another_host_is_refused),
        cmocka_unit_test(test_one_rank_that_fails_takes_the_others_along),
        cmocka_unit_test(test_no_room_is_said_before_it_kills),
        cmocka_unit_test(test_a_killed_rank_is_dead),
        cmocka_unit_test(test_leaving_is_not_dying),
    };

    return cmocka_run_group_tests_name("shm", tests, NULL, NULL);
}
