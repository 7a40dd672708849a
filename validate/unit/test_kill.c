/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes on shm, one of which is killed: every survivor comes back with AFDEP_ERR_PEER and the dead rank's
 * name, long before its deadline, whoever it was waiting for; killed while opening, the others are told by their group.
 * Nothing of it stays in /dev/shm.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "validate/unit/ranks.h"
#include "validate/unit/rig.h"

#define FFN 2
#define RANKS 6
#define TIMEOUT_MS 20000 /* what nobody may wait for */
#define PATIENCE_MS 8000 /* liveness is looked at ten times a second; the rest is for slow machines */

/* Where a rank finds something wrong: assertions of the test framework work in the test's own process only. */
#define WANT(condition)                                                                                               \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, afdep_last_error());                  \
            return __LINE__;                                                                                          \
        }                                                                                                             \
    } while (0)

typedef enum point { BEFORE_FIRST, BETWEEN, BEFORE_CLOSE, NOBODY_CALLS } point_t;

/* Shared by all processes of a case. */
typedef struct kill_case {
    int orphan; /* the victim leaves a forked child behind, which holds all its descriptors */
    int victim, per_domain, stuck; /* stuck: a rank that lives and does not call, -1: none */
    point_t point;
    atomic_ullong died_ms;
    atomic_int told; /* ranks that know */
    /* Opening only */
    int port, at; /* at: the allgather before which the victim dies, from 1 */
} kill_case_t;

static unsigned long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (unsigned long long)t.tv_sec * 1000u + (unsigned long long)t.tv_nsec / 1000000u;
}

static void die(kill_case_t *c)
{
    if (c->orphan && fork() == 0) {
        sleep(PATIENCE_MS / 1000 + 2);
        _exit(0);
    }
    atomic_store(&c->died_ms, now_ms());
    kill(getpid(), SIGKILL);
    _exit(99);
}

/* Exchanges until one fails. The victim dies in the third. */
static afdep_status_t exchange(rig_t *rig, kill_case_t *c)
{
    afdep_status_t status = AFDEP_OK;
    for (int n = 0; status == AFDEP_OK && n < 100; n++) {
        int here = n == 2 && rig->rank == c->victim;
        if (n == 2 && c->point == BEFORE_CLOSE)
            break;
        if (here && c->point == BEFORE_FIRST)
            die(c);
        while (n == 2 && rig->rank == c->stuck && atomic_load(&c->told) < RANKS - 2)
            usleep(1000); /* it lives, its neighbours wait for it, and they must learn who is dead all the same */
        status = rig_first(rig, RIG_CAPACITY, RIG_CAPACITY);
        if (here)
            die(c);
        if (status == AFDEP_OK)
            status = rig_second(rig);
        if (status == AFDEP_OK && !rig->ffn && rig_wrong_token(rig, RIG_CAPACITY) >= 0)
            return AFDEP_ERR_CONFIG; /* a wrong value: nothing that an exchange returns */
    }
    return status;
}

static int survivor(const afdep_group_t *group, void *context)
{
    kill_case_t *c = context;
    afdep_config_t config = rig_config(FFN, c->per_domain, TIMEOUT_MS);
    afdep_status_t status;
    char want[32];
    alarm(60); /* a hang is a failure */
    rig_t *rig = rig_open(group, &config, &status);
    WANT(rig != NULL);
    status = exchange(rig, c);
    if (c->point == BEFORE_CLOSE) {
        WANT(status == AFDEP_OK);
        if (group->rank == c->victim)
            die(c);
        status = rig_close(rig);
        rig = NULL;
    }
    unsigned long long late = now_ms() - atomic_load(&c->died_ms);
    snprintf(want, sizeof(want), "rank %d is dead", c->victim);
    WANT(status == AFDEP_ERR_PEER);
    WANT(strstr(afdep_last_error(), want) != NULL);
    WANT(atomic_load(&c->died_ms) != 0 && late < PATIENCE_MS);
    atomic_fetch_add(&c->told, 1);
    if (rig) {
        WANT(afdep_buffer_error(rig->buffer) == AFDEP_ERR_PEER);
        WANT(strstr(afdep_last_error(), want) != NULL);
        WANT(rig_first(rig, 8, 8) == AFDEP_ERR_POISONED);
        WANT(strstr(afdep_last_error(), want) != NULL);
        WANT(rig_close(rig) == AFDEP_OK);
    }
    return 0;
}

/* ---- /dev/shm ------------------------------------------------------------------------------------------------ */

/* Whether an object of ours has no living owner: its lock is to be had, now and a moment later. */
static int is_left(const char *name)
{
    char path[512];
    struct stat st;
    int left = 1;
    snprintf(path, sizeof(path), "/dev/shm/%s", name);
    for (int i = 0; left && i < 2; i++) {
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
            return 0;
        left = fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_SH | LOCK_NB) == 0;
        close(fd);
        usleep(left ? 100000 : 0);
    }
    return left;
}

/* Other tests may run beside this one: only what nobody owns counts. */
static void check_nothing_is_left(void)
{
    DIR *directory = opendir("/dev/shm");
    struct dirent *entry;
    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL)
        if (strncmp(entry->d_name, "afdep", 5) == 0 && is_left(entry->d_name))
            fail_msg("/dev/shm/%s was left", entry->d_name);
    closedir(directory);
}

static kill_case_t *new_case(int victim, int per_domain, point_t point)
{
    kill_case_t *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(c != MAP_FAILED);
    c->victim = victim;
    c->per_domain = per_domain;
    c->point = point;
    c->stuck = -1;
    return c;
}

static void run(kill_case_t *c)
{
    int result = run_fork_ranks(RANKS, survivor, c, c->victim);
    if (result != 0)
        fail_msg("rank %d killed at point %d, %d ranks per domain: rank %d is not content", c->victim, (int)c->point,
                 c->per_domain, result - 1);
    munmap(c, sizeof(*c));
    check_nothing_is_left();
}

static void kill_at(point_t point)
{
    for (int per_domain = 0; per_domain <= 2; per_domain += 2) {
        run(new_case(0, per_domain, point));
        run(new_case(1, per_domain, point));
        run(new_case(3, per_domain, point));
        run(new_case(RANKS - 1, per_domain, point));
    }
}

static void test_before_its_exchange(void **state)
{
    (void)state;
    kill_at(BEFORE_FIRST);
}

static void test_in_the_middle(void **state)
{
    (void)state;
    kill_at(BETWEEN);
}

static void test_before_closing(void **state)
{
    (void)state;
    kill_at(BEFORE_CLOSE);
}

/* A source is dead, an FFN rank lives and does not come: those who wait for the FFN rank name the source. */
static void test_waiting_for_a_live_neighbour(void **state)
{
    (void)state;
    for (int per_domain = 0; per_domain <= 2; per_domain += 2)
        for (int stuck = 0; stuck <= 2; stuck += 2) {
            kill_case_t *c = new_case(stuck ? 1 : 3, per_domain, BEFORE_FIRST);
            c->stuck = stuck;
            run(c);
        }
}

/* Engines fork: a lock that a child still holds does not keep its dead parent alive. */
static void test_leaving_a_child(void **state)
{
    (void)state;
    kill_case_t *c = new_case(3, 2, BETWEEN);
    c->orphan = 1;
    run(c);
}

/* ---- Opening ------------------------------------------------------------------------------------------------- */

#define OPENERS 4

/* A group that dies before one of its allgathers. */
typedef struct mortal {
    afdep_group_t inner;
    kill_case_t *c;
    int count;
} mortal_t;

static afdep_status_t mortal_allgather(void *context, const void *send, void *recv, size_t bytes)
{
    mortal_t *m = context;
    if (++m->count == m->c->at && m->inner.rank == m->c->victim)
        die(m->c);
    return m->inner.allgather(m->inner.context, send, recv, bytes);
}

static afdep_status_t mortal_barrier(void *context)
{
    mortal_t *m = context;
    return m->inner.barrier(m->inner.context);
}

static int opener(int rank, kill_case_t *c)
{
    afdep_config_t config = rig_config(1, 0, TIMEOUT_MS);
    afdep_tcp_t tcp = AFDEP_TCP_INIT;
    mortal_t m = { .c = c };
    afdep_status_t status;
    char want[32];
    alarm(60);
    tcp.address = "127.0.0.1";
    tcp.port = c->port;
    tcp.rank = rank;
    tcp.size = OPENERS;
    tcp.token = "a token of this test alone";
    tcp.timeout_ms = TIMEOUT_MS;
    WANT(afdep_group_tcp_create(&tcp, &m.inner) == AFDEP_OK);
    afdep_group_t group = m.inner;
    group.context = &m;
    group.allgather = mortal_allgather;
    group.barrier = mortal_barrier;
    group.destroy = NULL;
    rig_t *rig = rig_open(&group, &config, &status);
    if (c->at > m.count) { /* the count of allgathers was smaller: everything was well */
        WANT(rig != NULL && rig_close(rig) == AFDEP_OK);
        afdep_group_destroy(&m.inner);
        return 0;
    }
    snprintf(want, sizeof(want), "rank %d", c->victim);
    WANT(rig == NULL && status == AFDEP_ERR_BOOTSTRAP);
    WANT(strstr(afdep_last_error(), want) != NULL);
    WANT(now_ms() - atomic_load(&c->died_ms) < PATIENCE_MS);
    afdep_group_destroy(&m.inner);
    return 0;
}

static int free_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* Whether the victim came to die: 0 once `at` is beyond the allgathers that opening does. */
static int open_and_kill(int victim, int at)
{
    kill_case_t *c = new_case(victim, 0, NOBODY_CALLS);
    pid_t pids[OPENERS];
    int died = 0;
    c->port = free_port();
    c->at = at;
    fflush(NULL);
    for (int r = 0; r < OPENERS; r++)
        if ((pids[r] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(opener(r, c) == 0 ? 0 : 1);
        }
    for (int r = 0; r < OPENERS; r++) {
        int status = 0;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (r == victim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            died = 1;
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("rank %d killed before allgather %d: rank %d is not content", victim, at, r);
    }
    munmap(c, sizeof(*c));
    return died;
}

static void test_while_opening(void **state)
{
    (void)state;
    for (int victim = 0; victim <= 3; victim += 3) {
        int at = 1;
        while (open_and_kill(victim, at))
            at++;
        assert_in_range(at, 4, 20); /* several rounds were tried, and the last one was well */
        /* That last opening also swept what the killed ones left. */
        check_nothing_is_left();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_its_exchange),
        cmocka_unit_test(test_in_the_middle),
        cmocka_unit_test(test_before_closing),
        cmocka_unit_test(test_waiting_for_a_live_neighbour),
        cmocka_unit_test(test_leaving_a_child),
        cmocka_unit_test(test_while_opening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
