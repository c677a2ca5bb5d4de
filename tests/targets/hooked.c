/* An allocator with an inner hook: `hooked_alloc` returns the object, and `hooked_note` is handed the finished
 * one just before, beside all else that is to be known of it. A profile may name either. Every eighth
 * allocation fails: then there is nothing to note.
 */
#include "truth.h"

struct arena {
    void (*watch)(void *object); /* called for each object, where set */
    u64 live;
};

struct object {
    struct gen *gen; /* for the driver's bookkeeping */
    u64 size;
};

PROBED void hooked_note(struct arena *a, u64 id, struct object *o, u64 size) {
    (void)id;
    (void)size;
    if (a->watch) a->watch(o);
    a->live++;
}

PROBED struct object *hooked_alloc(struct arena *a, u64 id, u64 size) {
    if (size > 4096) return NULL;
    struct object *o = malloc(sizeof *o);
    hooked_note(a, id, o, size);
    return o;
}

PROBED void hooked_free(struct arena *a, struct object *o) {
    if (!o) return;
    a->live--;
    free(o);
}

PROBED void hooked_open(struct arena *a, u64 id) { __asm__ volatile("" : : "r"(a), "r"(id) : "memory"); }
PROBED void hooked_close(struct arena *a, u64 id) { __asm__ volatile("" : : "r"(a), "r"(id) : "memory"); }

static u64 watched;
static void watch(void *object) { watched += object != NULL; }

int main(int argc, char **argv) {
    static struct arena arena;
    static struct truth t;
    truth_begin(argc, argv);
    u64 closes = option("closes", 400);
    if (option("watch", 0)) arena.watch = watch;
    t.instance = &arena;
    ready();
    struct object *late = NULL;
    for (u64 id = 1; id <= closes; id++) {
        hooked_open(&arena, id);
        struct gen *g = truth_open(&t, NULL, 0);
        for (u64 n = 0; n < 8; n++) {
            u64 size = n == 7 ? 5000 : 1 + random_below(4096);
            struct object *o = hooked_alloc(&arena, id, size);
            if (!o) continue;
            o->gen = g;
            o->size = size;
            truth_alloc(&t, g, size);
            if (chance(500)) continue; /* a pin for ever */
            if (chance(500) && !late) {
                late = o;
                continue;
            }
            hooked_free(&arena, o);
            truth_free(&t, g, size);
        }
        hooked_close(&arena, id);
        truth_close(&t, g);
        if (late && chance(3000)) {
            struct gen *of = late->gen;
            u64 size = late->size;
            hooked_free(&arena, late);
            truth_free(&t, of, size);
            late = NULL;
        }
    }
    truth_print_single(&t);
    return 0;
}
