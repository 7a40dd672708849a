/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin as NCCL loads it: the library by its file, the tables by their symbols, and puts and signals through each
 * of them, on host memory. What the tables must look like is counted in bytes here, apart from their declarations.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "fabric/gin-loopback/nccl_plugin.h"

#define LIBRARY "libafdep/.libs/libnccl-net-afdep.so"
#define OK(call) assert_int_equal(call, AFDEP_NCCL_SUCCESS)
#define RANKS 3

static void *library;
static int warnings;
static char last_warning[512];

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    va_list arguments;
    (void)flags, (void)file, (void)line;
    if (level != AFDEP_NCCL_LOG_WARN)
        return;
    warnings++;
    va_start(arguments, format);
    vsnprintf(last_warning, sizeof(last_warning), format, arguments);
    va_end(arguments);
}

static const void *table(const char *symbol)
{
    const void *found = dlsym(library, symbol);
    if (!found)
        fail_msg("the plugin has no %s", symbol);
    return found;
}

/* Places that NCCL reads: the pointers of each table, and the properties' fields on a 64-bit machine. */
static void test_layout(void **state)
{
    (void)state;
    assert_int_equal(sizeof(afdep_nccl_net_v11_t), 22 * 8);
    assert_int_equal(sizeof(afdep_nccl_gin_v11_t), 19 * 8);
    assert_int_equal(sizeof(afdep_nccl_gin_v13_t), 21 * 8);
    assert_int_equal(sizeof(afdep_nccl_rma_v14_t), 21 * 8);
    assert_int_equal(offsetof(afdep_nccl_gin_v11_t, iput), 13 * 8);
    assert_int_equal(offsetof(afdep_nccl_gin_v11_t, test), 15 * 8);
    assert_int_equal(offsetof(afdep_nccl_gin_v13_t, iput), 13 * 8);
    assert_int_equal(offsetof(afdep_nccl_gin_v13_t, test), 17 * 8);
    assert_int_equal(offsetof(afdep_nccl_rma_v14_t, test), 17 * 8);
    assert_int_equal(sizeof(afdep_nccl_properties_v11_t), 112);
    assert_int_equal(offsetof(afdep_nccl_properties_v11_t, device_type), 56);
    assert_int_equal(offsetof(afdep_nccl_properties_v11_t, max_p2p_bytes), 88);
    assert_int_equal(sizeof(afdep_nccl_properties_v12_t), 128);
    assert_int_equal(offsetof(afdep_nccl_properties_v12_t, max_p2p_bytes), 104);
    assert_int_equal(offsetof(afdep_nccl_properties_v12_t, rail_id), 124);
    assert_int_equal(sizeof(afdep_nccl_device_handle_t), 32);
}

/* NCCL looks no further than the network's table where that has no device, and takes no GIN that is not a proxy's. */
static void test_devices(void **state)
{
    (void)state;
    const afdep_nccl_net_v11_t *net = table("ncclNetPlugin_v11");
    const afdep_nccl_gin_v11_t *gin = table("ncclGinPlugin_v11");
    const afdep_nccl_rma_v14_t *rma = table("ncclRmaPlugin_v14");
    afdep_nccl_net_config_v11_t config = { -1 };
    afdep_nccl_properties_v11_t p11;
    afdep_nccl_properties_v12_t p12;
    void *context = NULL;
    int count = 0;
    OK(net->init(&context, 1, &config, log_line, NULL));
    OK(net->devices(&count));
    assert_int_equal(count, 1);
    OK(net->get_properties(0, &p11));
    assert_int_equal(p11.device_type, AFDEP_NCCL_DEVICE_HOST);
    assert_null(p11.pci_path);
    OK(gin->get_properties(0, &p11));
    assert_int_equal(p11.device_type, AFDEP_NCCL_DEVICE_GIN_PROXY);
    assert_true(p11.pointers & AFDEP_NCCL_POINTER_CUDA);
    assert_true((p11.max_receives & (p11.max_receives - 1)) == 0); /* NCCL's queues are powers of two */
    OK(rma->get_properties(0, &p12));
    assert_int_equal(p12.device_type, AFDEP_NCCL_DEVICE_GIN_PROXY);
    assert_int_equal(p12.virtual_devices.count, 1);
    assert_int_equal(p12.rail_id, -1);
    /* The network says what it does not do. */
    warnings = 0;
    assert_int_equal(net->listen(context, 0, NULL, NULL), AFDEP_NCCL_INVALID_USAGE);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "does not do this"));
    OK(net->finalize(NULL)); /* NCCL 2.28 has no context for all but the first communicator */
}

/* ---- One communicator through any of the tables ----------------------------------------------------------------- */

typedef struct tables {
    const afdep_nccl_gin_v11_t *v11;
    const afdep_nccl_gin_v13_t *v13;
    const afdep_nccl_rma_v14_t *v14;
} tables_t;

typedef struct rank {
    const tables_t *t;
    int rank;
    void *listener, *comm, *context;
    unsigned char handle[AFDEP_NCCL_HANDLE_BYTES + 1]; /* at odd places, as a byte array may be */
    void *handles[RANKS];
    afdep_nccl_result_t result;
    uint64_t memory[8], signals[RANKS];
    void *memory_handle, *signals_handle;
} rank_t;

static void *connect_main(void *argument)
{
    rank_t *r = argument;
    void *context = NULL;
    if (r->t->v11)
        r->result = r->t->v11->connect(context, r->handles, RANKS, r->rank, r->listener, &r->comm);
    else if (r->t->v13)
        r->result = r->t->v13->connect(context, r->handles, RANKS, r->rank, r->listener, &r->comm);
    else
        r->result = r->t->v14->connect(context, r->handles, RANKS, r->rank, r->listener, &r->comm);
    return NULL;
}

static void set_up(rank_t *ranks, const tables_t *t)
{
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++) {
        void *context = NULL;
        ranks[r].t = t;
        ranks[r].rank = r;
        OK(t->v11 ? t->v11->init(&context, 7, log_line)
                  : t->v13 ? t->v13->init(&context, 7, log_line) : t->v14->init(&context, 7, log_line));
        assert_non_null(context);
        OK(t->v11 ? t->v11->listen(context, 0, ranks[r].handle + 1, &ranks[r].listener)
                  : t->v13 ? t->v13->listen(context, 0, ranks[r].handle + 1, &ranks[r].listener)
                           : t->v14->listen(context, 0, ranks[r].handle + 1, &ranks[r].listener));
    }
    for (int r = 0; r < RANKS; r++)
        for (int p = 0; p < RANKS; p++)
            ranks[r].handles[p] = ranks[p].handle + 1;
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, connect_main, &ranks[r]), 0);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
        OK(ranks[r].result);
    }
}

static void register_all(rank_t *ranks, const tables_t *t)
{
    for (int r = 0; r < RANKS; r++) {
        rank_t *k = &ranks[r];
        void *unused = NULL;
        if (t->v11) {
            OK(t->v11->close_listen(k->listener));
            OK(t->v11->register_memory(k->comm, k->memory, sizeof(k->memory), AFDEP_NCCL_POINTER_HOST, 0,
                                       &k->memory_handle, &unused));
            assert_ptr_equal(unused, k->memory_handle); /* the GPU names it by this as source and as target */
            OK(t->v11->register_memory(k->comm, k->signals, sizeof(k->signals), AFDEP_NCCL_POINTER_HOST, 1,
                                       &k->signals_handle, &unused));
            assert_int_equal(t->v11->register_memory(k->comm, k->memory, 8, 4, 0, &unused, &unused),
                             AFDEP_NCCL_INVALID_ARGUMENT);
        } else if (t->v13) {
            afdep_nccl_gin_config_v13_t config = { .contexts = 2 };
            OK(t->v13->close_listen(k->listener));
            OK(t->v13->create_context(k->comm, &config, &k->context, NULL));
            OK(t->v13->register_memory(k->comm, k->memory, sizeof(k->memory), AFDEP_NCCL_POINTER_HOST, 0,
                                       &k->memory_handle, &unused));
            OK(t->v13->register_memory(k->comm, k->signals, sizeof(k->signals), AFDEP_NCCL_POINTER_HOST, 1,
                                       &k->signals_handle, &unused));
        } else {
            afdep_nccl_rma_config_v14_t config = { .contexts = 2 };
            OK(t->v14->close_listen(k->listener));
            OK(t->v14->create_context(k->comm, &config, &k->context));
            OK(t->v14->register_memory(k->comm, k->memory, sizeof(k->memory), AFDEP_NCCL_POINTER_HOST, 0,
                                       &k->memory_handle));
            OK(t->v14->register_memory(k->comm, k->signals, sizeof(k->signals), AFDEP_NCCL_POINTER_HOST, 1,
                                       &k->signals_handle));
        }
    }
}

static afdep_nccl_result_t put(rank_t *k, int to, uint64_t from_word, uint64_t to_word, void **request)
{
    if (k->t->v11)
        return k->t->v11->iput(k->comm, from_word * 8, k->memory_handle, 8, to_word * 8, k->memory_handle, (uint32_t)to,
                               request);
    if (k->t->v13)
        return k->t->v13->iput(k->context, 1, from_word * 8, k->memory_handle, 8, to_word * 8, k->memory_handle,
                               (uint32_t)to, request);
    return k->t->v14->iput(k->context, 1, from_word * 8, k->memory_handle, 8, to_word * 8, k->memory_handle,
                           (uint32_t)to, request);
}

/* `bytes` 0: a signal alone, without memory, as NCCL hands it over. */
static afdep_nccl_result_t put_signal(rank_t *k, int to, size_t bytes, uint64_t to_word, uint64_t value, uint32_t op,
                                      void **request)
{
    void *memory = bytes ? k->memory_handle : NULL;
    uint64_t at = (uint64_t)k->rank * 8;
    if (k->t->v11)
        return k->t->v11->iput_signal(k->comm, 0, memory, bytes, to_word * 8, memory, (uint32_t)to, at,
                                      k->signals_handle, value, op, request);
    if (k->t->v13)
        return k->t->v13->iput_signal(k->context, 0, 0, memory, bytes, to_word * 8, memory, (uint32_t)to, at,
                                      k->signals_handle, value, op, request);
    return k->t->v14->iput_signal(k->context, 0, 0, memory, bytes, to_word * 8, memory, (uint32_t)to, at,
                                  k->signals_handle, value, op, false, request);
}

static int settle(rank_t *ranks, rank_t *k, void *request)
{
    int done = 0;
    for (int i = 0; i < 10; i++)
        for (int r = 0; r < RANKS; r++) {
            rank_t *p = &ranks[r];
            OK(p->t->v11 ? p->t->v11->progress(p->comm)
                         : p->t->v13 ? p->t->v13->progress(p->context) : p->t->v14->progress(p->context));
        }
    OK(k->t->v11 ? k->t->v11->test(k->comm, request, &done)
                 : k->t->v13 ? k->t->v13->test(k->comm, request, &done) : k->t->v14->test(k->comm, request, &done));
    return done;
}

static void tear_down(rank_t *ranks, const tables_t *t)
{
    for (int r = 0; r < RANKS; r++) {
        rank_t *k = &ranks[r];
        bool failed = true;
        OK(t->v11 ? t->v11->query_error(NULL, &failed)
                  : t->v13 ? t->v13->query_error(k->context, &failed) : t->v14->query_error(k->context, &failed));
        assert_false(failed);
        if (t->v11) {
            OK(t->v11->deregister_memory(k->comm, k->memory_handle));
            OK(t->v11->deregister_memory(k->comm, k->signals_handle));
            OK(t->v11->close_comm(k->comm));
        } else if (t->v13) {
            OK(t->v13->deregister_memory(k->comm, k->memory_handle));
            OK(t->v13->destroy_context(k->context));
            OK(t->v13->close_comm(k->comm));
        } else {
            OK(t->v14->destroy_context(k->context));
            OK(t->v14->close_comm(k->comm));
        }
    }
}

static void exchange(const tables_t *t)
{
    static rank_t ranks[RANKS];
    void *request = NULL;
    memset(ranks, 0, sizeof(ranks));
    warnings = 0;
    set_up(ranks, t);
    register_all(ranks, t);
    ranks[0].memory[0] = 11;
    ranks[0].memory[1] = 22;
    OK(put(&ranks[0], 1, 1, 5, &request));
    assert_true(settle(ranks, &ranks[0], request));
    assert_int_equal(ranks[1].memory[5], 22);
    assert_int_equal(ranks[1].signals[0], 0);
    OK(put_signal(&ranks[0], 2, 8, 3, 40, AFDEP_NCCL_SIGNAL_ADD, &request));
    assert_true(settle(ranks, &ranks[0], request));
    assert_int_equal(ranks[2].memory[3], 11);
    assert_int_equal(ranks[2].signals[0], 40);
    /* An increment is by one, whatever stands beside it. */
    OK(put_signal(&ranks[0], 2, 0, 0, 5, AFDEP_NCCL_SIGNAL_INC, &request));
    assert_true(settle(ranks, &ranks[0], request));
    assert_int_equal(ranks[2].signals[0], 41);
    OK(put_signal(&ranks[1], 2, 0, 0, 1ull << 32 | 7, AFDEP_NCCL_SIGNAL_ADD, &request));
    assert_true(settle(ranks, &ranks[1], request));
    assert_int_equal(ranks[2].signals[1], 1ull << 32 | 7);
    assert_int_equal(ranks[0].signals[1], 0);
    /* Nothing was logged so far; what is wrong is, once. */
    assert_int_equal(warnings, t->v11 ? RANKS : 0); /* the memory of no known kind */
    warnings = 0;
    assert_int_equal(put_signal(&ranks[0], 2, 8, 3, 1, 9, &request), AFDEP_NCCL_INVALID_ARGUMENT);
    assert_int_equal(put(&ranks[0], RANKS, 0, 0, &request), AFDEP_NCCL_INVALID_ARGUMENT);
    assert_int_equal(put(&ranks[0], 1, 8, 0, &request), AFDEP_NCCL_INVALID_ARGUMENT);
    assert_int_equal(warnings, 1);
    tear_down(ranks, t);
}

/* Catches an error for a peer that is gone, which would end NCCL's proxy, and with it what goes to the living. */
static void test_lost_peer(void **state)
{
    (void)state;
    static rank_t ranks[RANKS];
    tables_t t = { .v11 = table("ncclGinPlugin_v11") };
    rank_t *k = &ranks[0];
    void *request = NULL;
    int done = 0;
    memset(ranks, 0, sizeof(ranks));
    set_up(ranks, &t);
    register_all(ranks, &t);
    OK(t.v11->close_comm(ranks[2].comm));
    warnings = 0;
    for (int i = 0; i < 4000000 && warnings == 0; i++) { /* until the queue is full, and it is seen why */
        OK(put(k, 2, 0, 0, &request));
        OK(t.v11->progress(k->comm));
    }
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "rank 2 has left"));
    OK(t.v11->test(k->comm, request, &done)); /* one that waited for room */
    assert_true(done);
    OK(put_signal(k, 2, 8, 0, 1, AFDEP_NCCL_SIGNAL_ADD, &request));
    OK(t.v11->test(k->comm, request, &done));
    assert_true(done);
    k->memory[1] = 33;
    OK(put(k, 1, 1, 5, &request));
    for (int i = 0; i < 10; i++) {
        OK(t.v11->progress(k->comm));
        OK(t.v11->progress(ranks[1].comm));
    }
    assert_int_equal(ranks[1].memory[5], 33);
    assert_int_equal(warnings, 1);
    for (int r = 0; r < 2; r++)
        OK(t.v11->close_comm(ranks[r].comm));
}

static void test_gin_v11(void **state)
{
    (void)state;
    tables_t t = { .v11 = table("ncclGinPlugin_v11") };
    exchange(&t);
}

static void test_gin_v13(void **state)
{
    (void)state;
    tables_t t = { .v13 = table("ncclGinPlugin_v13") };
    void *request = &t;
    assert_null(t.v13->iget); /* NCCL refuses gets by name then */
    OK(t.v13->iflush(NULL, 0, NULL, 0, &request));
    assert_null(request);
    exchange(&t);
}

static void test_rma_v14(void **state)
{
    (void)state;
    tables_t t = { .v14 = table("ncclRmaPlugin_v14") };
    assert_null(t.v14->iget);
    exchange(&t);
}

/* Memory of a GPU where no context is current is refused, not written to. */
static void test_no_gpu(void **state)
{
    (void)state;
    const afdep_nccl_gin_v11_t *gin = table("ncclGinPlugin_v11");
    unsigned char handle[AFDEP_NCCL_HANDLE_BYTES];
    void *handles[1] = { handle }, *listener, *comm, *context, *memory_handle, *device_handle;
    uint64_t memory = 0;
    OK(gin->init(&context, 1, log_line));
    OK(gin->listen(context, 0, handle, &listener));
    OK(gin->connect(context, handles, 1, 0, listener, &comm));
    OK(gin->close_listen(listener));
    assert_int_equal(gin->register_memory(comm, &memory, 8, AFDEP_NCCL_POINTER_CUDA, 0, &memory_handle, &device_handle),
                     AFDEP_NCCL_INVALID_ARGUMENT);
    assert_non_null(strstr(last_warning, "no CUDA context was current"));
    assert_int_equal(gin->create_context(comm, 1, 1, &context, NULL), AFDEP_NCCL_INVALID_USAGE);
    OK(gin->close_comm(comm));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),  cmocka_unit_test(test_devices), cmocka_unit_test(test_gin_v11),
        cmocka_unit_test(test_gin_v13), cmocka_unit_test(test_rma_v14), cmocka_unit_test(test_no_gpu),
        cmocka_unit_test(test_lost_peer),
    };
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("skipped: %s\n", dlerror());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
