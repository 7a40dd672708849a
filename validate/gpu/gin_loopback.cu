/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclGin over the loopback plugin (or over a real NIC): ranks as processes of this host, in domains that NCCL takes
 * for hosts of their own. Every rank puts rows to its rail peers of all other domains and signals them, waits for
 * theirs, checks every byte, and answers the same way; the kernel that does so runs all exchanges, and leaves at a
 * deadline.
 *
 *   gin_loopback [--ranks N] [--ranks-per-domain D] [--exchanges N] [--rows R] [--bytes B] [--contexts C] [--reset 0|1]
 *
 * Run it through scripts/gin-loopback, and under MPS where several ranks share a GPU. Exits 0 when every byte and every
 * signal was as it should be, 77 where there is no GPU, 1 otherwise, 2 for a wrong command line.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* in NCCL's own header */
#include <nccl_device.h>
#pragma GCC diagnostic pop

#define RANKS_MOST 64
#define THREADS 256
#define DEADLINE_NS 10000000000ull
#define WAIT_S 60

struct options {
    int ranks = 4, per_domain = 2, exchanges = 1000, rows = 8, bytes = 512, contexts = 1, reset = 0;
};

/* What the ranks share: NCCL's id, a barrier, and what each found. */
struct board {
    ncclUniqueId id;
    int arrived, failed;
    double us[RANKS_MOST];
};

/* Written by the kernel of one rank. */
struct findings {
    unsigned long long wrong_bytes, first_wrong; /* exchange << 32 | peer << 16 | phase */
    unsigned long long wrong_signals, late;      /* late: what was waited for at the deadline */
};

struct shape {
    int ranks, per_domain, rows, bytes, contexts;
};

/* ---- On the GPU ------------------------------------------------------------------------------------------------- */

static __device__ unsigned word_of(int from, int to, int exchange, int phase, unsigned at)
{
    unsigned x = (unsigned)from * 2654435761u ^ (unsigned)to * 40503u ^ (unsigned)exchange * 97u ^
                 (unsigned)phase * 8191u;
    return (x ^ at) * 2246822519u + at;
}

static __device__ unsigned long long now_ns()
{
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Places in the window: [phase][parity][source or target][rows * bytes], inboxes first, then what is sent. */
static __device__ size_t place(const shape &s, int sending, int phase, int parity, int peer)
{
    size_t block = (size_t)s.rows * s.bytes;
    return ((((size_t)sending * 2 + phase) * 2 + parity) * s.ranks + peer) * block;
}

/* A pair's context is the same on both ends, whoever sends: signals are counted per context. */
static __device__ int context_of(const shape &s, int a, int b)
{
    return (a + b) / s.per_domain % s.contexts;
}

static __device__ void send(const shape &s, ncclDevComm const &dc, ncclWindow_t window, int me, int peer, int exchange,
                            int phase)
{
    ncclGin gin(dc, context_of(s, me, peer));
    ncclTeam world = ncclTeamWorld(dc);
    ncclGinSignal_t signal = phase * s.ranks + me;
    size_t from = place(s, 1, phase, exchange & 1, peer), to = place(s, 0, phase, exchange & 1, me);
    /* A tail as the protocol has it: one finish, and the rows it covers. It rides on the last row, or comes after. */
    ncclGin_SignalAdd tail{ signal, (1ull << 32) | (unsigned)s.rows };
    for (int row = 0; row < s.rows; row++, from += s.bytes, to += s.bytes) {
        if (row == s.rows - 1 && exchange % 2 == 0)
            gin.put(world, peer, window, to, window, from, s.bytes, tail);
        else
            gin.put(world, peer, window, to, window, from, s.bytes);
    }
    if (exchange % 2 != 0)
        gin.signal(world, peer, tail);
}

static __device__ int await(const shape &s, ncclDevComm const &dc, int me, int peer, unsigned long long count,
                            int phase, unsigned long long deadline, findings *found)
{
    ncclGin gin(dc, context_of(s, me, peer));
    unsigned long long want = count << 32 | (unsigned)(count * (unsigned)s.rows), got;
    while ((got = gin.readSignal(phase * s.ranks + peer)) != want) {
        if (got > want) {
            atomicAdd(&found->wrong_signals, 1);
            return 0;
        }
        if (now_ns() > deadline) {
            atomicExch(&found->late, count << 32 | (unsigned)peer << 16 | (unsigned)phase | 1ull << 63);
            return 0;
        }
    }
    return 1;
}

static __global__ void exchange_all(shape s, ncclDevComm dc, ncclWindow_t window, int me, int first, int exchanges,
                                    unsigned base, findings *found)
{
    __shared__ int go;
    unsigned long long deadline = now_ns() + DEADLINE_NS;
    int rail = me % s.per_domain, domains = s.ranks / s.per_domain, words = s.rows * s.bytes / 4;

    for (int e = first; e < first + exchanges; e++) {
        for (int phase = 0; phase < 2; phase++) {
            for (int d = 0; d < domains; d++) {
                int peer = d * s.per_domain + rail;
                if (peer == me)
                    continue;
                unsigned *to = (unsigned *)ncclGetLocalPointer(window, place(s, 1, phase, e & 1, peer));
                for (int i = threadIdx.x; i < words; i += THREADS)
                    to[i] = word_of(me, peer, e, phase, i);
            }
            /* All threads' words before the puts of those that send: the barrier, and the put's own release. */
            __syncthreads();
            if (threadIdx.x == 0)
                go = 1;
            __syncthreads();
            for (int d = threadIdx.x; d < domains; d += THREADS) {
                int peer = d * s.per_domain + rail;
                if (peer != me)
                    send(s, dc, window, me, peer, e, phase);
            }
            __syncthreads(); /* nobody waits while a neighbour of its warp has yet to send */
            for (int d = threadIdx.x; d < domains; d += THREADS) {
                int peer = d * s.per_domain + rail;
                if (peer == me)
                    continue;
                if (!await(s, dc, me, peer, (unsigned long long)(e + 1 - (int)base), phase, deadline, found))
                    go = 0;
            }
            __syncthreads();
            if (!go)
                return;
            for (int d = 0; d < domains; d++) {
                int peer = d * s.per_domain + rail;
                if (peer == me)
                    continue;
                const unsigned *at = (const unsigned *)ncclGetLocalPointer(window, place(s, 0, phase, e & 1, peer));
                for (int i = threadIdx.x; i < words; i += THREADS)
                    if (__ldcv(at + i) != word_of(peer, me, e, phase, i) && atomicAdd(&found->wrong_bytes, 1) == 0)
                        found->first_wrong = (unsigned long long)e << 32 | (unsigned)peer << 16 | (unsigned)phase;
            }
            __syncthreads();
        }
    }
}

/* Nobody may be signalling meanwhile. */
static __global__ void reset_all(shape s, ncclDevComm dc)
{
    for (int c = 0; c < s.contexts; c++) {
        ncclGin gin(dc, c);
        for (int i = threadIdx.x; i < 2 * s.ranks; i += THREADS)
            gin.resetSignal(i);
    }
}

/* ---- A rank ----------------------------------------------------------------------------------------------------- */

#define CUDA(call)                                                                                                    \
    do {                                                                                                              \
        cudaError_t e_ = (call);                                                                                      \
        if (e_ != cudaSuccess) {                                                                                      \
            fprintf(stderr, "gin_loopback: rank %d: %s: %s\n", rank, #call, cudaGetErrorString(e_));                  \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)
#define NCCL(call)                                                                                                    \
    do {                                                                                                              \
        ncclResult_t e_ = (call);                                                                                     \
        if (e_ != ncclSuccess) {                                                                                      \
            fprintf(stderr, "gin_loopback: rank %d: %s: %s (%s)\n", rank, #call, ncclGetErrorString(e_),              \
                    ncclGetLastError(NULL));                                                                          \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)

static int barrier(board *b, int ranks, int *turn)
{
    time_t until = time(NULL) + WAIT_S;
    ++*turn;
    __atomic_fetch_add(&b->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&b->arrived, __ATOMIC_ACQUIRE) < *turn * ranks) {
        if (time(NULL) > until || __atomic_load_n(&b->failed, __ATOMIC_ACQUIRE))
            return 1;
        sched_yield();
    }
    return 0;
}

static int judge(const findings &f, int rank)
{
    if (f.late)
        fprintf(stderr, "gin_loopback: rank %d: no signal %llu of phase %llu from rank %llu before the deadline\n",
                rank, (f.late & ~(1ull << 63)) >> 32, f.late & 0xFFFF, f.late >> 16 & 0xFFFF);
    if (f.wrong_signals)
        fprintf(stderr, "gin_loopback: rank %d: %llu signals beyond what was sent\n", rank, f.wrong_signals);
    if (f.wrong_bytes)
        fprintf(stderr, "gin_loopback: rank %d: %llu wrong words, first in exchange %llu from rank %llu, phase %llu\n",
                rank, f.wrong_bytes, f.first_wrong >> 32, f.first_wrong >> 16 & 0xFFFF, f.first_wrong & 0xFFFF);
    return f.late || f.wrong_signals || f.wrong_bytes;
}

static int run_rank(const options &o, int rank, board *b)
{
    int devices = 0, turn = 0, version = 0;
    char host[64];
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaSetDevice(rank % devices));
    snprintf(host, sizeof(host), "afdep-domain-%d", rank / o.per_domain);
    setenv("NCCL_HOSTID", host, 1);
    NCCL(ncclGetVersion(&version));
    if (rank == 0)
        NCCL(ncclGetUniqueId(&b->id));
    if (barrier(b, o.ranks, &turn))
        return 1;
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, o.ranks, b->id, rank));
    shape s = { o.ranks, o.per_domain, o.rows, o.bytes, o.contexts };
    size_t bytes = (size_t)8 * o.ranks * o.rows * o.bytes;
    void *memory = NULL;
    ncclWindow_t window = NULL;
    NCCL(ncclMemAlloc(&memory, bytes));
    CUDA(cudaMemset(memory, 0xEE, bytes));
    CUDA(cudaDeviceSynchronize());
    NCCL(ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    if (!window) {
        fprintf(stderr, "gin_loopback: rank %d: NCCL registered no window\n", rank);
        return 1;
    }
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
    ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    wanted.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
#else
    ncclDevCommRequirements wanted = {};
#endif
    wanted.ginForceEnable = true;
    wanted.ginContextCount = o.contexts;
    wanted.ginSignalCount = 2 * o.ranks;
    ncclDevComm dc;
    NCCL(ncclDevCommCreate(comm, &wanted, &dc));
    if (s.contexts > (int)dc.ginContextCount)
        s.contexts = dc.ginContextCount;
    if (rank == 0)
        printf("# NCCL %d.%d.%d (header %d.%d.%d), %d contexts, domain of %d ranks\n", version / 10000,
               version / 100 % 100, version % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, s.contexts, dc.lsaSize);
    if (dc.lsaSize != o.per_domain)
        fprintf(stderr, "gin_loopback: rank %d: NCCL sees a domain of %d ranks, not %d\n", rank, dc.lsaSize,
                o.per_domain);

    findings *found = NULL, result;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    float ms = 0;
    int warm = o.exchanges < 20 ? o.exchanges : 20;
    CUDA(cudaMalloc(&found, sizeof(*found)));
    CUDA(cudaMemset(found, 0, sizeof(*found)));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaDeviceSynchronize());
    if (barrier(b, o.ranks, &turn))
        return 1;
    exchange_all<<<1, THREADS, 0, stream>>>(s, dc, window, rank, 0, warm, 0, found);
    CUDA(cudaStreamSynchronize(stream));
    if (barrier(b, o.ranks, &turn))
        return 1;
    if (o.reset) {
        reset_all<<<1, THREADS, 0, stream>>>(s, dc);
        CUDA(cudaStreamSynchronize(stream));
        if (barrier(b, o.ranks, &turn))
            return 1;
    }
    CUDA(cudaEventRecord(begin, stream));
    exchange_all<<<1, THREADS, 0, stream>>>(s, dc, window, rank, warm, o.exchanges, o.reset ? warm : 0, found);
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    CUDA(cudaMemcpy(&result, found, sizeof(result), cudaMemcpyDeviceToHost));
    b->us[rank] = ms * 1000.0 / o.exchanges;
    int wrong = judge(result, rank);
    if (wrong)
        __atomic_store_n(&b->failed, 1, __ATOMIC_RELEASE);
    ncclResult_t async = ncclSuccess;
    NCCL(ncclCommGetAsyncError(comm, &async));
    if (async != ncclSuccess) {
        fprintf(stderr, "gin_loopback: rank %d: NCCL reports %s\n", rank, ncclGetErrorString(async));
        return 1;
    }
    if (barrier(b, o.ranks, &turn) || wrong)
        return 1;
    NCCL(ncclDevCommDestroy(comm, &dc));
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommDestroy(comm));
    return 0;
}

/* ---- The program ------------------------------------------------------------------------------------------------ */

static int parse(options *o, int argc, char **argv)
{
    const struct {
        const char *name;
        int *value, least, most;
    } known[] = {
        { "--ranks", &o->ranks, 2, RANKS_MOST },     { "--ranks-per-domain", &o->per_domain, 1, RANKS_MOST },
        { "--exchanges", &o->exchanges, 1, 1000000 }, { "--rows", &o->rows, 1, 4096 },
        { "--bytes", &o->bytes, 16, 1 << 20 },       { "--contexts", &o->contexts, 1, 64 },
        { "--reset", &o->reset, 0, 1 },
    };
    for (int i = 1; i < argc; i += 2) {
        int found = 0;
        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]) && i + 1 < argc; k++) {
            char *end = NULL;
            if (strcmp(argv[i], known[k].name) != 0)
                continue;
            long value = strtol(argv[i + 1], &end, 10);
            found = end != argv[i + 1] && !*end && value >= known[k].least && value <= known[k].most;
            *known[k].value = (int)value;
        }
        if (!found) {
            fprintf(stderr, "gin_loopback: %s: unknown, or its value is\n", argv[i]);
            return 2;
        }
    }
    if (o->ranks % o->per_domain != 0 || o->ranks == o->per_domain || o->bytes % 16 != 0) {
        fprintf(stderr,
                "gin_loopback: --ranks must be several times --ranks-per-domain, and --bytes a multiple of 16\n");
        return 2;
    }
    return 0;
}

/* Nobody here has touched CUDA before the ranks are forked: a driver does not survive that. */
int main(int argc, char **argv)
{
    options o;
    int status = parse(&o, argc, argv);
    if (status)
        return status;
    if (access("/dev/nvidiactl", F_OK) != 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    board *b = (board *)mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was said before a deadline from outside is kept */
    fflush(NULL);
    for (int r = 0; r < o.ranks; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            int failed = run_rank(o, r, b);
            if (failed)
                __atomic_store_n(&b->failed, 1, __ATOMIC_RELEASE);
            fflush(NULL);
            _exit(failed);
        }
        if (pid < 0)
            return 1;
    }
    for (int r = 0; r < o.ranks; r++) {
        int ended = 0;
        if (wait(&ended) < 0 || !WIFEXITED(ended) || WEXITSTATUS(ended) != 0) {
            __atomic_store_n(&b->failed, 1, __ATOMIC_RELEASE);
            status = 1;
        }
    }
    double least = 1e30, most = 0;
    for (int r = 0; r < o.ranks; r++) {
        least = b->us[r] < least ? b->us[r] : least;
        most = b->us[r] > most ? b->us[r] : most;
    }
    printf("ranks %d domain %d rows %d bytes %d contexts %d reset %d exchanges %d: %.1f to %.1f us per exchange, %s\n",
           o.ranks, o.per_domain, o.rows, o.bytes, o.contexts, o.reset, o.exchanges, least, most,
           status ? "FAILED" : "ok");
    return status;
}
