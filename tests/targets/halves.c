/* A program whose objects go and come for a while, with objects that are older than the attach, and with two
 * functions that allocate. It frees one object and allocates another, `ms` milliseconds long; every
 * hundred make a granule. A profile that names one of the two functions sees half of what is allocated.
 */
#include "truth.h"
#include <time.h>

enum { SLOTS = 20000, BATCH = 100 };

struct object {
    struct gen *gen; /* NULL: older than the attach */
    u64 size;
};

PROBED void halves_open(u64 id) { __asm__ volatile("" : : "r"(id) : "memory"); }
PROBED void halves_close(u64 id) { __asm__ volatile("" : : "r"(id) : "memory"); }

PROBED struct object *halves_alloc(u64 id, u64 size) {
    struct object *o = malloc(sizeof *o);
    (void)id;
    o->gen = NULL;
    o->size = size;
    return o;
}

PROBED struct object *halves_zalloc(u64 id, u64 size) {
    struct object *o = calloc(1, sizeof *o);
    (void)id;
    o->size = size;
    return o;
}

PROBED void halves_free(struct object *o) { free(o); }

static u64 now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1000000;
}

int main(int argc, char **argv) {
    static struct object *slots[SLOTS];
    static struct truth t;
    truth_begin(argc, argv);
    for (u64 n = 0; n < SLOTS; n++) slots[n] = halves_alloc(0, 1);
    ready();
    u64 end = now_ms() + option("ms", 2000);
    for (u64 id = 1; now_ms() < end; id++) {
        halves_open(id);
        struct gen *g = truth_open(&t, NULL, 0);
        for (u64 n = 0; n < BATCH; n++) {
            struct object **slot = &slots[random_below(SLOTS)];
            struct gen *of = (*slot)->gen;
            u64 size = (*slot)->size;
            halves_free(*slot);
            if (of) truth_free(&t, of, size);
            else truth_losses.unmatched_frees++;
            size = 1 + random_below(1000);
            *slot = chance(5000) ? halves_alloc(id, size) : halves_zalloc(id, size);
            (*slot)->gen = g;
            truth_alloc(&t, g, size);
        }
        halves_close(id);
        truth_close(&t, g);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* its pace */
    }
    truth_print_single(&t);
    return 0;
}
