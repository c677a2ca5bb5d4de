/* A plain allocator of kind `drain` that many targets drive: granules by id, objects by pointer.
 *
 * The live count of each granule stands in the arena's memory, so that the `boundary` level has
 * something to read. Ids are reused modulo ARENA_IDS there; a free of an earlier life of an id leaves
 * the count of the present one alone. Profile: profiles/arena.toml.
 */
#ifndef ARENA_H
#define ARENA_H

#include "truth.h"

#define ARENA_IDS 4096

struct arena {
    u32 live[ARENA_IDS]; /* offset 0: objects live in the present life of id & (ARENA_IDS - 1) */
    u32 life[ARENA_IDS];
    void (*inside)(void); /* called in the middle of an alloc, where set */
};

struct object {
    u64 size;
    u32 id, life;
    struct gen *gen; /* for the driver's bookkeeping */
    char body[];
};

PROBED void arena_open(struct arena *a, u64 id, u64 bytes) {
    (void)bytes;
    u32 slot = id & (ARENA_IDS - 1);
    __atomic_fetch_add(&a->life[slot], 1, __ATOMIC_RELAXED);
    __atomic_store_n(&a->live[slot], 0, __ATOMIC_RELAXED);
}

PROBED void arena_close(struct arena *a, u64 id) {
    /* Nothing is given back here: what matters is that it is called. */
    __asm__ volatile("" : : "r"(a), "r"(id) : "memory");
}

/* NULL for sizes above 4096: a failed allocation. */
PROBED struct object *arena_alloc(struct arena *a, u64 id, u64 size) {
    if (size > 4096) return NULL;
    struct object *o = malloc(sizeof *o + size);
    u32 slot = id & (ARENA_IDS - 1);
    o->size = size;
    o->id = slot;
    o->life = __atomic_load_n(&a->life[slot], __ATOMIC_RELAXED);
    if (a->inside) a->inside();
    __atomic_fetch_add(&a->live[slot], 1, __ATOMIC_RELAXED);
    return o;
}

PROBED void arena_free(struct arena *a, struct object *o) {
    if (!o) return;
    if (o->life == __atomic_load_n(&a->life[o->id], __ATOMIC_RELAXED))
        __atomic_fetch_sub(&a->live[o->id], 1, __ATOMIC_RELAXED);
    free(o);
}

/* The driver's side: each call with its bookkeeping. */

static inline struct gen *do_open(struct truth *t, struct arena *a, u64 id, u64 bytes, struct gen *before) {
    arena_open(a, id, bytes);
    return truth_open(t, before, bytes);
}

static inline void do_close(struct truth *t, struct arena *a, u64 id, struct gen *g) {
    arena_close(a, id);
    truth_close(t, g);
}

static inline struct object *do_alloc(struct truth *t, struct arena *a, u64 id, struct gen *g, u64 size) {
    struct object *o = arena_alloc(a, id, size);
    if (!o) return NULL;
    o->gen = g;
    truth_alloc(t, g, size);
    return o;
}

static inline void do_free(struct truth *t, struct arena *a, struct object *o) {
    struct gen *g = o->gen;
    u64 size = o->size;
    arena_free(a, o);
    truth_free(t, g, size);
}

#endif
