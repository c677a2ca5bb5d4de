/* cflags: -fomit-frame-pointer */
/* Four call paths that retain over time, each in its own way: every granule is closed with one live object of each.
 *   leak       frees none
 *   cache      frees one when forty younger ones are there
 *   mixed      frees three out of four after five others
 *   shutdown   frees all at the very end
 */
#include "arena.h"
#include <time.h>

#define MOST 4000
#define PATH __attribute__((noinline, noipa))

static struct arena arena;
static struct truth t = {.instance = &arena, .kind = DRAIN};
static struct object *pins[4][MOST];

PATH static struct object *leak(u64 id, struct gen *g) { return do_alloc(&t, &arena, id, g, 100); }
PATH static struct object *cache(u64 id, struct gen *g) { return do_alloc(&t, &arena, id, g, 100); }
PATH static struct object *mixed(u64 id, struct gen *g) { return do_alloc(&t, &arena, id, g, 100); }
PATH static struct object *shutdown_only(u64 id, struct gen *g) { return do_alloc(&t, &arena, id, g, 100); }

/* Sleeps until `ns` after `from`: the pace does not depend on how long the steps take. */
static void wait_until(const struct timespec *from, u64 ns) {
    u64 all = (u64)from->tv_nsec + ns;
    struct timespec at = {from->tv_sec + (time_t)(all / 1000000000), (long)(all % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) {
    }
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 rate = option("rate", 100), count = rate * option("seconds", 10);
    if (count > MOST || rate == 0) return 7;
    ready();
    struct timespec from;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (u64 i = 0; i < count; i++) {
        wait_until(&from, i * 1000000000 / rate);
        struct gen *g = do_open(&t, &arena, i, 65536, NULL);
        pins[0][i] = leak(i, g);
        pins[1][i] = cache(i, g);
        pins[2][i] = mixed(i, g);
        pins[3][i] = shutdown_only(i, g);
        do_close(&t, &arena, i, g);
        if (i >= 40) do_free(&t, &arena, pins[1][i - 40]);
        if (i >= 5 && (i - 5) % 4 != 3) do_free(&t, &arena, pins[2][i - 5]);
    }
    for (u64 i = 0; i < count; i++) do_free(&t, &arena, pins[3][i]);
    truth_print_single(&t);
    return 0;
}
