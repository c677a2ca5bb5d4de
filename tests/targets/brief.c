/* A process that lives for a while: `opens` granules, each opened, filled, emptied and closed, evenly over `ms`
 * milliseconds.
 */
#include "arena.h"
#include <time.h>

static struct arena arena;

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 opens = option("opens", 300), ms = option("ms", 1500);
    struct truth t = {.instance = &arena};
    struct timespec pause = {.tv_nsec = (long)(ms * 1000000 / (opens ? opens : 1))};
    ready();
    for (u64 n = 0; n < opens; n++) {
        u64 id = 0x1000 * (n + 1);
        struct gen *g = do_open(&t, &arena, id, 4096, NULL);
        do_free(&t, &arena, do_alloc(&t, &arena, id, g, 64));
        do_close(&t, &arena, id, g);
        nanosleep(&pause, NULL);
    }
    truth_print_single(&t);
    return 0;
}
