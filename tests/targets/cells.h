/* An allocator of kind `drain` with a probe of each shape: ids from arguments and results, objects by arguments, results
 * and out-parameters, calls that are refused, wrappers. Memory of objects is the driver's to give and is used again at
 * once, by any thread. Profiles: profiles/stacks_chaos.toml, profiles/stacks_chaos_entry.toml.
 */
#ifndef CELLS_H
#define CELLS_H

#include "truth.h"
#include <pthread.h>

enum { PATHS = 14, IDS = 65536, MOST = 100 };
#define FOLLOWED __asm__ volatile("" : : : "memory")

/* One life of a granule. */
struct life {
    u64 all; /* objects live, as `live`: atomic. A probe at `boundary` reads it. */
    u64 live[PATHS], pinned;
    struct life *next;
};

struct place;

struct cell {
    struct cell *next; /* while it is free */
    u64 size, busy;
    struct place *place; /* from here on: what the driver knows */
    struct life *life;
    u64 path, id;
};

struct heap {
    struct life *lives[IDS]; /* offset 0: what ids mean now */
    pthread_mutex_t lock;
    struct cell *free;
};

static inline struct cell *pop(struct heap *h) {
    pthread_mutex_lock(&h->lock);
    struct cell *c = h->free;
    if (c) h->free = c->next;
    pthread_mutex_unlock(&h->lock);
    return c;
}

static inline void push(struct heap *h, struct cell *c) {
    pthread_mutex_lock(&h->lock);
    c->next = h->free;
    h->free = c;
    pthread_mutex_unlock(&h->lock);
}

PROBED u64 heap_open(struct heap *h, u64 id, u64 bytes) {
    __asm__ volatile("" : : "r"(h), "r"(bytes) : "memory");
    return id;
}

PROBED void heap_close(struct heap *h, u64 id) { __asm__ volatile("" : : "r"(h), "r"(id) : "memory"); }

/* Whether `given` becomes an object, which `out` is set to. */
PROBED u64 heap_alloc(struct heap *h, u64 id, u64 size, struct cell *given, struct cell **out) {
    __asm__ volatile("" : : "r"(h), "r"(id) : "memory");
    if (size > MOST) return 0;
    given->size = size;
    given->busy = 0;
    *out = given;
    return 1;
}

PROBED u64 heap_wrap(struct heap *h, u64 id, u64 size, struct cell *given, struct cell **out) {
    u64 done = heap_alloc(h, id, size, given, out);
    FOLLOWED;
    return done;
}

PROBED u64 heap_free(struct heap *h, struct cell *c) {
    if (c->busy) return 0;
    push(h, c);
    return 1;
}

PROBED u64 heap_unwrap(struct heap *h, struct cell *c) {
    u64 done = heap_free(h, c);
    FOLLOWED;
    return done;
}

/* To another cell if it grows; else it stays. NULL: it is too large. */
PROBED struct cell *heap_realloc(struct heap *h, struct cell *c, u64 id, u64 size) {
    __asm__ volatile("" : : "r"(id) : "memory");
    struct cell *to = c;
    if (size > c->size) {
        if (size > MOST || !(to = pop(h))) return NULL;
        to->busy = 0;
        push(h, c);
    }
    to->size = size;
    return to;
}

#endif
