/* What a program may retain over time, at an even pace and for some seconds: each granule is closed with
 * one object live, and the mode says when that is freed.
 *   mode=leak       never
 *   mode=cache      when forty younger ones are there
 *   mode=mixed      of three out of four after five others, of the fourth never
 *   mode=shutdown   at the very end
 *   mode=none       before the close
 * With mode=unclosed the allocator is of kind `bulk`: three out of four granules are closed after five others,
 * the fourth never.
 * The truth says which verdict that makes.
 */
#include "arena.h"
#include <time.h>

#define MOST 4000

static struct arena arena;
static struct object *pins[MOST];

static struct gen *gens[MOST];

static void free_pin(struct truth *t, u64 which) {
    if (!pins[which]) return;
    do_free(t, &arena, pins[which]);
    pins[which] = NULL;
}

/* Sleeps until `ns` after `from`: the pace does not depend on how long the steps take. */
static void wait_until(const struct timespec *from, u64 ns) {
    u64 all = (u64)from->tv_nsec + ns;
    struct timespec at = {from->tv_sec + (time_t)(all / 1000000000), (long)(all % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) {
    }
}

int main(int argc, char **argv) {
    static struct truth t = {.instance = &arena, .kind = DRAIN};
    truth_begin(argc, argv);
    u64 rate = option("rate", 100), count = rate * option("seconds", 8);
    const char *mode = option_text("mode", "leak");
    static const char *const verdicts[][2] = {{"leak", "linear_leak"},
                                              {"cache", "bounded"},
                                              {"mixed", "mixed"},
                                              {"shutdown", "freed_at_shutdown"},
                                              {"unclosed", "mixed"},
                                              {"none", "none"}};
    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++)
        if (!strcmp(mode, verdicts[i][0])) t.verdict = verdicts[i][1];
    if (*mode == 'u') t.kind = BULK;
    if (!t.verdict || count > MOST || rate == 0) return 7;
    ready();
    struct timespec from;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (u64 i = 0; i < count; i++) {
        wait_until(&from, i * 1000000000 / rate);
        struct gen *g = do_open(&t, &arena, i, 65536, NULL);
        pins[i] = do_alloc(&t, &arena, i, g, 100);
        gens[i] = g;
        if (*mode == 'u') {
            if (i >= 5 && (i - 5) % 4 != 3) do_close(&t, &arena, i - 5, gens[i - 5]);
            continue;
        }
        if (*mode == 'n') free_pin(&t, i);
        do_close(&t, &arena, i, g);
        if (*mode == 'c' && i >= 40) free_pin(&t, i - 40);
        if (*mode == 'm' && i >= 5 && (i - 5) % 4 != 3) free_pin(&t, i - 5);
    }
    if (*mode == 's')
        for (u64 i = 0; i < count; i++) free_pin(&t, i);
    truth_print_single(&t);
    return 0;
}
