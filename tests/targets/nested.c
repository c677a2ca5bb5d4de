/* Entry points that call each other, all of them in the profile: a wrapper alloc, a wrapper free that is
 * evaluated at return, a tail call from one alloc into another, and a free that tail-calls. Each object
 * counts once. With `inflight=1` the open itself allocates from the granule before it returns its id.
 */
#include "truth.h"

struct pool { u64 first; };
struct cell { u64 size; struct gen *gen; };

PROBED struct cell *inner_alloc(struct pool *p, u64 size) {
    __asm__ volatile("" : : "r"(p) : "memory");
    struct cell *c = calloc(1, sizeof *c);
    c->size = size;
    return c;
}
PROBED void inner_free(struct pool *p, struct cell *c) {
    __asm__ volatile("" : : "r"(p) : "memory");
    free(c);
}
/* Calls the inner one and does something afterwards, so that it is no tail call. */
PROBED struct cell *outer_alloc(struct pool *p, u64 size) {
    struct cell *c = inner_alloc(p, size);
    if (c) c->gen = NULL;
    return c;
}
PROBED struct cell *outermost_alloc(struct pool *p, u64 size) {
    struct cell *c = outer_alloc(p, size);
    if (c) c->gen = NULL;
    return c;
}
PROBED int outer_free(struct pool *p, struct cell *c) {
    inner_free(p, c);
    p->first++;
    return 1;
}
/* Jump into the inner functions: one return serves both. */
__asm__(".globl tail_alloc\n.type tail_alloc,@function\ntail_alloc:\n\tnop\n\tjmp inner_alloc\n.size tail_alloc,.-tail_alloc\n"
        ".globl tail_free\n.type tail_free,@function\ntail_free:\n\tnop\n\tjmp inner_free\n.size tail_free,.-tail_free\n");
struct cell *tail_alloc(struct pool *p, u64 size);
void tail_free(struct pool *p, struct cell *c);

/* Makes a pool and allocates `early` cells from it before anyone knows its id. */
static struct cell *early_cells[8];
PROBED struct pool *pool_create(u64 early) {
    struct pool *p = calloc(1, sizeof *p);
    for (u64 i = 0; i < early; i++) early_cells[i] = inner_alloc(p, 100 + i);
    return p;
}
PROBED void pool_close(struct pool *p) { __asm__ volatile("" : : "r"(p) : "memory"); }

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 times = option("times", 500), inflight = option("inflight", 0), wrappers = option("wrappers", 1);
    struct truth t = {0};
    ready();
    for (u64 n = 0; n < times; n++) {
        u64 early = inflight ? random_below(8) : 0;
        struct pool *p = pool_create(early);
        struct gen *g = truth_open(&t, NULL, 0);
        for (u64 i = 0; i < early; i++) truth_alloc(&t, g, 100 + i);
        struct cell *cells[8];
        u64 count = 1 + random_below(8);
        for (u64 i = 0; i < count; i++) {
            u64 size = 1 + random_below(500);
            switch (wrappers ? random_below(4) : 0) {
            case 0: cells[i] = inner_alloc(p, size); break;
            case 1: cells[i] = outer_alloc(p, size); break;
            case 2: cells[i] = outermost_alloc(p, size); break;
            default: cells[i] = tail_alloc(p, size);
            }
            truth_alloc(&t, g, size);
        }
        bool pin = chance(3000);
        for (u64 i = pin ? 1 : 0; i < count; i++) {
            u64 size = cells[i]->size;
            switch (wrappers ? random_below(3) : 0) {
            case 0: inner_free(p, cells[i]); break;
            case 1: outer_free(p, cells[i]); break;
            default: tail_free(p, cells[i]);
            }
            truth_free(&t, g, size);
        }
        bool keep_early = chance(5000);
        for (u64 i = 0; i < early && !keep_early; i++) {
            inner_free(p, early_cells[i]);
            truth_free(&t, g, 100 + i);
        }
        pool_close(p); /* the pool's memory is never reused, so that each id has one life */
        truth_close(&t, g);
        if (pin && chance(5000)) {
            u64 size = cells[0]->size;
            outer_free(p, cells[0]);
            truth_free(&t, g, size);
        }
    }
    truth_print_single(&t);
    return 0;
}
