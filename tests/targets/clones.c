/* The compiler's clones of one function: `cloned_alloc` is never called, `cloned_alloc.constprop.0` and
 * `cloned_alloc.part.0` are. A profile that names the function alone sees nothing of it.
 */
#include "truth.h"

static struct truth t;

PROBED void *cloned_alloc(u64 id, u64 size) {
    __asm__ volatile("" : : "r"(id) : "memory");
    return malloc(size);
}
void *alloc_constprop(u64 id, u64 size) __asm__("cloned_alloc.constprop.0");
PROBED void *alloc_constprop(u64 id, u64 size) {
    __asm__ volatile("" : : "r"(id) : "memory");
    return malloc(size);
}
void *alloc_part(u64 id, u64 size) __asm__("cloned_alloc.part.0");
PROBED void *alloc_part(u64 id, u64 size) {
    __asm__ volatile("" : : "r"(id) : "memory");
    return malloc(size);
}
PROBED void cloned_open(u64 id) { __asm__ volatile("" : : "r"(id) : "memory"); }
PROBED void cloned_close(u64 id) { __asm__ volatile("" : : "r"(id) : "memory"); }
PROBED void cloned_free(void *object) { free(object); }

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 times = option("times", 100);
    t.omit = NO_OBJECTS | NO_VERDICTS | NO_RETENTION;
    ready();
    for (u64 n = 0; n < times; n++) {
        cloned_open(n);
        struct gen *g = truth_open(&t, NULL, 0);
        void *object = n % 2 ? alloc_constprop(n, 40) : alloc_part(n, 40);
        cloned_free(object);
        truth_losses.unmatched_frees++;
        cloned_close(n);
        truth_close(&t, g);
    }
    truth_print_single(&t);
    return 0;
}
