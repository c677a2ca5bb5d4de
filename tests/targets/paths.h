/* Call paths that allocate, with the truth of each: for programs whose paths the test knows by name and line.
 *
 * Granules and objects are numbers that the driver makes up, so no probe needs a return value: profiles/paths.toml
 * has the alloc at its return, profiles/paths_entry.toml at its entry. A round opens a granule, sends every path
 * through it, frees what does not pin, and closes it. Path number i pins every i + 1st round, the first included, with
 * all that it has allocated in it; those of even paths are freed PATHS_LATE rounds later, those of odd ones never.
 *
 * The truth of a path has the keys of a report's site under `site`, and its `chain`: functions, the allocating one
 * first, each with the mark of the line that it calls from, where that is known; `~` before a part of a name; `*` stands
 * for frames whose source is not ours, `…` behind a function for as many frames of it as there are.
 *
 * Included by C and C++ targets, once each.
 */
#ifndef PATHS_H
#define PATHS_H

#include "truth.h"

enum { PATHS_MOST = 64, PATHS_LATE = 10, PATHS_BYTES = 4096 };

/* Not inlined, not cloned, and a frame of its own as long as something follows its calls. */
#define FRAME __attribute__((noinline, noipa, used))
#define FOLLOWED __asm__ volatile("" : : : "memory")
#ifdef __cplusplus
#define PLAIN_C extern "C"
#else
#define PLAIN_C
#endif
/* Probed, and begun with a nop: a plain `mov` there would be single-stepped. */
#define PATHS_PROBED PLAIN_C PROBED __attribute__((patchable_function_entry(1)))

PATHS_PROBED void path_open(u64 granule, u64 bytes) { __asm__ volatile("" : : "r"(granule), "r"(bytes) : "memory"); }
PATHS_PROBED void path_close(u64 granule) { __asm__ volatile("" : : "r"(granule) : "memory"); }
PATHS_PROBED void path_free(u64 object) { __asm__ volatile("" : : "r"(object) : "memory"); }
PATHS_PROBED u64 path_alloc(u64 granule, u64 object, u64 size) {
    __asm__ volatile("" : : "r"(granule), "r"(size) : "memory");
    return object;
}
/* A wrapper that can be probed itself: its return address is then not what the call left there. */
PATHS_PROBED u64 path_wrap(u64 granule, u64 object, u64 size) {
    u64 got = path_alloc(granule, object, size); /* mark: wrapping */
    FOLLOWED;
    return got;
}

struct path {
    const char *name, *chain, *end;
    u64 allocated, bytes, pins, pin_bytes, granules_pinned;
    u64 number;    /* from 1 on */
    u64 pinned_in; /* the granule that was counted last */
};

struct thing {
    struct path *path;
    struct batch *batch;
    u64 id, size;
    bool pins;
    struct thing *next;
};

struct batch {
    u64 id, round;
    struct gen *gen;
    struct thing *things;
    bool counts;
    struct batch *next;
};

static struct truth paths_truth;
static struct path *paths_known[PATHS_MOST];
static u64 paths_count, paths_next_id, paths_next_batch, paths_round;
static struct batch *paths_now, *paths_batches;
static bool paths_warming; /* before anybody looks: nothing is counted, and nothing stays */

static inline void paths_know(struct path *path) {
    if (paths_count == PATHS_MOST) _exit(8);
    paths_known[paths_count++] = path;
    path->number = paths_count;
}

/* ---- granules ---- */

static inline struct batch *paths_opened(u64 id) {
    struct batch *b = (struct batch *)calloc(1, sizeof *b);
    b->id = id;
    b->round = paths_round;
    b->counts = !paths_warming;
    if (b->counts) b->gen = truth_open(&paths_truth, NULL, PATHS_BYTES);
    b->next = paths_batches;
    return paths_batches = b;
}

static inline void paths_free(struct batch *b, struct thing **at) {
    struct thing *t = *at;
    path_free(t->id);
    if (b->counts) truth_free(&paths_truth, b->gen, t->size);
    *at = t->next;
    free(t);
}

/* Frees what does not pin, and closes. Of other kinds than `drain`, every fifth round's granule stays open with what
 * would pin; the others go with it (`bulk`), or are empty before (`slab`). */
static inline void paths_close(struct batch *b) {
    bool held = paths_truth.kind != DRAIN && b->round % 5 == 0 && b->counts;
    bool all = !b->counts || (paths_truth.kind == SLAB_HEAP && !held);
    for (struct thing **at = &b->things; *at;)
        if (all || !(*at)->pins) paths_free(b, at);
        else at = &(*at)->next;
    if (held) return;
    path_close(b->id);
    if (!b->counts) return;
    truth_close(&paths_truth, b->gen);
    if (paths_truth.kind != DRAIN) {
        b->things = NULL;
        return;
    }
    for (struct thing *t = b->things; t; t = t->next) {
        t->path->pins++;
        t->path->pin_bytes += t->size;
        if (t->path->pinned_in != b->id) t->path->granules_pinned++;
        t->path->pinned_in = b->id;
    }
}

/* Frees what is due of earlier rounds. */
static inline void paths_free_late(void) {
    if (paths_truth.kind != DRAIN) return;
    for (struct batch *b = paths_batches; b && paths_round - b->round <= PATHS_LATE; b = b->next) {
        if (paths_round - b->round != PATHS_LATE) continue;
        for (struct thing **at = &b->things; *at;)
            if ((*at)->path->number % 2 == 0) paths_free(b, at);
            else at = &(*at)->next;
    }
}

/* ---- objects ---- */

static inline struct thing *paths_thing(struct path *path, struct batch *b) {
    struct thing *t = (struct thing *)calloc(1, sizeof *t);
    t->path = path;
    t->batch = b;
    t->id = ++paths_next_id;
    t->size = 16 + t->id % 50;
    t->pins = paths_round % (path->number + 1) == 0;
    return t;
}

static inline void paths_made(struct thing *t) {
    struct batch *b = t->batch;
    t->next = b->things;
    b->things = t;
    if (!b->counts) return;
    truth_alloc(&paths_truth, b->gen, t->size);
    t->path->allocated++;
    t->path->bytes += t->size;
}

/* The helper under which all paths meet. */
FRAME static void make_object(struct path *path) {
    struct thing *t = paths_thing(path, paths_now);
    path_alloc(t->batch->id, t->id, t->size); /* mark: made */
    paths_made(t);
}

/* Opens a granule and allocates in it before it returns. */
PATHS_PROBED u64 path_create(u64 granule, u64 bytes, struct path *path) {
    __asm__ volatile("" : : "r"(bytes) : "memory");
    make_object(path); /* mark: creating */
    FOLLOWED;
    return granule;
}

/* ---- rounds ---- */

static inline void paths_begin_round(void) {
    u64 id = ++paths_next_batch;
    path_open(id, PATHS_BYTES); /* mark: opening */
    paths_now = paths_opened(id);
}

static inline void paths_end_round(void) {
    paths_close(paths_now);
    paths_free_late();
    paths_round++;
}

static inline void paths_warmed(void) {
    paths_warming = false;
    paths_round = 0;
    paths_batches = NULL;
}

/* ---- printing ---- */

static inline void paths_print(void) {
    printf(",\"paths\":[");
    for (u64 i = 0; i < paths_count; i++) {
        const struct path *p = paths_known[i];
        u64 live = 0, live_bytes = 0, retained = 0;
        for (const struct batch *b = paths_batches; b; b = b->next) {
            u64 before = live;
            for (const struct thing *t = b->things; t; t = t->next)
                if (t->path == p) live++, live_bytes += t->size;
            retained += live != before;
        }
        printf("%s{\"name\":\"%s\",\"chain\":\"%s\",\"site\":{", i ? "," : "", p->name, p->chain);
        truth_first = true;
        KEY("allocated", p->allocated);
        KEY("allocated_bytes", p->bytes);
        KEY("live", live);
        KEY("live_bytes", live_bytes);
        KEY("objects", p->pins);
        KEY("bytes", p->pin_bytes);
        KEY("objects_live", paths_truth.kind == DRAIN ? live : 0);
        KEY("bytes_live", paths_truth.kind == DRAIN ? live_bytes : 0);
        KEY("granules_pinned", p->granules_pinned);
        if (paths_truth.kind == DRAIN) {
            KEY("granules_retained", retained);
            KEY("retained_bytes", retained * PATHS_BYTES);
        }
        printf(",\"path_end\":\"%s\"}}", p->end ? p->end : "start");
    }
    printf("]");
}

static inline void paths_finish(void) {
    truth_more = paths_print;
    truth_print_single(&paths_truth);
}

#endif
