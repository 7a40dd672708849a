/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A toy decode loop on the host backend: two Attention ranks and two FFN ranks as threads, two layers of expert MLPs,
 * two micro-batches that alternate over two buffers. Every Attention rank checks every layer's result against a dense
 * computation of the same experts.
 *
 *     cc engine.c $(pkg-config --cflags --libs afdep) -lpthread -lm && ./a.out
 *
 * What a real engine does beside it: attention where attend() stands, GEMMs where run_expert() stands, and a group of
 * processes (afdep_group_tcp_create, afdep_group_mpi_create) in place of threads.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <afdep/afdep.h>

enum { FFN = 2, ATTENTION = 2, RANKS = FFN + ATTENTION };
enum { EXPERTS = 8, TOP_K = 2, HIDDEN = 256, INNER = 32, LAYERS = 2, STEPS = 4 };
enum { BATCHES = 2, TOKENS = 3 }; /* micro-batches of an Attention rank, and tokens of each */
enum { OWNED = EXPERTS / FFN, MOST_ROWS = ATTENTION * TOKENS * TOP_K };

/* ---- BF16, and the model's weights, which every rank computes for itself -------------------------------------- */

static float widen(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint16_t narrow(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* A number in (-1, 1) that depends on all of its arguments. */
static float weight(uint32_t layer, uint32_t what, uint32_t row, uint32_t column)
{
    uint32_t z = ((layer * 31u + what) * 1009u + row) * 4099u + column;
    z = (z ^ z >> 16) * 0x45D9F3Bu;
    z = (z ^ z >> 16) * 0x45D9F3Bu;
    return (float)(z >> 8) / (float)(1 << 23) - 1;
}

enum { ROUTER = 100, UP = 200, DOWN = 300 }; /* `what` of weight(); + the expert */

/* out = DOWN * relu(UP * x) of one expert. */
static void run_expert(int layer, int expert, const uint16_t *x, float *out)
{
    float inner[INNER];
    for (int i = 0; i < INNER; i++) {
        float sum = 0;
        for (int h = 0; h < HIDDEN; h++)
            sum += weight((uint32_t)layer, UP + (uint32_t)expert, (uint32_t)i, (uint32_t)h) * widen(x[h]);
        inner[i] = sum > 0 ? sum / 16 : 0;
    }
    for (int h = 0; h < HIDDEN; h++) {
        out[h] = 0;
        for (int i = 0; i < INNER; i++)
            out[h] += weight((uint32_t)layer, DOWN + (uint32_t)expert, (uint32_t)h, (uint32_t)i) * inner[i] / 4;
    }
}

/* ---- One rank ------------------------------------------------------------------------------------------------- */

typedef struct rank {
    afdep_group_t group;
    pthread_t thread;
    afdep_buffer_t *buffers[BATCHES];
    float worst; /* Attention: the largest difference from the dense result, of the largest element */
    char why[600];
} rank_t;

static int failed(rank_t *rank, const char *what)
{
    snprintf(rank->why, sizeof(rank->why), "rank %d: %s: %s", rank->group.rank, what, afdep_last_error());
    return -1;
}

/* ---- FFN ranks: the same order of calls, whatever comes -------------------------------------------------------- */

typedef struct work {
    _Alignas(64) uint16_t rows[MOST_ROWS][HIDDEN], replies[MOST_ROWS][HIDDEN];
    float row_weight[MOST_ROWS];
    int32_t ends[OWNED];
} work_t;

static int serve(rank_t *rank, work_t *w, int layer, int batch)
{
    afdep_receive_t receive = AFDEP_RECEIVE_INIT;
    receive.bucket = TOKENS;
    receive.rows = w->rows;
    receive.row_weight = w->row_weight;
    receive.ends = w->ends;
    receive.rows_capacity = MOST_ROWS;
    if (afdep_worker_receive(rank->buffers[batch], &receive, NULL) != AFDEP_OK)
        return failed(rank, "receive");
    for (int e = 0, row = 0; e < OWNED; e++)
        for (; row < w->ends[e]; row++) {
            float out[HIDDEN];
            run_expert(layer, rank->group.rank * OWNED + e, w->rows[row], out);
            for (int h = 0; h < HIDDEN; h++)
                w->replies[row][h] = narrow(w->row_weight[row] * out[h]); /* the routing weight, exactly once */
        }
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    reply.rows = w->replies;
    reply.receipt = receive.receipt;
    return afdep_worker_reply(rank->buffers[batch], &reply, NULL) == AFDEP_OK ? 0 : failed(rank, "reply");
}

static int run_ffn(rank_t *rank)
{
    work_t *w = aligned_alloc(64, sizeof(*w));
    int status = w ? 0 : failed(rank, "no memory");
    for (int n = 0; status == 0 && n < STEPS * LAYERS * BATCHES; n++)
        status = serve(rank, w, n / BATCHES % LAYERS, n % BATCHES);
    free(w);
    return status;
}

/* ---- Attention ranks ------------------------------------------------------------------------------------------- */

typedef struct batch {
    _Alignas(64) uint16_t x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
    int32_t ids[TOKENS][TOP_K];
    float weights[TOKENS][TOP_K];
} batch_t;

/* Attention's stand-in: the token looks at its neighbours and is normalized. */
static void attend(uint16_t *x)
{
    float mixed[HIDDEN], square = 0;
    for (int h = 0; h < HIDDEN; h++) {
        mixed[h] = widen(x[h]) + widen(x[(h + 1) % HIDDEN]) / 2;
        square += mixed[h] * mixed[h];
    }
    for (int h = 0; h < HIDDEN; h++)
        x[h] = narrow(mixed[h] / sqrtf(square / HIDDEN));
}

/* The TOP_K experts with the largest scores, and their softmax. */
static void route(int layer, const uint16_t *x, int32_t *ids, float *weights)
{
    float score[EXPERTS], total = 0;
    for (int e = 0; e < EXPERTS; e++) {
        score[e] = 0;
        for (int h = 0; h < HIDDEN; h++)
            score[e] += weight((uint32_t)layer, ROUTER, (uint32_t)e, (uint32_t)h) * widen(x[h]) / 16;
    }
    for (int k = 0; k < TOP_K; k++) {
        int best = 0;
        for (int e = 1; e < EXPERTS; e++)
            best = score[e] > score[best] ? e : best;
        ids[k] = best;
        weights[k] = expf(score[best]);
        total += weights[k];
        score[best] = -INFINITY;
    }
    for (int k = 0; k < TOP_K; k++)
        weights[k] /= total;
}

static int dispatch(rank_t *rank, batch_t *b, int layer, int batch)
{
    for (int t = 0; t < TOKENS; t++) {
        attend(b->x[t]);
        route(layer, b->x[t], b->ids[t], b->weights[t]);
    }
    afdep_dispatch_t d = AFDEP_DISPATCH_INIT;
    d.tokens = d.bucket = TOKENS;
    d.x = b->x;
    d.ids = b->ids[0];
    d.weights = b->weights[0];
    return afdep_source_dispatch(rank->buffers[batch], &d, NULL) == AFDEP_OK ? 0 : failed(rank, "dispatch");
}

/* The same layer without any exchange, and how far the two are apart. */
static void compare(rank_t *rank, const batch_t *b, int layer)
{
    for (int t = 0; t < TOKENS; t++) {
        float dense[HIDDEN] = { 0 }, out[HIDDEN], largest = 0, apart = 0;
        for (int k = 0; k < TOP_K; k++) {
            run_expert(layer, b->ids[t][k], b->x[t], out);
            for (int h = 0; h < HIDDEN; h++)
                dense[h] += b->weights[t][k] * out[h];
        }
        for (int h = 0; h < HIDDEN; h++) {
            largest = fmaxf(largest, fabsf(dense[h]));
            apart = fmaxf(apart, fabsf(dense[h] - widen(b->y[t][h])));
        }
        rank->worst = fmaxf(rank->worst, apart / largest);
    }
}

static int collect(rank_t *rank, batch_t *b, int layer, int batch)
{
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    c.out = b->y;
    if (afdep_source_collect(rank->buffers[batch], &c, NULL) != AFDEP_OK)
        return failed(rank, "collect");
    compare(rank, b, layer);
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++)
            b->x[t][h] = narrow(widen(b->x[t][h]) + widen(b->y[t][h])); /* the residual */
    return 0;
}

/* While the experts have one micro-batch, this rank attends to the other: the two are in flight at the same time. */
static int run_attention(rank_t *rank)
{
    batch_t *b = aligned_alloc(64, BATCHES * sizeof(*b));
    int status = b ? 0 : failed(rank, "no memory");
    for (int i = 0; status == 0 && i < BATCHES * TOKENS * HIDDEN; i++)
        b[i / (TOKENS * HIDDEN)].x[i / HIDDEN % TOKENS][i % HIDDEN] =
            narrow(weight(999, (uint32_t)rank->group.rank, (uint32_t)(i / HIDDEN), (uint32_t)(i % HIDDEN)));
    int halves = STEPS * LAYERS;
    for (int batch = 0; status == 0 && batch < BATCHES; batch++)
        status = dispatch(rank, &b[batch], 0, batch);
    for (int n = 0; status == 0 && n < halves * BATCHES; n++) {
        int half = n / BATCHES, batch = n % BATCHES;
        status = collect(rank, &b[batch], half % LAYERS, batch);
        if (status == 0 && half + 1 < halves)
            status = dispatch(rank, &b[batch], (half + 1) % LAYERS, batch);
    }
    free(b);
    return status;
}

/* ---- All ranks -------------------------------------------------------------------------------------------------- */

static void *run(void *argument)
{
    rank_t *rank = argument;
    afdep_config_t config = AFDEP_CONFIG_INIT;
    int opened = 0;
    config.ffn_ranks = FFN;
    config.num_experts = EXPERTS;
    config.top_k = TOP_K;
    config.hidden = HIDDEN;
    config.capacity = TOKENS;
    for (; opened < BATCHES; opened++)
        if (afdep_buffer_open(&rank->group, &config, &rank->buffers[opened]) != AFDEP_OK) {
            failed(rank, "open");
            break;
        }
    if (opened == BATCHES)
        (void)(rank->group.rank < FFN ? run_ffn(rank) : run_attention(rank));
    for (int i = 0; i < opened; i++) /* in the same order on all ranks */
        if (afdep_buffer_close(rank->buffers[i]) != AFDEP_OK && !rank->why[0])
            failed(rank, "close");
    return NULL;
}

int main(void)
{
    rank_t ranks[RANKS] = { 0 };
    afdep_group_t groups[RANKS];
    int status = 0;
    if (afdep_group_threads_create(RANKS, 60000, groups) != AFDEP_OK) {
        fprintf(stderr, "no group: %s\n", afdep_last_error());
        return 1;
    }
    for (int r = 0; r < RANKS; r++) {
        ranks[r].group = groups[r];
        if (pthread_create(&ranks[r].thread, NULL, run, &ranks[r]) != 0)
            return 1;
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        if (ranks[r].why[0]) {
            fprintf(stderr, "%s\n", ranks[r].why);
            status = 1;
        } else if (r >= FFN) {
            printf("rank %d: %d steps of %d layers, at most %.4f of the largest element from the dense result\n", r,
                   STEPS, LAYERS, (double)ranks[r].worst);
            /* Replies and sums are rounded to BF16, 2^-9 of an element each. */
            status |= !(ranks[r].worst < 0.01f);
        }
    }
    for (int r = 0; r < RANKS; r++)
        afdep_group_destroy(&groups[r]);
    return status;
}
