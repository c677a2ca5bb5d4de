/* Several allocator instances with equal granule ids and object ids that are unique per instance only
 * (1, 2, 3 … in each). Each instance is created by an init; with `destroy=1` some are torn down while
 * granules are open. A destroyed instance's address is not reused.
 */
#include "truth.h"

#define MAX_INSTANCES 512
#define CELLS 4096

struct shop {
    u64 next;
    u8 out[CELLS];
};

PROBED struct shop *shop_create(void) { return calloc(1, sizeof(struct shop)); }
PROBED void shop_destroy(struct shop *s) { __asm__ volatile("" : : "r"(s) : "memory"); }
PROBED void shop_open(struct shop *s, u64 id) { __asm__ volatile("" : : "r"(s), "r"(id) : "memory"); }
PROBED void shop_close(struct shop *s, u64 id) { __asm__ volatile("" : : "r"(s), "r"(id) : "memory"); }
PROBED u64 shop_alloc(struct shop *s, u64 id, u64 size) {
    __asm__ volatile("" : : "r"(id), "r"(size) : "memory");
    s->out[s->next % CELLS] = 1;
    return s->next++ % CELLS + 1;
}
PROBED int shop_free(struct shop *s, u64 cell) {
    if (!s->out[cell - 1]) return 0;
    s->out[cell - 1] = 0;
    return 1;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 count = option("instances", 5), rounds = option("rounds", 200), destroy = option("destroy", 0);
    if (count > MAX_INSTANCES) count = MAX_INSTANCES;
    static struct truth truths[MAX_INSTANCES];
    static const struct truth *list[MAX_INSTANCES];
    static struct shop *shops[MAX_INSTANCES];
    ready();
    for (u64 i = 0; i < count; i++) {
        shops[i] = shop_create();
        truths[i].instance = shops[i];
        list[i] = &truths[i];
    }
    for (u64 n = 0; n < rounds; n++)
        for (u64 i = 0; i < count; i++) {
            struct shop *s = shops[i];
            struct truth *t = &truths[i];
            shop_open(s, n);
            struct gen *g = truth_open(t, NULL, 0);
            u64 objects = random_below(5), cells[5];
            for (u64 k = 0; k < objects; k++) {
                cells[k] = shop_alloc(s, n, 10 * (i + 1));
                truth_alloc(t, g, 10 * (i + 1));
            }
            bool pin = objects && chance(1000 * (i % 10)); /* each instance with a rate of its own */
            for (u64 k = pin ? 1 : 0; k < objects; k++) {
                if (!shop_free(s, cells[k])) abort();
                truth_free(t, g, 10 * (i + 1));
                shop_free(s, cells[k]); /* rejected */
            }
            shop_close(s, n);
            truth_close(t, g);
            if (pin) { /* always drained in the end, so that cells never run out */
                shop_free(s, cells[0]);
                truth_free(t, g, 10 * (i + 1));
            }
        }
    if (destroy)
        for (u64 i = 0; i < count; i += 2) {
            for (u64 k = 0; k <= i; k++) {
                shop_open(shops[i], 100000 + k);
                truth_open(&truths[i], NULL, 0);
            }
            shop_destroy(shops[i]);
            truth_destroy(&truths[i], i + 1);
        }
    truth_print(list, count);
    return 0;
}
