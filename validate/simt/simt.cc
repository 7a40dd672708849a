/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels on the processor: a CTA is a thread of the system, its CUDA threads are fibers that take turns, and every CTA
 * of every rank runs at once, as on a GPU that has room for all. What the kernels do is checked that way where there is
 * no GPU: arithmetic, protocol, barriers that not all lanes reach, waits that never end. What GPUs may reorder is not.
 */
#include <cuda_runtime.h>

#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>

#include <thread>
#include <vector>

#include "simt.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;
alignas(16) thread_local unsigned char afdep_simt_shared[262144];

#define STACK_BYTES ((size_t)64 * 1024)

/* ---- Fibers ------------------------------------------------------------------------------------------------------ */

/* Saves what the calling convention asks for on the stack, and goes on where another stack left off. */
extern "C" void afdep_simt_switch(void **from, void *to);
asm(".globl afdep_simt_switch\n"
    "afdep_simt_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n");

struct fiber {
    void *stack;
    bool over;
};

/* Who has come, of those who are still there. A generation ends when all have. */
struct meeting {
    int come, there;
    uint64_t generation;
};

struct warp {
    meeting met;
    uint64_t values[2][32];
};

struct cta {
    std::vector<fiber> fibers;
    std::vector<warp> warps;
    meeting met;
    int all, any, result[2][2];
    void *scheduler;
    const std::function<void()> *body;
    size_t now;
};

static thread_local cta *own;

void afdep_simt_yield()
{
    afdep_simt_switch(&own->fibers[own->now].stack, own->scheduler);
}

static void end_generation(cta &c)
{
    c.result[c.met.generation % 2][0] = c.all;
    c.result[c.met.generation % 2][1] = c.any;
    c.all = 1;
    c.any = 0;
}

/* True for the last to come. */
static bool is_last(meeting &met)
{
    if (++met.come < met.there)
        return false;
    met.come = 0;
    return true;
}

const uint64_t *afdep_simt_warp(uint64_t value, uint32_t mask)
{
    warp &w = own->warps[threadIdx.x / 32];
    uint64_t generation = w.met.generation;
    if (mask != AFDEP_SIMT_FULL) {
        fprintf(stderr, "simt: a warp meets with mask 0x%x: only whole warps do\n", mask);
        abort();
    }
    w.values[generation % 2][threadIdx.x % 32] = value;
    if (is_last(w.met))
        w.met.generation++;
    while (w.met.generation == generation)
        afdep_simt_yield();
    return w.values[generation % 2];
}

int afdep_simt_block(int value, afdep_simt_how_t how)
{
    cta &c = *own;
    uint64_t generation = c.met.generation;
    if (how == AFDEP_SIMT_AND)
        c.all &= value;
    if (how == AFDEP_SIMT_OR)
        c.any |= value;
    if (is_last(c.met)) {
        end_generation(c);
        c.met.generation++;
    }
    while (c.met.generation == generation)
        afdep_simt_yield();
    return c.result[generation % 2][how == AFDEP_SIMT_OR];
}

/* Whoever leaves is awaited no more. */
static void leave(cta &c, warp &w)
{
    if (--w.met.there > 0 && w.met.come == w.met.there) {
        w.met.come = 0;
        w.met.generation++;
    }
    if (--c.met.there > 0 && c.met.come == c.met.there) {
        c.met.come = 0;
        end_generation(c);
        c.met.generation++;
    }
}

static void run_fiber()
{
    cta &c = *own;
    (*c.body)();
    c.fibers[c.now].over = true;
    leave(c, c.warps[c.now / 32]);
    afdep_simt_switch(&c.fibers[c.now].stack, c.scheduler);
    abort(); /* not reached */
}

/* ---- CTAs -------------------------------------------------------------------------------------------------------- */

/* A stack that begins in run_fiber(). */
static void *first_stack(unsigned char *end)
{
    void **top = (void **)end;
    *--top = NULL; /* the caller that there is none of; keeps the stack aligned as a call would */
    *--top = (void *)run_fiber;
    for (int saved = 0; saved < 6; saved++)
        *--top = NULL;
    return top;
}

static void run_cta(dim3 grid, dim3 block, unsigned index, const std::function<void()> *body)
{
    cta c = {};
    size_t threads = block.x, bytes = STACK_BYTES * threads;
    unsigned char *stacks = (unsigned char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        fprintf(stderr, "simt: no memory for %zu stacks\n", threads);
        abort();
    }
    c.body = body;
    c.all = 1;
    c.fibers.resize(threads);
    c.warps.resize((threads + 31) / 32);
    c.met.there = (int)threads;
    for (size_t i = 0; i < threads; i++) {
        c.fibers[i].stack = first_stack(stacks + STACK_BYTES * (i + 1));
        c.warps[i / 32].met.there++;
    }
    own = &c;
    blockIdx = { index, 0, 0 };
    blockDim = block;
    gridDim = grid;
    for (unsigned seed = index + 1; c.met.there > 0; sched_yield()) {
        seed = seed * 1103515245u + 12345u;
        for (size_t k = 0, first = seed / 65536u % threads; k < threads; k++) { /* a different one first each time */
            c.now = (k + first) % threads;
            if (c.fibers[c.now].over)
                continue;
            threadIdx = { (unsigned)c.now, 0, 0 };
            afdep_simt_switch(&c.scheduler, c.fibers[c.now].stack);
        }
    }
    own = NULL;
    munmap(stacks, bytes);
}

void afdep_simt_run(dim3 grid, dim3 block, const std::function<void()> &body)
{
    std::vector<std::thread> ctas;
    for (unsigned index = 0; index < grid.x; index++)
        ctas.emplace_back(run_cta, grid, block, index, &body);
    for (std::thread &one : ctas)
        one.join();
}
