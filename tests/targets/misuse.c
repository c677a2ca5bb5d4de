/* What allocators and their callers do wrong: double close, reopen without close, allocs after the
 * close, objects replaced without a free, frees of unknown objects, closes of unknown granules.
 * `mode` names the case; each is done `times` times.
 */
#include "arena.h"

static struct arena arena;
static struct truth t = {.instance = &arena};

/* An alloc that hands out the object that the driver gives it: ids can collide. */
PROBED struct object *arena_place(struct arena *a, u64 id, u64 size, struct object *place) {
    __asm__ volatile("" : : "r"(a), "r"(id), "r"(size) : "memory");
    return place;
}

static void double_close(u64 n) {
    struct gen *g = do_open(&t, &arena, n, 4096, NULL);
    struct object *pin = do_alloc(&t, &arena, n, g, 64);
    if (n % 2) do_free(&t, &arena, pin);
    do_close(&t, &arena, n, g);
    do_close(&t, &arena, n, g);
    if (n % 4 == 0) do_free(&t, &arena, pin); /* still one late drain, not two */
}

static void reopen(u64 n) {
    struct gen *first = do_open(&t, &arena, n, 4096, NULL);
    struct object *old = do_alloc(&t, &arena, n, first, 64);
    struct gen *second = do_open(&t, &arena, n, 8192, first);
    struct object *young = do_alloc(&t, &arena, n, second, 32);
    if (n % 2) do_free(&t, &arena, old);
    else do_free(&t, &arena, young); /* the old one stays: it must not pin the second life */
    do_close(&t, &arena, n, second);
    if (n % 2 == 0) do_free(&t, &arena, old);
}

static void alloc_after_close(u64 n) {
    struct gen *g = do_open(&t, &arena, n, 4096, NULL);
    struct object *pin = n % 2 ? do_alloc(&t, &arena, n, g, 16) : NULL;
    do_close(&t, &arena, n, g);
    struct object *straggler = do_alloc(&t, &arena, n, g, 32);
    if (pin) do_free(&t, &arena, pin); /* no late drain yet: the straggler lives */
    do_free(&t, &arena, straggler);
}

static void replaced(u64 n) {
    struct object *place = malloc(sizeof *place); /* never freed, so that no other round gets its id */
    struct gen *g = do_open(&t, &arena, n, 4096, NULL);
    arena_place(&arena, n, 48, place);
    truth_alloc(&t, g, 48);
    arena_place(&arena, n, 80, place); /* the same id again: the earlier object counts as freed */
    truth_losses.objects_replaced++;
    truth_free(&t, g, 48);
    truth_alloc(&t, g, 80);
    do_close(&t, &arena, n, g);
    arena_free(&arena, NULL);
    arena_place(&arena, n, 0, NULL); /* a failed alloc */
}

static void unknown_free(u64 n) {
    struct gen *g = do_open(&t, &arena, n, 4096, NULL);
    struct object *o = malloc(sizeof *o); /* never came from the arena */
    o->id = 0, o->life = ~0u, o->size = 0;
    arena_free(&arena, o);
    truth_losses.unmatched_frees++;
    do_close(&t, &arena, n, g);
}

static struct gen *wandering;

static void replaced_across(u64 n) {
    /* The id wanders to another granule without a free: the first granule's pin is gone. */
    static struct object place;
    struct gen *a = do_open(&t, &arena, 2 * n, 4096, NULL), *b = do_open(&t, &arena, 2 * n + 1, 4096, NULL);
    if (n) { /* still out from the round before */
        truth_losses.objects_replaced++;
        truth_free(&t, wandering, 10);
    }
    arena_place(&arena, 2 * n, 10, &place);
    truth_alloc(&t, a, 10);
    arena_place(&arena, 2 * n + 1, 10, &place);
    truth_losses.objects_replaced++;
    truth_free(&t, a, 10);
    truth_alloc(&t, b, 10);
    wandering = b;
    do_close(&t, &arena, 2 * n, a);
    do_close(&t, &arena, 2 * n + 1, b);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(u64); } modes[] = {
        {"double_close", double_close}, {"reopen", reopen},     {"alloc_after_close", alloc_after_close},
        {"replaced", replaced},         {"unknown_free", unknown_free}, {"replaced_across", replaced_across},
    };
    truth_begin(argc, argv);
    const char *mode = option_text("mode", "double_close");
    u64 times = option("times", 100);
    ready();
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
        if (!strcmp(modes[m].name, mode)) {
            for (u64 n = 0; n < times; n++) modes[m].run(n);
            truth_print_single(&t);
            return 0;
        }
    fprintf(stderr, "misuse: no mode %s\n", mode);
    return 2;
}
