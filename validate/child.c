/* SPDX-License-Identifier: Apache-2.0 */
/* Child programs and child worlds. */
#include "validate/child.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "validate/exchanger.h"
#include "validate/staged.h"

#define CHILD_WORD "--child-of-afdep-validate"
#define CHILD_TIMEOUT_MS 5000 /* of the library's waits: a dead rank must be named well before */
#define GPU_TIMEOUT_MS 2000 /* there a kernel notices nothing before its deadline */
#define OPEN_MS 20000
#define CHILD_RANKS_MOST 32

extern char **environ;

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void sleep_us(long us)
{
    struct timespec t = { us / 1000000, us % 1000000 * 1000 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

/* ---- Child programs ------------------------------------------------------------------------------------------ */

/* Starts argv with its standard output on a pipe; *out is the end to read. */
static pid_t start(const char *const *argv, int *out)
{
    int ends[2];
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (posix_spawn(&pid, argv[0], &actions, NULL, (char *const *)argv, environ) != 0)
        pid = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (pid < 0)
        close(ends[0]);
    else
        *out = ends[0];
    return pid;
}

/* Reads to the end of the pipe or the deadline; 0 at the end. */
static int read_all(int fd, int64_t deadline, char *said, size_t size)
{
    size_t used = 0;
    char spill[256];
    for (;;) {
        struct pollfd p = { fd, POLLIN, 0 };
        int64_t left = deadline - now_ms();
        if (left <= 0 || (poll(&p, 1, (int)left) < 0 && errno != EINTR))
            return -1;
        if (!p.revents)
            continue;
        int room = used + 1 < size;
        ssize_t n = read(fd, room ? said + used : spill, room ? size - 1 - used : sizeof(spill));
        if (n <= 0)
            break;
        used += room ? (size_t)n : 0;
        said[used] = '\0';
    }
    while (used > 0 && said[used - 1] == '\n')
        said[--used] = '\0';
    return 0;
}

static int reap(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int afdep_validate_spawn(const char *const *argv, int timeout_ms, char *said, size_t size)
{
    int out = -1;
    said[0] = '\0';
    pid_t pid = start(argv, &out);
    if (pid < 0)
        return -1;
    int late = read_all(out, now_ms() + timeout_ms, said, size) != 0;
    close(out);
    if (late)
        kill(pid, SIGKILL);
    int status = reap(pid);
    return late ? -1 : status;
}

/* ---- A rank of a child world --------------------------------------------------------------------------------- */

static afdep_scenario_t child_scenario(int ffn, int attention, int per_domain)
{
    afdep_scenario_t s;
    memset(&s, 0, sizeof(s));
    s.ffn_ranks = ffn;
    s.attention_ranks = attention;
    s.ranks_per_domain = per_domain;
    s.num_experts = 4 * afdep_scenario_workers(&s);
    s.top_k = 2;
    s.hidden = 256;
    s.dtype = AFDEP_DTYPE_FP8;
    s.capacity = 16;
    s.num_sms = 1;
    s.expert_alignment = 1;
    s.seed = 1;
    return s;
}

/* Exchanges until an error, which is this rank's report: "STATUS: sentence". */
static void exchange_for_ever(const afdep_group_t *group, const afdep_scenario_t *scenario, const char *backend,
                              const char *fabric)
{
    afdep_config_t config = afdep_exchanger_config(scenario);
    afdep_buffer_t *buffer = NULL;
    afdep_exchanger_t x;
    int tokens[CHILD_RANKS_MOST];
    config.timeout_ms = CHILD_TIMEOUT_MS;
    config.backend = backend;
    config.fabric = fabric;
    if (strcmp(backend, "cuda") == 0) {
        config.timeout_ms = GPU_TIMEOUT_MS;
        afdep_staged_use_device(group->rank);
    }
    afdep_status_t status = afdep_buffer_open(group, &config, &buffer);
    if (status != AFDEP_OK) {
        printf("%s: %s\n", afdep_status_string(status), afdep_last_error());
        return;
    }
    if (afdep_exchanger_init(&x, scenario, buffer, scenario->seed) != 0) {
        printf("no tensors: %s\n", x.why);
        return;
    }
    printf("open\n");
    fflush(stdout);
    for (uint64_t n = 0; status == AFDEP_OK; n++) {
        for (int a = 0; a < scenario->attention_ranks; a++)
            tokens[a] = (a + (int)(n % 7)) % 5;
        afdep_exchange_plan_t plan = { .number = n, .bucket = 5, .tokens = tokens };
        status = afdep_exchanger_first(&x, &plan);
        if (status == AFDEP_OK)
            status = afdep_exchanger_second(&x, &plan);
    }
    printf("%s: %s\n", afdep_status_string(status), x.why);
    afdep_exchanger_free(&x);
    (void)afdep_buffer_close(buffer);
}

#define ALL_LOST (-1)

/* The only masked rank; ALL_LOST where there are more, 0 where there is none (rank 0 is no source). */
static int lost_rank(afdep_buffer_t *buffer)
{
    int32_t rank = 0, count = 0;
    if (afdep_buffer_lost(buffer, &rank, 1, &count) != AFDEP_OK || count > 1)
        return ALL_LOST;
    return count ? rank : 0;
}

/*
 * Exchanges until AFTER_LOSS exchanges after rank 0 knows of a loss; which one that is stands in `stop`, shared by the
 * ranks. No rank is ahead of rank 0 by more than one exchange, so all of them see it in time. FFN ranks cannot know
 * when the victim stopped sending, so what they receive is compared only where nobody, or the victim all along, is
 * masked.
 */
#define AFTER_LOSS 60
#define AFTER_RETURN 10

/* What a rank of a child world was told. */
typedef struct child {
    afdep_scenario_t scenario;
    afdep_tcp_t tcp;
    int later_port; /* where the survivors and the victim's replacement meet */
    int replaces;   /* 1: it is the replacement */
    _Atomic uint64_t *stop;
} child_t;

static afdep_config_t survivor_config(const child_t *c)
{
    afdep_config_t config = afdep_exchanger_config(&c->scenario);
    config.timeout_ms = CHILD_TIMEOUT_MS;
    config.flags = AFDEP_FLAG_SURVIVE_SOURCES;
    config.fp8_combine = AFDEP_ON;
    return config;
}

static afdep_status_t survive(const child_t *c, afdep_exchanger_t *x, int *lost)
{
    const afdep_scenario_t *s = &c->scenario;
    afdep_status_t status = AFDEP_OK;
    int tokens[CHILD_RANKS_MOST];
    for (uint64_t n = 0; status == AFDEP_OK && n < atomic_load(c->stop); n++) {
        for (int a = 0; a < s->attention_ranks; a++)
            tokens[a] = s->ffn_ranks + a == *lost ? 0 : (a + (int)(n % 7)) % 5;
        afdep_exchange_plan_t plan = { .number = n, .bucket = 5, .tokens = tokens };
        afdep_exchanger_prepare_first(x, &plan);
        status = afdep_exchanger_call_first(x);
        int now = lost_rank(x->buffer);
        x->unchecked = now != *lost;
        *lost = now;
        status = afdep_exchanger_judge_first(x, &plan, status);
        if (status == AFDEP_OK)
            status = afdep_exchanger_second(x, &plan);
        *lost = lost_rank(x->buffer);
        if (c->tcp.rank == 0 && *lost && atomic_load(c->stop) == UINT64_MAX)
            atomic_store(c->stop, n + AFTER_LOSS);
    }
    x->unchecked = 0;
    return status;
}

/* All ranks again: every value of every source. */
static afdep_status_t exchange_together(const child_t *c, afdep_exchanger_t *x)
{
    afdep_status_t status = AFDEP_OK;
    int tokens[CHILD_RANKS_MOST];
    for (uint64_t n = 0; status == AFDEP_OK && n < AFTER_RETURN; n++) {
        for (int a = 0; a < c->scenario.attention_ranks; a++)
            tokens[a] = 1 + (a + (int)n) % 4;
        afdep_exchange_plan_t plan = { .number = 1000000 + n, .bucket = 5, .tokens = tokens };
        status = afdep_exchanger_first(x, &plan);
        if (status == AFDEP_OK)
            status = afdep_exchanger_second(x, &plan);
    }
    return status;
}

static afdep_status_t come_back(child_t *c, afdep_group_t *later, afdep_exchanger_t *x)
{
    c->tcp.port = c->later_port;
    afdep_status_t status = afdep_group_tcp_create(&c->tcp, later);
    if (status == AFDEP_OK)
        status = afdep_buffer_readmit(x->buffer, later);
    if (status != AFDEP_OK)
        snprintf(x->why, sizeof(x->why), "readmission: %s", afdep_last_error());
    return status == AFDEP_OK ? exchange_together(c, x) : status;
}

static void exchange_and_survive(child_t *c, const afdep_group_t *group)
{
    afdep_config_t config = survivor_config(c);
    afdep_buffer_t *buffer = NULL;
    afdep_group_t later = AFDEP_GROUP_INIT;
    afdep_exchanger_t x;
    int lost = 0;
    afdep_status_t status = afdep_buffer_open(group, &config, &buffer);
    if (status != AFDEP_OK) {
        printf("%s: %s\n", afdep_status_string(status), afdep_last_error());
        return;
    }
    printf("open\n");
    fflush(stdout);
    if (afdep_exchanger_init(&x, &c->scenario, buffer, c->scenario.seed) != 0)
        return;
    if (!c->replaces)
        status = survive(c, &x, &lost);
    if (status == AFDEP_OK)
        status = c->replaces ? exchange_together(c, &x) : come_back(c, &later, &x);
    if (status != AFDEP_OK)
        printf("%s: %s\n", afdep_status_string(status), x.why);
    int still = lost_rank(buffer);
    afdep_exchanger_free(&x);
    afdep_status_t closed = afdep_buffer_close(buffer);
    afdep_group_destroy(&later);
    if (status == AFDEP_OK && closed != AFDEP_OK)
        printf("close: %s: %s\n", afdep_status_string(closed), afdep_last_error());
    else if (status == AFDEP_OK)
        printf("survived rank %d, masked at the end %d\n", lost, still);
}

int afdep_child_main(int argc, char **argv, int *status)
{
    if (argc != 13 || strcmp(argv[1], CHILD_WORD) != 0)
        return 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* children do not outlive the suite */
    afdep_staged_begin(0);
    child_t c = { .scenario = child_scenario(atoi(argv[4]), atoi(argv[5]), atoi(argv[6])), .tcp = AFDEP_TCP_INIT,
                  .later_port = atoi(argv[11]), .replaces = atoi(argv[12]) };
    afdep_group_t group;
    int shared = atoi(argv[10]);
    void *stop = shared >= 0 ? mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0) : MAP_FAILED;
    c.tcp.address = "127.0.0.1";
    c.tcp.port = c.replaces ? c.later_port : atoi(argv[3]);
    c.tcp.rank = atoi(argv[2]);
    c.tcp.size = afdep_scenario_ranks(&c.scenario);
    c.tcp.token = argv[7];
    c.tcp.timeout_ms = CHILD_TIMEOUT_MS;
    c.stop = stop;
    afdep_status_t made = afdep_group_tcp_create(&c.tcp, &group);
    if (made != AFDEP_OK) {
        printf("%s: %s\n", afdep_status_string(made), afdep_last_error());
    } else {
        if (stop == MAP_FAILED)
            exchange_for_ever(&group, &c.scenario, argv[8], argv[9]);
        else
            exchange_and_survive(&c, &group);
        afdep_group_destroy(&group);
    }
    fflush(stdout);
    *status = 0;
    return 1;
}

/* ---- Kill cases ---------------------------------------------------------------------------------------------- */

typedef struct child_world {
    int size, victim;
    const char *backend, *fabric;
    int port, later_port;
    int stop; /* where survivors agree on their last exchange, else -1 */
    char token[64];
    pid_t pids[CHILD_RANKS_MOST];
    int out[CHILD_RANKS_MOST];
    char said[CHILD_RANKS_MOST][512];
} child_world_t;

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* A port of the loopback interface that is free now. */
static int free_port(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &size) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

/* A word that children inherit: UINT64_MAX. -1 without. */
static int make_stop(void)
{
    uint64_t never = UINT64_MAX;
    int fd = memfd_create("afdep-validate", 0);
    if (fd >= 0 && write(fd, &never, sizeof(never)) != sizeof(never)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Starts a rank of the world, at first or in the place of one that died. */
static int start_rank(child_world_t *w, const afdep_kill_t *k, int r, int replaces)
{
    char rank[16], port[16], ffn[16], attention[16], per_domain[16], stop[16], later[16];
    snprintf(rank, sizeof(rank), "%d", r);
    snprintf(port, sizeof(port), "%d", w->port);
    snprintf(ffn, sizeof(ffn), "%d", k->ffn);
    snprintf(attention, sizeof(attention), "%d", k->attention);
    snprintf(per_domain, sizeof(per_domain), "%d", k->per_domain);
    snprintf(stop, sizeof(stop), "%d", w->stop);
    snprintf(later, sizeof(later), "%d", w->later_port);
    const char *const argv[] = { "/proc/self/exe", CHILD_WORD, rank, port, ffn, attention, per_domain, w->token,
                                 w->backend, w->fabric, stop, later, replaces ? "1" : "0", NULL };
    w->pids[r] = start(argv, &w->out[r]);
    return w->pids[r] < 0 ? -1 : 0;
}

static int start_world(child_world_t *w, const afdep_validation_t *v, const afdep_kill_t *k, uint64_t random)
{
    memset(w, 0, sizeof(*w));
    w->backend = v->backend;
    w->fabric = v->fabric;
    snprintf(w->token, sizeof(w->token), "child-world-%016llx%08x", (unsigned long long)random, (unsigned)getpid());
    w->port = free_port();
    w->later_port = k->phase == AFDEP_KILL_SURVIVED ? free_port() : 0;
    w->stop = k->phase == AFDEP_KILL_SURVIVED ? make_stop() : -1;
    if (k->phase == AFDEP_KILL_SURVIVED && w->stop < 0)
        return -1;
    w->size = k->ffn + k->attention;
    for (int r = 0; r < w->size; r++)
        if (start_rank(w, k, r, 0) != 0)
            return -1;
    return 0;
}

/* A new process in the place of the killed one. */
static int replace_victim(child_world_t *w, const afdep_kill_t *k)
{
    (void)reap(w->pids[w->victim]);
    close(w->out[w->victim]);
    return start_rank(w, k, w->victim, 1);
}

static void end_world(child_world_t *w)
{
    for (int r = 0; r < w->size; r++) {
        if (w->pids[r] <= 0)
            continue;
        kill(w->pids[r], SIGKILL);
        (void)reap(w->pids[r]);
        close(w->out[r]);
    }
    if (w->stop >= 0)
        close(w->stop);
}

/* Waits until every rank says that it is open. */
static int wait_open(child_world_t *w)
{
    int64_t deadline = now_ms() + OPEN_MS;
    for (int r = 0; r < w->size; r++) {
        char line[8] = "";
        for (size_t n = 0; n < 5;) {
            struct pollfd p = { w->out[r], POLLIN, 0 };
            int64_t left = deadline - now_ms();
            if (left <= 0 || poll(&p, 1, (int)left) <= 0)
                return -1;
            ssize_t got = read(w->out[r], line + n, 5 - n);
            if (got <= 0)
                return -1;
            n += (size_t)got;
        }
        if (memcmp(line, "open\n", 5) != 0)
            return -1;
    }
    return 0;
}

/* After the kill: every survivor must end by itself within the deadline plus a second, naming the victim. */
static void judge_survivors(child_world_t *w, const afdep_kill_t *k, int64_t killed_at, afdep_outcome_t *outcome)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %d", w->victim);
    int64_t deadline = killed_at + CHILD_TIMEOUT_MS + 1000;
    for (int r = 0; r < w->size; r++) {
        int returns = k->phase == AFDEP_KILL_SURVIVED && w->victim >= k->ffn;
        if (r == w->victim && !returns)
            continue;
        char *said = w->said[r];
        if (read_all(w->out[r], deadline, said, sizeof(w->said[r])) != 0) {
            afdep_outcome_set(outcome, AFDEP_FAILED, "rank %d was killed: rank %d still ran %d ms later", w->victim, r,
                              CHILD_TIMEOUT_MS + 1000);
            continue;
        }
        /* While opening, the group may find it first, or the rank may have died before anyone knew it. */
        const char *report = strncmp(said, "open\n", 5) == 0 ? said + 5 : said;
        if (returns) {
            char want[64];
            snprintf(want, sizeof(want), "survived rank %d, masked at the end 0", r == w->victim ? 0 : w->victim);
            if (strcmp(report, want) != 0)
                afdep_outcome_set(outcome, AFDEP_FAILED, "rank %d was killed: rank %d says \"%s\"", w->victim, r,
                                  report);
            continue;
        }
        int named = strstr(report, name) != NULL, peer = strncmp(report, "AFDEP_ERR_PEER", 14) == 0;
        int boot = strncmp(report, "AFDEP_ERR_", 10) == 0;
        if (k->phase == AFDEP_KILL_OPENING ? !boot : !(peer && named))
            afdep_outcome_set(outcome, AFDEP_FAILED, "rank %d was killed: rank %d says \"%s\"", w->victim, r, report);
    }
}

static void run_kill(const afdep_validation_t *v, const afdep_kill_t *k, uint64_t *state, afdep_outcome_t *outcome)
{
    child_world_t w;
    if (start_world(&w, v, k, *state) != 0) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "a child world could not be started: %s", strerror(errno));
        end_world(&w);
        return;
    }
    int first = k->phase == AFDEP_KILL_SURVIVED ? k->ffn : 0;
    w.victim = k->victim >= 0 ? k->victim : first + (int)(next_random(state) % (uint64_t)(w.size - first));
    if (k->phase != AFDEP_KILL_OPENING && wait_open(&w) != 0) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "a child world did not open");
        end_world(&w);
        return;
    }
    sleep_us((long)(next_random(state) % (k->phase == AFDEP_KILL_OPENING ? 60000 : 20000)));
    kill(w.pids[w.victim], SIGKILL);
    if (k->phase == AFDEP_KILL_SURVIVED && w.victim >= k->ffn && replace_victim(&w, k) != 0)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no process for the place of rank %d: %s", w.victim, strerror(errno));
    judge_survivors(&w, k, now_ms(), outcome);
    end_world(&w);
    outcome->exchanges++;
}

#define NAMES_MOST 64
#define NAME_BYTES 64

/* Names of this project in /dev/shm. */
static int list_segments(char names[][NAME_BYTES])
{
    DIR *folder = opendir("/dev/shm");
    int count = 0;
    for (struct dirent *e = folder ? readdir(folder) : NULL; e && count < NAMES_MOST; e = readdir(folder))
        if (strncmp(e->d_name, "afdep-", 6) == 0)
            snprintf(names[count++], NAME_BYTES, "%s", e->d_name);
    if (folder)
        closedir(folder);
    return count;
}

static int is_listed(char names[][NAME_BYTES], int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return 1;
    return 0;
}

/* A name that was not there before and stays. Other jobs of this machine open buffers too, and their names come and go
   within moments, so a new name is looked at again. */
static int find_left(char before[][NAME_BYTES], int count, char *left)
{
    char now[NAMES_MOST][NAME_BYTES], later[NAMES_MOST][NAME_BYTES];
    int found = list_segments(now);
    for (int i = 0; i < found; i++) {
        if (is_listed(before, count, now[i]))
            continue;
        sleep_us(3000000);
        int still = list_segments(later);
        for (int j = i; j < found; j++)
            if (!is_listed(before, count, now[j]) && is_listed(later, still, now[j])) {
                memcpy(left, now[j], NAME_BYTES);
                return 1;
            }
        return 0;
    }
    return 0;
}

void afdep_run_kills(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const afdep_kill_t *k = c->argument;
    if (strcmp(v->fabric, "mpi") == 0) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "a death under MPI ends the whole job; kills run with --fabric shm");
        return;
    }
    afdep_scenario_t scenario = child_scenario(k->ffn, k->attention, k->per_domain);
    if ((k->ffn == 0 || afdep_scenario_shares_domains(&scenario)) && strcmp(v->backend, "cuda") == 0) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "the CUDA backend does not have this protocol");
        return;
    }
    if (k->phase == AFDEP_KILL_SURVIVED && strcmp(v->backend, "cuda") == 0) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "the CUDA backend does not survive lost sources");
        return;
    }
    uint64_t state = v->seed * 0x9E3779B97F4A7C15u + 1;
    char before[NAMES_MOST][NAME_BYTES], left[NAME_BYTES];
    int count = list_segments(before);
    for (int n = 0; n < k->points && outcome->verdict == AFDEP_PASSED; n++)
        run_kill(v, k, &state, outcome);
    if (k->phase != AFDEP_KILL_OPENING && outcome->verdict == AFDEP_PASSED && find_left(before, count, left))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s was left in /dev/shm", left);
}
