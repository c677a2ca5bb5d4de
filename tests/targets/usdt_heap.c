/* Heaps as glibc's threads have them: mapped at multiples of 64 MiB, so that an object's heap is its address with the low bits
 * off, and given back once they are empty. Their coming and going is seen through USDT probes with the names and arguments of
 * glibc's own (`libc:memory_heap_new`, `libc:memory_heap_free`: the heap and its size), which have no semaphores.
 *
 * One source for three things: a program with the heaps in it; with -DLIBRARY a shared object that has the heaps alone; with
 * -DSHARED a program that opens that one (`library=PATH`).
 */
#include "truth.h"
#include "usdt.h"
#include <dlfcn.h>
#include <sys/mman.h>

enum { HEAPS = 48, CELLS = 20 };
#define HEAP_SIZE ((u64)64 << 20)
#define HEAP_PAGES ((u64)132 << 10)

#ifndef SHARED
struct heap {
    u64 used, live;
};

PROBED struct heap *usdt_new_heap(void) {
    char *space = mmap(NULL, 2 * HEAP_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) abort();
    char *aligned = (char *)(((uintptr_t)space + HEAP_SIZE - 1) & ~(uintptr_t)(HEAP_SIZE - 1));
    if (aligned != space) munmap(space, (size_t)(aligned - space));
    munmap(aligned + HEAP_SIZE, (size_t)(space + HEAP_SIZE - aligned));
    if (mprotect(aligned, HEAP_PAGES, PROT_READ | PROT_WRITE)) abort();
    struct heap *heap = (struct heap *)aligned;
    heap->used = sizeof *heap;
    DTRACE_PROBE2(libc, memory_heap_new, heap, HEAP_PAGES);
    return heap;
}

PROBED void usdt_free_heap(struct heap *heap) {
    DTRACE_PROBE2(libc, memory_heap_free, heap, HEAP_PAGES);
    munmap(heap, HEAP_SIZE);
}

PROBED void *usdt_malloc(struct heap *heap, u64 size) {
    void *object = (char *)heap + heap->used;
    heap->used += (size + 15) & ~(u64)15;
    heap->live++;
    return object;
}

PROBED void usdt_free(void *object) {
    struct heap *heap = (struct heap *)((uintptr_t)object & ~(uintptr_t)(HEAP_SIZE - 1));
    heap->live--;
    __asm__ volatile("" : : "r"(heap) : "memory");
}
#else
static void *(*usdt_new_heap)(void);
static void (*usdt_free_heap)(void *);
static void *(*usdt_malloc)(void *, u64);
static void (*usdt_free)(void *);

static void *function(void *library, const char *name) {
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "target: %s\n", dlerror());
        _exit(9);
    }
    return found;
}

static void open_library(void) {
    void *library = dlopen(option_text("library", ""), RTLD_NOW);
    *(void **)&usdt_new_heap = function(library, "usdt_new_heap");
    *(void **)&usdt_free_heap = function(library, "usdt_free_heap");
    *(void **)&usdt_malloc = function(library, "usdt_malloc");
    *(void **)&usdt_free = function(library, "usdt_free");
}
#endif

#ifndef LIBRARY
int main(int argc, char **argv) {
    static struct truth t = {.kind = SLAB_HEAP};
    static struct gen *gens[HEAPS];
    static void *heaps[HEAPS], *cells[HEAPS][CELLS];
    truth_begin(argc, argv);
#ifdef SHARED
    open_library();
#endif
    ready();
    for (int n = 0; n < HEAPS; n++) {
        heaps[n] = usdt_new_heap();
        gens[n] = truth_open(&t, NULL, HEAP_PAGES);
        for (int i = 0; i < CELLS; i++) {
            cells[n][i] = usdt_malloc(heaps[n], 100);
            truth_alloc(&t, gens[n], 100);
        }
    }
    /* Every third heap is held by one object. */
    for (int n = 0; n < HEAPS; n++) {
        for (int i = n % 3 == 0; i < CELLS; i++) {
            usdt_free(cells[n][i]);
            truth_free(&t, gens[n], 100);
        }
        if (n % 3) {
            usdt_free_heap(heaps[n]);
            truth_close(&t, gens[n]);
        }
    }
    stop_at("end");
    truth_print_single(&t);
    return 0;
}
#endif
