/* More of one thing than a small map holds; `what`: granules, objects, instances, threads, callers, places, depth.
 * `callers`: each of `n` living threads makes the one object of a granule, which stays in every fourth of them.
 * `n` says how many. Every number is exact, so that what was lost can be told from what was seen.
 */
#include "arena.h"
#include <pthread.h>

static struct arena arena;
static pthread_barrier_t barrier;

/* Recurses `depth` calls deep; only the innermost makes an object. */
PROBED struct object *deep_alloc(struct arena *a, u64 id, u64 size, u64 depth) {
    struct object *o = depth > 1 ? deep_alloc(a, id, size, depth - 1) : arena_alloc(a, id, size);
    __asm__ volatile("" : : "r"(o) : "memory");
    return o;
}

static void wait_inside(void) { pthread_barrier_wait(&barrier); }
static void *alloc_in_thread(void *unused) {
    arena_alloc(&arena, 1, 10);
    return unused;
}

static pthread_barrier_t ended;
static struct object **made;
static void *alloc_and_stay(void *of) {
    struct object **o = of;
    *o = arena_alloc(&arena, (u64)(o - made), 10);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&ended);
    return NULL;
}

#define SITE(i) case i: arena_open(&arena, id, 4096); __asm__ volatile("# site " #i); break;
#define SITES4(i) SITE(i) SITE(i + 1) SITE(i + 2) SITE(i + 3)
#define SITES16(i) SITES4(i) SITES4(i + 4) SITES4(i + 8) SITES4(i + 12)
static __attribute__((noinline)) void open_from(u64 site, u64 id) {
    switch (site % 64) { SITES16(0) SITES16(16) SITES16(32) SITES16(48) }
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    const char *what = option_text("what", "granules");
    u64 n = option("n", 1000);
    struct truth t = {.instance = &arena};
    struct gen **gens = calloc(n, sizeof *gens);
    struct object **objects = calloc(n, sizeof *objects);
    ready();
    if (!strcmp(what, "granules")) {
        for (u64 i = 0; i < n; i++) gens[i] = do_open(&t, &arena, i, 4096, NULL);
        stop_at("open");
        for (u64 i = 0; i < n; i++) do_close(&t, &arena, i, gens[i]);
    } else if (!strcmp(what, "objects")) {
        struct gen *g = do_open(&t, &arena, 1, 4096, NULL);
        for (u64 i = 0; i < n; i++) objects[i] = do_alloc(&t, &arena, 1, g, 32);
        for (u64 i = 0; i < n; i++) do_free(&t, &arena, objects[i]);
        do_close(&t, &arena, 1, g);
    } else if (!strcmp(what, "instances")) {
        struct truth *all = calloc(n, sizeof *all);
        const struct truth **list = calloc(n, sizeof *list);
        for (u64 i = 0; i < n; i++) {
            struct arena *a = calloc(1, sizeof *a);
            all[i].instance = a;
            list[i] = &all[i];
            do_close(&all[i], a, 1, do_open(&all[i], a, 1, 4096, NULL));
        }
        truth_print(list, n);
        return 0;
    } else if (!strcmp(what, "threads")) {
        struct gen *g = do_open(&t, &arena, 1, 4096, NULL);
        pthread_t *ids = calloc(n, sizeof *ids);
        pthread_barrier_init(&barrier, NULL, (unsigned)n);
        arena.inside = wait_inside;
        for (u64 i = 0; i < n; i++) pthread_create(&ids[i], NULL, alloc_in_thread, NULL);
        for (u64 i = 0; i < n; i++) pthread_join(ids[i], NULL);
        for (u64 i = 0; i < n; i++) truth_alloc(&t, g, 10);
        do_close(&t, &arena, 1, g);
    } else if (!strcmp(what, "callers")) {
        pthread_t *ids = calloc(n, sizeof *ids);
        pthread_barrier_init(&barrier, NULL, 2);
        pthread_barrier_init(&ended, NULL, (unsigned)n + 1);
        made = objects;
        for (u64 i = 0; i < n; i++) {
            gens[i] = do_open(&t, &arena, i, 4096, NULL);
            pthread_create(&ids[i], NULL, alloc_and_stay, &objects[i]);
            pthread_barrier_wait(&barrier);
            objects[i]->gen = gens[i];
            truth_alloc(&t, gens[i], 10);
        }
        for (u64 i = 0; i < n; i++) {
            if (i % 4) do_free(&t, &arena, objects[i]);
            do_close(&t, &arena, i, gens[i]);
        }
        pthread_barrier_wait(&ended);
        for (u64 i = 0; i < n; i++) pthread_join(ids[i], NULL);
    } else if (!strcmp(what, "places")) {
        t.kind = BULK;
        for (u64 i = 0; i < n; i++) {
            open_from(i, i);
            gens[i] = truth_open(&t, NULL, 4096);
            do_close(&t, &arena, i, gens[i]);
        }
    } else if (!strcmp(what, "depth")) {
        struct gen *g = do_open(&t, &arena, 1, 4096, NULL);
        objects[0] = deep_alloc(&arena, 1, 10, n);
        objects[0]->gen = g;
        truth_alloc(&t, g, 10);
        do_free(&t, &arena, objects[0]);
        do_close(&t, &arena, 1, g);
    } else {
        return 2;
    }
    truth_print_single(&t);
    return 0;
}
