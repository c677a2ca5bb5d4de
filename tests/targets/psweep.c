/* cflags: -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -fno-shrink-wrap -fno-optimize-sibling-calls */
/* The p-sweep: `closes` granules with `objects` objects each; each granule is pinned with probability
 * p/10,000. A pinned granule's last object is freed `late` closes later (0: never). Ids are unique, or
 * a ring of `ring` that is reused while pinned. `failed`: failed allocs; `nulls`: frees of NULL.
 */
#include "arena.h"
#include <signal.h>

static struct arena arena;

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 closes = option("closes", 1000), p = option("p", 1000), ring = option("ring", 0);
    u64 late = option("late", 0), objects = option("objects", 1), failed = option("failed", 0);
    u64 nulls = option("nulls", 0), bytes = option("bytes", 4096);
    struct truth t = {.instance = &arena};
    struct object **pins = calloc(closes + 1, sizeof *pins);
    struct object *members[1024];
    if (objects > 1024) objects = 1024;
    ready();
    for (u64 n = 0; n < closes; n++) {
        if (n == closes / 2) stop_at("half");
        u64 id = ring ? n % ring : 0x1000 * (n + 1);
        struct gen *g = do_open(&t, &arena, id, bytes, NULL);
        for (u64 i = 0; i < objects; i++) members[i] = do_alloc(&t, &arena, id, g, 16 + random_below(240));
        if (failed && chance(failed)) do_alloc(&t, &arena, id, g, 5000);
        if (nulls && chance(nulls)) arena_free(&arena, NULL);
        bool pin = objects && chance(p);
        for (u64 i = pin ? 1 : 0; i < objects; i++) do_free(&t, &arena, members[i]);
        if (pin) pins[n] = members[0];
        do_close(&t, &arena, id, g);
        if (late && n >= late && pins[n - late]) {
            do_free(&t, &arena, pins[n - late]);
            pins[n - late] = NULL;
        }
    }
    stop_at("end");
    truth_print_single(&t);
    if (option("signal", 0)) raise((int)option("signal", 0));
    return (int)option("status", 0);
}
