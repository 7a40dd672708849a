/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread's floating-point environment, which belongs to the caller: frameworks set flush-to-zero, and a result that
 * depended on it would differ between ranks. Every entry point that does arithmetic brackets it with these two.
 */
#include "numerics/numerics.h"

#if defined(__x86_64__) || defined(__SSE__)

#include <xmmintrin.h>

/* Round to nearest, no FTZ, no DAZ, all exceptions masked, no flag raised: the value at process start. */
#define DEFAULT_MXCSR 0x1F80u

/* The compiler does not know that arithmetic depends on MXCSR; the barriers keep loads and stores of the bracketed
   loops from crossing, also when everything is inlined at link time. */
afdep_fp_state_t afdep_fp_enter(void)
{
    afdep_fp_state_t state = { _mm_getcsr(), 0 };

    _mm_setcsr(DEFAULT_MXCSR);
    __asm__ volatile("" ::: "memory");
    return state;
}

void afdep_fp_leave(afdep_fp_state_t state)
{
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(state.control);
}

#elif defined(__aarch64__)

/* FPCR 0 is the default: round to nearest, nothing flushed, no trap. The flags have a register of their own. */
afdep_fp_state_t afdep_fp_enter(void)
{
    afdep_fp_state_t state;
    uint64_t control, status;

    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("mrs %0, fpsr" : "=r"(status));
    state.control = (uint32_t)control;
    state.status = (uint32_t)status;
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return state;
}

void afdep_fp_leave(afdep_fp_state_t state)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)state.control) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"((uint64_t)state.status) : "memory");
}

#else

/* No way to flush denormals is known here: the environment is left as it is. */
afdep_fp_state_t afdep_fp_enter(void)
{
    afdep_fp_state_t state = { 0, 0 };

    return state;
}

void afdep_fp_leave(afdep_fp_state_t state)
{
    (void)state;
}

#endif
