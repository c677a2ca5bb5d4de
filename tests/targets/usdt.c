/* An epoch allocator that is seen through USDT probes alone: its functions are inlined everywhere. Its probes have several
 * places each, and semaphores (unless it is compiled without): what is not asked for is not done.
 *
 * It waits once before its work and, with `stops=1`, once behind it.
 */
#ifndef NO_SEMAPHORES
#define USDT_SEMAPHORES
#endif
#include "truth.h"
#include "usdt.h"

USDT_SEMAPHORE(pool, open);
USDT_SEMAPHORE(pool, close);
USDT_SEMAPHORE(pool, alloc);
USDT_SEMAPHORE(pool, free);
USDT_SEMAPHORE(pool, spare);

#define INLINED static inline __attribute__((always_inline))
enum { EPOCHS = 400, SLOTS = 300 };

struct object {
    struct gen *gen;
    u32 size;
};

static struct truth t;

INLINED void pool_alloc(int epoch, struct object *o, u32 size) {
    o->size = size;
    if (USDT_ENABLED(pool, alloc)) DTRACE_PROBE3(pool, alloc, epoch, o, o->size);
}

INLINED void pool_free(struct object *o) {
    if (USDT_ENABLED(pool, free)) DTRACE_PROBE1(pool, free, o);
}

static struct object *made(struct gen *g) {
    struct object *o = malloc(sizeof *o);
    o->gen = g;
    return o;
}

static void freed(struct object **slot) {
    if (!*slot) return;
    pool_free(*slot);
    truth_free(&t, (*slot)->gen, (*slot)->size);
    free(*slot);
    *slot = NULL;
}

/* Three places that allocate: with a size in a register, on the stack, and as a constant. */
static __attribute__((noinline)) struct object *small(int epoch, struct gen *g) {
    struct object *o = made(g);
    pool_alloc(epoch, o, 24);
    truth_alloc(&t, g, 24);
    return o;
}

static __attribute__((noinline)) struct object *any(int epoch, struct gen *g, u32 size) {
    struct object *o = made(g);
    pool_alloc(epoch, o, size);
    truth_alloc(&t, g, size);
    return o;
}

static __attribute__((noinline)) void pair(int epoch, struct gen *g, struct object **slots) {
    u32 sizes[2] = {(u32)random_below(1000) + 1, (u32)random_below(100000) + 1};
    for (int i = 0; i < 2; i++) {
        freed(&slots[i]);
        slots[i] = made(g);
        pool_alloc(epoch, slots[i], sizes[i]);
        truth_alloc(&t, g, sizes[i]);
    }
}

int main(int argc, char **argv) {
    static struct object *slots[SLOTS];
    truth_begin(argc, argv);
    ready();
    /* Ids are negative numbers of 32 bits: they are what they are only with their sign. */
    for (int epoch = -EPOCHS; epoch < 0; epoch++) {
        if (USDT_ENABLED(pool, open)) DTRACE_PROBE1(pool, open, epoch);
        struct gen *g = truth_open(&t, NULL, 0);
        for (int n = 0; n < 20; n++) {
            struct object **slot = &slots[random_below(SLOTS - 1)];
            u64 which = random_below(3);
            if (which == 2) {
                pair(epoch, g, slot);
                continue;
            }
            freed(slot);
            *slot = which ? small(epoch, g) : any(epoch, g, (u32)random_below(5000) + 1);
        }
        if (epoch % 3 == 0)
            for (int n = 0; n < SLOTS; n++)
                if (slots[n] && slots[n]->gen == g) freed(&slots[n]);
        if (epoch % 2) {
            if (USDT_ENABLED(pool, close)) DTRACE_PROBE1(pool, close, epoch);
        } else {
            long wide = epoch;
            if (USDT_ENABLED(pool, close)) DTRACE_PROBE1(pool, close, wide);
        }
        truth_close(&t, g);
    }
    if (option("spare", 0) && USDT_ENABLED(pool, spare)) DTRACE_PROBE1(pool, spare, argc);
    stop_at("end");
    truth_print_single(&t);
    return 0;
}
