/* A program that tells drainprof of its granules by the probes of its header: two allocators with equal ids, which are
 * used again; objects behind their granule's close; labels. With `boundary=1` no object is seen; with `count=0` it does
 * not count its objects itself.
 */
#include "../../include/drainprof_usdt.h"
#include "truth.h"

enum { ALLOCATORS = 2, RING = 8, OBJECTS = 12, LATE = 30 };

static char names[ALLOCATORS];
static struct truth truths[ALLOCATORS];
static struct { struct gen *gen; u64 which, object, size; } late[LATE];
static u64 next_object = 1, counted;

static struct gen *begin(u64 which, u64 granule) {
    drainprof_granule_open(&names[which], granule, 4096, "a request");
    return truth_open(&truths[which], NULL, 4096);
}

static __attribute__((noinline)) u64 made(u64 which, u64 granule, struct gen *g, u64 size) {
    drainprof_granule_alloc(&names[which], granule, next_object, size);
    truth_alloc(&truths[which], g, size);
    return next_object++;
}

static void gone(u64 which, struct gen *g, u64 object, u64 size) {
    drainprof_granule_free(&names[which], object);
    truth_free(&truths[which], g, size);
}

static void end(u64 which, u64 granule, struct gen *g) {
    drainprof_granule_close(&names[which], granule, counted ? g->live : DRAINPROF_UNCOUNTED);
    truth_close(&truths[which], g);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 closes = option("closes", 2000), p = option("p", 2500), pins = 0;
    counted = option("count", 1);
    for (u64 i = 0; i < ALLOCATORS; i++) {
        truths[i].instance = &names[i];
        truths[i].pins_known = true;
        if (option("boundary", 0)) truths[i].omit = NO_OBJECTS | NO_RETENTION;
    }
    ready();
    for (u64 n = 0; n < closes; n++) {
        u64 which = n % 3 == 0, granule = n / 2 % RING, count = random_below(OBJECTS), objects[OBJECTS], sizes[OBJECTS];
        struct gen *g = begin(which, granule);
        for (u64 i = 0; i < count; i++) objects[i] = made(which, granule, g, sizes[i] = 1 + random_below(5000));
        bool pin = count && chance(p);
        for (u64 i = pin; i < count; i++) gone(which, g, objects[i], sizes[i]);
        end(which, granule, g);
        if (!pin) continue;
        u64 place = pins++ % LATE;
        if (late[place].gen) gone(late[place].which, late[place].gen, late[place].object, late[place].size);
        late[place].gen = g;
        late[place].which = which;
        late[place].object = objects[0];
        late[place].size = sizes[0];
    }
    begin(0, 1);
    const struct truth *all[] = {&truths[0], &truths[1]};
    truth_print(all, ALLOCATORS);
    return 0;
}
