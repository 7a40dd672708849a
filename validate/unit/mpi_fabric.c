/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The MPI group and the mpi fabric, as 4 ranks in 2 domains of 2 (mpirun -n 4). Exits 0 and prints "ok", or prints what
 * was not as it should be and ends with MPI_Abort.
 */
#include <afdep/mpi.h>

#include <string.h>

#include "core/error.h"
#include "fabric/fabric.h"
#include "mpi/before_init.h"
#include "mpi/group_mpi.h"
#include "validate/unit/exchange.h"

#define RANKS 4
#define DOMAIN 2
#define START_WORD 77
#define LANES 64
#define BURST 1000 /* more than an outbox holds */
#define SCATTER 40 /* words */

static void prepare(void *context, void *base)
{
    const unsigned char *bytes = base;
    int *zeroed = context;

    *zeroed = 1;
    for (size_t i = 0; i < SEGMENT_BYTES; i++)
        *zeroed &= bytes[i] == 0;
    *(uint64_t *)base = START_WORD;
}

/* Segments of different sizes, as roles have them. */
static afdep_status_t open_mpi(const afdep_group_t *group, int ranks_per_domain, uint64_t own_extra, int *zeroed,
                               afdep_fabric_t **fabric)
{
    uint64_t sizes[RANKS];
    afdep_fabric_args_t args = {
        .group = group,
        .lanes = LANES,
        .ranks_per_domain = ranks_per_domain,
        .timeout_ms = 20000,
        .peer_bytes = sizes,
        .prepare = prepare,
        .prepare_context = zeroed,
    };

    for (int r = 0; r < RANKS; r++)
        sizes[r] = SEGMENT_BYTES + (r < DOMAIN ? 100000 : 8);
    sizes[group->rank] += own_extra;
    args.bytes = sizes[group->rank];
    return group->fabrics->open(group->fabrics, &args, fabric);
}

/* Would catch ranks in another order, a wrong stride, and a barrier that lets ranks through. */
static int check_group(const afdep_group_t *group)
{
    int32_t mine[3] = { group->rank, group->rank * 100, 7 }, all[RANKS][3];

    RANK_REQUIRE(group->size == RANKS);
    for (int n = 0; n < 20; n++) {
        mine[2] = n;
        RANK_REQUIRE(group->allgather(group->context, mine, all, sizeof(mine)) == AFDEP_OK);
        for (int r = 0; r < RANKS; r++)
            RANK_REQUIRE(all[r][0] == r && all[r][1] == r * 100 && all[r][2] == n);
        RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    }
    RANK_REQUIRE(afdep_group_mpi_create(MPI_COMM_NULL, &(afdep_group_t)AFDEP_GROUP_INIT) == AFDEP_ERR_ARGUMENT);
    return 0;
}

static int check_refusals(const afdep_group_t *group)
{
    afdep_group_t strange = *group;
    afdep_fabric_t *f = NULL;
    int zeroed;

    RANK_REQUIRE(open_mpi(group, 3, 0, &zeroed, &f) == AFDEP_ERR_ARGUMENT);
    RANK_REQUIRE(strstr(afdep_last_error(), "ranks_per_domain is 3"));
    RANK_REQUIRE(open_mpi(group, DOMAIN, group->rank == 1 ? 8 : 0, &zeroed, &f) == AFDEP_ERR_AGREEMENT);
    RANK_REQUIRE(strstr(afdep_last_error(), "rank 1 has a segment"));
    /* One rank that cannot go on takes the others along. */
    RANK_REQUIRE(open_mpi(group, group->rank == 2 ? 3 : DOMAIN, 0, &zeroed, &f) == AFDEP_ERR_ARGUMENT);
    RANK_REQUIRE(group->rank == 2 || strstr(afdep_last_error(), "rank 2: ranks_per_domain is 3"));
    RANK_REQUIRE(afdep_group_mpi_of(&strange) != NULL);
    strange.allgather = NULL;
    RANK_REQUIRE(afdep_group_mpi_of(&strange) == NULL);
    RANK_REQUIRE(f == NULL);
    return 0;
}

static int check_reach(afdep_fabric_t *f)
{
    static const unsigned char row[64];
    int other = (f->rank + DOMAIN) % RANKS;
    uint64_t bytes = f->peer_bytes[other];

    for (int r = 0; r < RANKS; r++) {
        int near = r / DOMAIN == f->rank / DOMAIN;

        RANK_REQUIRE((afdep_fabric_window(f, r, 0, 8) != NULL) == near);
        RANK_REQUIRE(f->ops->alive(f, r) == 1);
        RANK_REQUIRE(!near || *(uint64_t *)afdep_fabric_window(f, r, 0, 8) == START_WORD);
    }
    RANK_REQUIRE((uintptr_t)f->base % 64 == 0);
    RANK_REQUIRE(afdep_fabric_read(f, 0) == START_WORD);
    RANK_REQUIRE(afdep_fabric_put(f, 0, other, bytes - 63, row, 64) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_put(f, 0, other, UINT64_MAX - 7, row, 64) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_put(f, 0, RANKS, 0, row, 64) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, 0, other, 4, 0, 1) == AFDEP_ERR_PROTOCOL);
    RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, LANES, other, 0, 0, 1) == AFDEP_ERR_PROTOCOL);
    return 0;
}

/* Two words of one lane, one after the other, flushed now and then: whoever sees the second sees the first. Would catch
   words that leave in another order, words lost where the outbox is full, and words that need a further flush. */
static int burst(afdep_fabric_t *f, const afdep_group_t *group)
{
    int to = (f->rank + DOMAIN) % RANKS;
    uint64_t first = WORD_AT(1, 0), second = WORD_AT(0, 0), seen = 0, sent = 0;
    uint64_t deadline = f->ops->now(f) + (uint64_t)EXCHANGE_WAIT_S * 1000000000u;

    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    while (seen < BURST || sent < BURST) {
        uint64_t b = afdep_fabric_read(f, second), a = afdep_fabric_read(f, first);

        RANK_REQUIRE(b >= seen && b <= a && a <= BURST);
        seen = b;
        if (sent < BURST) {
            sent++;
            RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, 1, to, first, sent - 1, sent) == AFDEP_OK);
            RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, 1, to, second, sent - 1, sent) == AFDEP_OK);
        }
        /* Once all are sent, flushed once and no more. */
        if ((sent % 7 == 0 && sent < 400) || sent == BURST) {
            RANK_REQUIRE(f->ops->flush(f) == AFDEP_OK);
        }
        RANK_REQUIRE(f->ops->progress(f) == AFDEP_OK);
        RANK_REQUIRE(f->ops->now(f) < deadline);
    }
    return 0;
}

/* Words of many lanes in no order of offsets, each written twice before the flush. Would catch a run of words that is
   cut or placed wrongly, and an older value that wins. */
static int scatter(afdep_fabric_t *f, const afdep_group_t *group)
{
    int to = (f->rank + DOMAIN) % RANKS;
    uint64_t deadline = f->ops->now(f) + (uint64_t)EXCHANGE_WAIT_S * 1000000000u;

    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    for (uint64_t n = 1; n <= 20; n++) {
        for (uint64_t i = 0; i < 2 * SCATTER; i++) {
            /* 17 is prime to SCATTER: every word twice. Every fifth place stays empty, to end runs. */
            uint64_t place = i * 17 % SCATTER, offset = ROW_AT(1, 0) + (place + place / 4) * 8;

            RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, (int)place, to, offset, 0,
                                             n * 1000 + place * 2 + (i >= SCATTER)) == AFDEP_OK);
        }
        RANK_REQUIRE(f->ops->flush(f) == AFDEP_OK);
        for (uint64_t place = 0; place < SCATTER; place++) {
            while (afdep_fabric_read(f, ROW_AT(1, 0) + (place + place / 4) * 8) != n * 1000 + place * 2 + 1) {
                RANK_REQUIRE(f->ops->progress(f) == AFDEP_OK);
                RANK_REQUIRE(f->ops->now(f) < deadline);
            }
        }
        for (uint64_t place = 4; place < SCATTER; place += 5)
            RANK_REQUIRE(afdep_fabric_read(f, ROW_AT(1, 0) + place * 8) == 0);
        RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    }
    return 0;
}

/* A row whose source is overwritten right after the flush must arrive as it was. */
static int reuse_source(afdep_fabric_t *f, const afdep_group_t *group)
{
    int to = (f->rank + DOMAIN) % RANKS;
    unsigned char row[EXCHANGE_ROW_BYTES];
    uint64_t deadline = f->ops->now(f) + (uint64_t)EXCHANGE_WAIT_S * 1000000000u;

    memset(row, 0xA5, sizeof(row));
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    RANK_REQUIRE(afdep_fabric_put_signal(f, AFDEP_SIGNAL_CONTROL, 2, to, ROW_AT(3, 2), row, sizeof(row), WORD_AT(3, 2),
                                         0, 99) == AFDEP_OK);
    RANK_REQUIRE(f->ops->flush(f) == AFDEP_OK);
    memset(row, 0x5A, sizeof(row));
    while (afdep_fabric_read(f, WORD_AT(3, 2)) != 99) {
        RANK_REQUIRE(f->ops->progress(f) == AFDEP_OK);
        RANK_REQUIRE(f->ops->now(f) < deadline);
    }
    for (size_t i = 0; i < sizeof(row); i++)
        RANK_REQUIRE(f->base[ROW_AT(3, 2) + i] == 0xA5);
    return 0;
}

/* Two fabrics on one group at once; one is closed while the other goes on. */
static int check_fabric(const afdep_group_t *group)
{
    afdep_fabric_t *f = NULL, *second = NULL;
    int zeroed = 0, second_zeroed = 0;

    RANK_REQUIRE(open_mpi(group, DOMAIN, 0, &zeroed, &f) == AFDEP_OK);
    RANK_REQUIRE(zeroed == 1 && f->size == RANKS && f->rank == group->rank);
    RANK_REQUIRE(check_reach(f) == 0);
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    *(uint64_t *)f->base = 0;
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    RANK_REQUIRE(exchange(f) == 0);
    for (int r = 0; r < RANKS; r++)
        RANK_REQUIRE(f->counters[r].puts == EXCHANGE_ROUNDS * EXCHANGE_LANES);
    RANK_REQUIRE(open_mpi(group, DOMAIN, 0, &second_zeroed, &second) == AFDEP_OK);
    RANK_REQUIRE(second_zeroed == 1);
    f->ops->close(f, 1);
    RANK_REQUIRE(burst(second, group) == 0);
    RANK_REQUIRE(scatter(second, group) == 0);
    RANK_REQUIRE(reuse_source(second, group) == 0);
    RANK_REQUIRE(group->barrier(group->context) == AFDEP_OK);
    second->ops->close(second, 1);
    return 0;
}

int main(int argc, char **argv)
{
    afdep_group_t group = AFDEP_GROUP_INIT;
    int rank = 0, size = 0;

    afdep_mpi_before_init();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != RANKS) {
        fprintf(stderr, "mpi_fabric: started with %d ranks, needs %d\n", size, RANKS);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (afdep_group_mpi_create(MPI_COMM_WORLD, &group) != AFDEP_OK || check_group(&group) != 0 ||
        check_refusals(&group) != 0 || check_fabric(&group) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    afdep_group_destroy(&group);
    if (rank == 0)
        printf("ok\n");
    MPI_Finalize();
    return 0;
}
