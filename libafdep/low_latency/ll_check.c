/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a call, as far as they can be judged without looking behind pointers. */
#include <stdint.h>

#include "core/error.h"
#include "low_latency/ll_backend.h"

/* ---- Dispatch -------------------------------------------------------------------------------------------------- */

static afdep_status_t at_most(const char *name, int32_t value, int32_t opened)
{
    if (value <= opened)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_dispatch: %s is %d: the buffer was opened for at most %d", name, value,
                      opened);
}

static int32_t either(int32_t given, int32_t opened)
{
    return given ? given : opened;
}

static afdep_status_t check_shape(const afdep_ll_settings_t *settings, const afdep_ll_dispatch_t *d,
                                  afdep_ll_shape_t *shape)
{
    const afdep_ll_shape_t *most = &settings->shape;
    *shape = (afdep_ll_shape_t){ most->ranks, either(d->num_max_dispatch_tokens_per_rank, most->max_tokens),
                                 either(d->hidden, most->hidden), either(d->num_topk, most->top_k),
                                 either(d->num_experts, most->experts) };
    afdep_status_t status = at_most("num_max_dispatch_tokens_per_rank", shape->max_tokens, most->max_tokens);
    if (status == AFDEP_OK)
        status = at_most("hidden", shape->hidden, most->hidden);
    if (status == AFDEP_OK)
        status = at_most("num_topk", shape->top_k, most->top_k);
    if (status == AFDEP_OK)
        status = at_most("num_experts", shape->experts, most->experts);
    if (status == AFDEP_OK)
        status = afdep_ll_check_limits(settings->profile, shape, settings->hosts);
    if (status == AFDEP_OK)
        status = afdep_ll_check_tokens(settings->profile, d->tokens, shape->max_tokens);
    return status;
}

static afdep_status_t want(const char *call, const char *what)
{
    return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: %s", call, what);
}

static afdep_status_t check_pointers(const afdep_ll_dispatch_t *d, int scaled)
{
    const char *call = "ll_dispatch";
    if (d->async_finish && d->return_recv_hook)
        return want(call, "async_finish and return_recv_hook are both set: one of them is wanted");
    if (d->tokens > 0 && (!d->x || !d->topk_idx))
        return want(call, d->x ? "topk_idx is NULL" : "x is NULL");
    if ((uintptr_t)d->x % 16 != 0)
        return want(call, "x is not 16-byte aligned");
    if (!d->recv_x || !d->recv_count)
        return want(call, d->recv_x ? "recv_count is NULL" : "recv_x is NULL");
    if (scaled && !d->recv_x_scales)
        return want(call, "recv_x_scales is NULL, and the format has scales");
    if (d->tokens > 0 && d->recv_topk_weights && !d->topk_weights)
        return want(call, "recv_topk_weights is given and topk_weights is NULL");
    return AFDEP_OK;
}

afdep_status_t afdep_ll_check_dispatch(const afdep_ll_settings_t *settings, const afdep_ll_dispatch_t *d,
                                       afdep_ll_shape_t *shape, afdep_ll_format_t *format)
{
    const afdep_ll_request_t request = { d->format, d->use_fp8, d->use_ue8m0, d->use_mxfp8, d->use_mxfp4 };
    size_t codes, scales;
    afdep_status_t status = check_shape(settings, d, shape);
    if (status == AFDEP_OK)
        status = afdep_ll_choose_format(settings->profile, &request, settings->int8_fallback, format);
    if (status == AFDEP_OK)
        status = afdep_ll_format_bytes(*format, shape->hidden, &codes, &scales);
    return status == AFDEP_OK ? check_pointers(d, scales > 0) : status;
}

/* ---- Combine --------------------------------------------------------------------------------------------------- */

afdep_status_t afdep_ll_check_combine(const afdep_ll_combine_t *c, int32_t tokens, const afdep_ll_shape_t *shape,
                                      const void *buffer, int rows)
{
    const char *call = "ll_combine";
    if (c->async_finish && c->return_recv_hook)
        return want(call, "async_finish and return_recv_hook are both set: one of them is wanted");
    if (c->tokens != tokens)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_combine: tokens is %d, and %d were dispatched", c->tokens, tokens);
    if (c->num_topk && c->num_topk != shape->top_k)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_combine: num_topk is %d, and %d was dispatched", c->num_topk,
                          shape->top_k);
    if (tokens > 0 && (!c->topk_idx || !c->topk_weights))
        return want(call, c->topk_idx ? "topk_weights is NULL" : "topk_idx is NULL");
    if ((uintptr_t)c->out % 16 != 0)
        return want(call, "out is not 16-byte aligned");
    if (c->zero_copy && c->x && c->x != buffer)
        return want(call, "zero_copy is set and x is not the next combine buffer");
    if (!c->zero_copy && !c->x && rows)
        return want(call, "x is NULL");
    return AFDEP_OK;
}
