/* The alloc is an IFUNC: its symbol's address is a resolver that runs once, not the function. */
#include "truth.h"

static struct truth t;

PROBED void *alloc_plain(u64 id, u64 size) {
    __asm__ volatile("" : : "r"(id) : "memory");
    return malloc(size);
}
static void *(*resolve_alloc(void))(u64, u64) { return alloc_plain; }
void *fancy_alloc(u64 id, u64 size) __attribute__((ifunc("resolve_alloc")));
PROBED void fancy_open(u64 id) { __asm__ volatile("" : : "r"(id) : "memory"); }
PROBED void fancy_close(u64 id) { __asm__ volatile("" : : "r"(id) : "memory"); }
PROBED void fancy_free(void *object) { free(object); }

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 times = option("times", 100);
    ready();
    for (u64 n = 0; n < times; n++) {
        fancy_open(n);
        struct gen *g = truth_open(&t, NULL, 0);
        void *object = fancy_alloc(n, 40);
        truth_alloc(&t, g, 40);
        if (n % 4) {
            fancy_free(object);
            truth_free(&t, g, 40);
        }
        fancy_close(n);
        truth_close(&t, g);
    }
    truth_print_single(&t);
    return 0;
}
