/* Attached in mid-run: granules and objects exist before the attach. `before` granules with objects are
 * open when READY is printed. What was opened before cannot be decided by counting (unknown), but can be
 * read from the arena's memory (`boundary=1`: exact).
 */
#include "arena.h"

static struct arena arena;

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 before = option("before", 40), after = option("after", 200), boundary = option("boundary", 0);
    struct truth t = {.instance = &arena, .omit = NO_RETENTION};
    if (boundary) t.omit |= NO_OBJECTS;
    struct truth unseen = {0};
    struct object **old = calloc(before, sizeof *old), **second = calloc(before, sizeof *second);
    for (u64 n = 0; n < before; n++) {
        struct gen *g = do_open(&unseen, &arena, n, 4096, NULL);
        old[n] = do_alloc(&unseen, &arena, n, g, 100);
        second[n] = do_alloc(&unseen, &arena, n, g, 100);
        if (n == 0) do_close(&unseen, &arena, n, g); /* closed before: a free of its objects is unmatched */
    }
    ready();
    arena_free(&arena, old[0]);
    if (!boundary) truth_losses.unmatched_frees++;
    for (u64 n = 1; n < before; n++) {
        /* Allocated in a granule from before: seen, and counted on it. */
        struct gen *g = NULL;
        if (n % 2) {
            struct object *young = arena_alloc(&arena, n, 24);
            if (!boundary) {
                g = truth_lazy(&t, 0);
                truth_alloc(&t, g, 24);
                truth_free(&t, g, 24);
            }
            arena_free(&arena, young);
        }
        arena_free(&arena, old[n]);
        if (!boundary) truth_losses.unmatched_frees++;
        bool pin = n % 3 == 0;
        if (!pin) {
            arena_free(&arena, second[n]);
            if (!boundary) truth_losses.unmatched_frees++;
        }
        arena_close(&arena, n);
        if (!g) g = truth_lazy(&t, 0);
        if (boundary) { /* decided by what stands in memory */
            g->before = false;
            g->live = pin;
        }
        truth_close(&t, g);
    }
    for (u64 n = before; n < before + after; n++) {
        struct gen *g = do_open(&t, &arena, n, 4096, NULL);
        struct object *o = do_alloc(&t, &arena, n, g, 100);
        if (n % 5) do_free(&t, &arena, o);
        do_close(&t, &arena, n, g);
    }
    truth_print_single(&t);
    return 0;
}
