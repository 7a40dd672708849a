/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of NCCL, for ranks that are threads of one process: communicators, windows, and a network whose thread carries
 * puts and signals between the ranks' memories. What GIN leaves open it decides by chance, against the reader: puts are
 * held back for milliseconds, overtake each other and later signals, and their sources are read only when they arrive; a
 * signal waits for the puts before it on its context and for its peer, and for nothing else.
 *
 * SIMT_RANKS_PER_DOMAIN says which ranks reach each other by load and store (all), SIMT_CONTEXTS how many contexts there are
 * (3), SIMT_SEED how chance goes.
 */
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <stdio.h>

#include <nccl_device.h>

#include "cuda/nccl.h"
extern "C" {
#include "core/error.h"
}

/* One sender's puts and signals on one context for one peer. */
struct lane {
    std::deque<afdep_simt_put> waiting;
    uint64_t *signals, *counters; /* of the peer's, of the sender's end */
    uint64_t asleep_until;        /* nothing of it arrives before */
};

struct afdep_simt_world {
    std::mutex lock;
    std::condition_variable changed;
    int ranks, met, turn, users;
    std::vector<void *> given; /* [ranks]: what is being gathered */

    int contexts, signals, counters;
    std::vector<std::vector<uint64_t>> signal_words, counter_words; /* [ranks]: [contexts][signals] */
    std::map<std::vector<int>, lane> lanes;                         /* by sender, context, peer */
    std::thread network;
    bool over;
};

/* What an ncclComm_t points to. */
struct comm {
    afdep_simt_world *world;
    int rank;
};

static std::mutex worlds_lock;
static std::map<std::string, afdep_simt_world *> worlds;
static int next_id;

static int setting(const char *name, int fallback)
{
    const char *value = getenv(name);
    return value && atoi(value) > 0 ? atoi(value) : fallback;
}

static comm *of(ncclComm_t c)
{
    return (comm *)c;
}

static int domain_size(const afdep_simt_world *w)
{
    return setting("SIMT_RANKS_PER_DOMAIN", w->ranks);
}

/* All ranks' pointers, once all have come. */
static std::vector<void *> gather(comm *c, void *mine)
{
    afdep_simt_world *w = c->world;
    std::unique_lock<std::mutex> held(w->lock);
    w->given[c->rank] = mine;
    int turn = w->turn;
    if (++w->met == w->ranks) {
        w->met = 0;
        w->turn++;
        w->changed.notify_all();
    }
    w->changed.wait(held, [&]() { return w->turn != turn; });
    std::vector<void *> all = w->given;
    held.unlock();
    held.lock();
    /* Nobody gives anew before all have taken. */
    turn = w->turn;
    if (++w->met == w->ranks) {
        w->met = 0;
        w->turn++;
        w->changed.notify_all();
    }
    w->changed.wait(held, [&]() { return w->turn != turn; });
    return all;
}

/* ---- The network -------------------------------------------------------------------------------------------------- */

static void arrive(lane &l, const afdep_simt_put &put)
{
    if (put.bytes == sizeof(uint64_t))
        __atomic_store_n((uint64_t *)put.to, __atomic_load_n((const uint64_t *)put.from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    else if (put.bytes)
        memcpy(put.to, put.from, put.bytes);
    if (put.counter >= 0)
        __atomic_fetch_add(&l.counters[put.counter], 1, __ATOMIC_RELEASE);
}

/* A chance for some of a lane's puts, then for signals that have nothing before them left. */
static void carry(lane &l, std::mt19937 &chance)
{
    uint64_t now = afdep_simt_now_ns();
    if (now < l.asleep_until)
        return;
    if (chance() % 16 == 0) {
        l.asleep_until = now + chance() % 4000000;
        return;
    }
    for (size_t tries = 0, left = l.waiting.size(); tries < 4 && left; tries++) {
        afdep_simt_put &put = l.waiting[chance() % left];
        if (chance() % 2)
            continue;
        if (put.bytes) {
            arrive(l, put);
            put.bytes = 0;
        }
    }
    for (size_t i = 0; i < l.waiting.size() && l.waiting[i].bytes == 0;) {
        const afdep_simt_put put = l.waiting[i];
        if (put.signal >= 0 && chance() % 2) { /* one behind it may go first */
            i++;
            continue;
        }
        if (put.signal >= 0)
            __atomic_fetch_add(&l.signals[put.signal], put.value, __ATOMIC_RELEASE);
        l.waiting.erase(l.waiting.begin() + (long)i);
    }
}

static void run_network(afdep_simt_world *w)
{
    std::mt19937 chance((unsigned)setting("SIMT_SEED", 1));
    for (;;) {
        size_t left = 0;
        {
            std::lock_guard<std::mutex> held(w->lock);
            for (auto &one : w->lanes) {
                if (!one.second.waiting.empty())
                    carry(one.second, chance);
                left += one.second.waiting.size();
            }
            if (w->over) /* what nobody waits for any more is lost */
                return;
        }
        if (!left)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        else
            std::this_thread::yield();
    }
}

void afdep_simt_post(const ncclDevComm &dc, int context, int peer, const afdep_simt_put &put)
{
    afdep_simt_world *w = dc.world;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    std::lock_guard<std::mutex> held(w->lock);
    lane &l = w->lanes[{ dc.rank, context, peer }];
    l.signals = w->signal_words[peer].data() + (size_t)context * w->signals;
    l.counters = w->counter_words[dc.rank].data() + (size_t)context * w->counters;
    if (put.signal >= w->signals || put.counter >= w->counters) {
        fprintf(stderr, "simt: signal %lld of %d, counter %lld of %d\n", (long long)put.signal, w->signals,
                (long long)put.counter, w->counters);
        abort();
    }
    l.waiting.push_back(put);
}

uint64_t *afdep_simt_signal(const ncclDevComm &dc, int context, int64_t signal)
{
    if (signal >= dc.world->signals)
        abort();
    return dc.world->signal_words[dc.rank].data() + (size_t)context * dc.world->signals + signal;
}

uint64_t *afdep_simt_counter(const ncclDevComm &dc, int context, int64_t counter)
{
    return dc.world->counter_words[dc.rank].data() + (size_t)context * dc.world->counters + counter;
}

/* ---- What the host side calls -------------------------------------------------------------------------------------- */

static ncclResult_t get_version(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

static const char *get_error_string(ncclResult_t)
{
    return "an error of the stand-in for NCCL";
}

static const char *get_last_error(ncclComm_t)
{
    return NULL;
}

static ncclResult_t get_unique_id(ncclUniqueId *id)
{
    std::lock_guard<std::mutex> held(worlds_lock);
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal), "world %d", next_id++);
    return ncclSuccess;
}

static ncclResult_t comm_init_rank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank)
{
    afdep_simt_world *w;
    {
        std::lock_guard<std::mutex> held(worlds_lock);
        w = worlds[id.internal];
        if (!w) {
            w = worlds[id.internal] = new afdep_simt_world{};
            w->ranks = w->users = ranks;
            w->given.resize((size_t)ranks);
        }
    }
    comm *c = new comm{ w, rank };
    (void)gather(c, NULL);
    *out = (ncclComm_t)c;
    return ncclSuccess;
}

/* The last one out stops the network. */
static ncclResult_t comm_leave(ncclComm_t given)
{
    comm *c = of(given);
    afdep_simt_world *w = c->world;
    bool last;
    {
        std::lock_guard<std::mutex> held(w->lock);
        last = --w->users == 0;
        w->over = w->over || last;
    }
    delete c;
    if (!last)
        return ncclSuccess;
    if (w->network.joinable())
        w->network.join();
    std::lock_guard<std::mutex> held(worlds_lock);
    for (auto one = worlds.begin(); one != worlds.end(); one++)
        if (one->second == w) {
            worlds.erase(one);
            break;
        }
    delete w;
    return ncclSuccess;
}

static ncclResult_t window_register(ncclComm_t given, void *memory, size_t bytes, ncclWindow_t *window, int)
{
    comm *c = of(given);
    std::vector<void *> all = gather(c, memory);
    afdep_simt_window *made = new afdep_simt_window{ new unsigned char *[all.size()], bytes, c->rank, domain_size(c->world) };
    for (size_t r = 0; r < all.size(); r++)
        made->at[r] = (unsigned char *)all[r];
    *window = (ncclWindow_t)made;
    return ncclSuccess;
}

static ncclResult_t window_deregister(ncclComm_t, ncclWindow_t window)
{
    afdep_simt_window *w = (afdep_simt_window *)window;
    delete[] w->at;
    delete w;
    return ncclSuccess;
}

static ncclResult_t mem_alloc(void **at, size_t bytes)
{
    *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *at ? ncclSuccess : ncclSystemError;
}

static ncclResult_t mem_free(void *at)
{
    free(at);
    return ncclSuccess;
}

ncclResult_t ncclDevCommCreate(ncclComm_t given, ncclDevCommRequirements const *wanted, ncclDevComm *made)
{
    comm *c = of(given);
    afdep_simt_world *w = c->world;
    int d = domain_size(w);
    *made = { c->rank, w->ranks, c->rank % d, d, 0, {}, 0, w };
    if (!wanted->ginForceEnable)
        return ncclSuccess;
    {
        std::lock_guard<std::mutex> held(w->lock);
        if (!w->contexts) {
            w->contexts = setting("SIMT_CONTEXTS", 3);
            w->signals = wanted->ginSignalCount;
            w->counters = wanted->ginCounterCount;
            w->signal_words.assign((size_t)w->ranks, std::vector<uint64_t>((size_t)w->contexts * w->signals));
            w->counter_words.assign((size_t)w->ranks, std::vector<uint64_t>((size_t)w->contexts * w->counters));
            w->network = std::thread(run_network, w);
        }
        if (wanted->ginSignalCount != w->signals) {
            fprintf(stderr, "simt: rank %d wants %d signals, another %d\n", c->rank, wanted->ginSignalCount, w->signals);
            abort();
        }
    }
    made->ginContextCount = (uint8_t)w->contexts;
    made->ginTypes[0] = 2;
    made->ginSignalCount = w->signals;
    (void)gather(c, NULL);
    return ncclSuccess;
}

ncclResult_t ncclDevCommDestroy(ncclComm_t, ncclDevComm const *)
{
    return ncclSuccess;
}

/* ---- In place of libafdep/cuda/nccl.c -------------------------------------------------------------------------------- */

afdep_status_t afdep_nccl_load(const afdep_nccl_t **nccl)
{
    static afdep_nccl_t table;
    static std::once_flag once;
    std::call_once(once, []() {
        table.get_version = get_version;
        table.get_error_string = get_error_string;
        table.get_last_error = get_last_error;
        table.get_unique_id = get_unique_id;
        table.comm_init_rank = comm_init_rank;
        table.comm_destroy = table.comm_abort = comm_leave;
        table.window_register = window_register;
        table.window_deregister = window_deregister;
        table.mem_alloc = mem_alloc;
        table.mem_free = mem_free;
        table.dev_comm_create = (void (*)(void))ncclDevCommCreate;
        table.dev_comm_destroy = (void (*)(void))ncclDevCommDestroy;
    });
    *nccl = &table;
    return AFDEP_OK;
}

int afdep_nccl_fits(int, int)
{
    return 1;
}

afdep_status_t afdep_nccl_check(const afdep_nccl_t *, ncclResult_t result, afdep_status_t status, const char *what)
{
    return result == ncclSuccess ? AFDEP_OK : afdep_fail(status, "%s: an error of the stand-in for NCCL", what);
}
