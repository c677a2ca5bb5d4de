/* realloc in all its outcomes: in place, moved, failed (the old object stays), of NULL (an alloc), to 0
 * (a free). `mode` picks one outcome, or `mix`. Whether a resize counts as an alloc and a free is the
 * tracer's convention, so the flow of objects is not compared; what lives, and its bytes, are.
 */
#include "truth.h"

struct heap { u64 reserved; };
struct block { u64 size; struct gen *gen; };
enum outcome { IN_PLACE, MOVED, FAILED, OF_NULL, TO_ZERO, OUTCOMES };
static enum outcome outcome;

PROBED void heap_open(struct heap *h, u64 id) { __asm__ volatile("" : : "r"(h), "r"(id) : "memory"); }
PROBED void heap_close(struct heap *h, u64 id) { __asm__ volatile("" : : "r"(h), "r"(id) : "memory"); }
PROBED struct block *heap_alloc(struct heap *h, u64 id, u64 size) {
    __asm__ volatile("" : : "r"(h), "r"(id) : "memory");
    struct block *b = calloc(1, sizeof *b);
    b->size = size;
    return b;
}
PROBED void heap_free(struct heap *h, struct block *b) {
    __asm__ volatile("" : : "r"(h) : "memory");
    free(b);
}
PROBED struct block *heap_realloc(struct heap *h, struct block *b, u64 size, u64 id) {
    __asm__ volatile("" : : "r"(h), "r"(id) : "memory");
    struct block *moved;
    if (size == 0) {
        free(b);
        return NULL;
    }
    if (!b) {
        b = calloc(1, sizeof *b);
        b->size = size;
        return b;
    }
    switch (outcome) {
    case FAILED: return NULL;
    case MOVED:
        moved = calloc(1, sizeof *moved);
        *moved = *b;
        free(b);
        b = moved; /* fall through */
    default: b->size = size; return b;
    }
}

static struct heap heap;

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    static const char *const names[] = {"in_place", "moved", "failed", "of_null", "to_zero"};
    const char *mode = option_text("mode", "mix");
    u64 times = option("times", 500);
    struct truth t = {.instance = &heap, .omit = NO_OBJECT_FLOW};
    ready();
    for (u64 n = 0; n < times; n++) {
        struct gen *g = truth_open(&t, NULL, 0);
        heap_open(&heap, n);
        outcome = (enum outcome)(n % OUTCOMES);
        for (unsigned i = 0; i < OUTCOMES; i++)
            if (!strcmp(mode, names[i])) outcome = (enum outcome)i;
        u64 old = 16 + random_below(100), size = outcome == TO_ZERO ? 0 : 200 + random_below(100);
        struct block *b = NULL;
        if (outcome != OF_NULL) {
            b = heap_alloc(&heap, n, old);
            truth_alloc(&t, g, old);
        }
        struct block *now = heap_realloc(&heap, b, size, n);
        switch (outcome) {
        case IN_PLACE:
        case MOVED:
            truth_free(&t, g, old); /* still open: no verdict hangs on the instant between */
            truth_alloc(&t, g, size);
            b = now;
            break;
        case FAILED: size = old; break;
        case OF_NULL:
            truth_alloc(&t, g, size);
            b = now;
            break;
        default:
            truth_free(&t, g, old);
            b = NULL;
        }
        bool early = chance(5000);
        if (b && early) {
            heap_free(&heap, b);
            truth_free(&t, g, size);
            b = NULL;
        }
        heap_close(&heap, n);
        truth_close(&t, g);
        if (b && chance(5000)) {
            /* resized after the close: the pin stays a pin until it is freed */
            if (outcome != FAILED) outcome = n % 2 ? MOVED : IN_PLACE;
            now = heap_realloc(&heap, b, 333, n);
            if (outcome != FAILED) {
                g->live_bytes += 333 - size;
                t.allocated_bytes += 333 - size;
                b = now;
                size = 333;
            }
            if (n % 3) {
                heap_free(&heap, b);
                truth_free(&t, g, size);
            }
        }
    }
    truth_print_single(&t);
    return 0;
}
