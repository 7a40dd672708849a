/* SPDX-License-Identifier: Apache-2.0 */
/* Events in order of time: a heap of four children a node, whose ties are taken in the order in which they were made.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdlib.h>

#include "bench/predict_internal.h"

static inline int before(const afdep_event_t *a, const afdep_event_t *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void afdep_queue_add(afdep_queue_t *queue, const afdep_event_t *event)
{
    if (queue->count == queue->limit) {
        uint64_t limit = queue->limit ? 2 * queue->limit : 4096;
        afdep_event_t *heap = realloc(queue->heap, limit * sizeof(*heap));
        if (!heap) {
            queue->failed = 1;
            return;
        }
        queue->heap = heap;
        queue->limit = limit;
    }
    afdep_event_t added = *event;
    added.order = queue->orders++;
    uint64_t at = queue->count++;
    while (at > 0 && before(&added, &queue->heap[(at - 1) / 4])) {
        queue->heap[at] = queue->heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    queue->heap[at] = added;
}

int afdep_queue_take(afdep_queue_t *queue, afdep_event_t *event)
{
    if (queue->count == 0)
        return 0;
    *event = queue->heap[0];
    afdep_event_t last = queue->heap[--queue->count];
    uint64_t at = 0;
    for (;;) {
        uint64_t child = 4 * at + 1, least = child;
        if (child >= queue->count)
            break;
        for (uint64_t i = child + 1; i < child + 4 && i < queue->count; i++)
            if (before(&queue->heap[i], &queue->heap[least]))
                least = i;
        if (!before(&queue->heap[least], &last))
            break;
        queue->heap[at] = queue->heap[least];
        at = least;
    }
    if (queue->count > 0)
        queue->heap[at] = last;
    return 1;
}
