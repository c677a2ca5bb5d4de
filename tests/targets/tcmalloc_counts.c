/*
 * Counts spans of tcmalloc from inside a program into which it is preloaded before tcmalloc itself: it
 * stands before the page heap's functions, which the library calls through its own table of symbols. The
 * second opinion beside drainprof, which must come to the same counts from outside.
 *
 * The counters are in a file, mapped into memory, whose name TCMALLOC_COUNTS says: so they count to the last
 * instruction of the process, and need no end at which they are told. tcmalloc calls all of this with its
 * lock held: nothing here may allocate.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OPENED, OPENED_BYTES, CLOSED, CLOSED_BYTES, CLOSED_IN_USE, LARGE_CLOSED, GROWN, COUNTERS };

struct span {
    uintptr_t start, pages;
    void *next, *previous, *objects;
    uint16_t in_use;
    uint8_t class;
};

static uint64_t none[COUNTERS], *counts;

static void add(int counter, uint64_t value)
{
    if (!counts) {
        const char *path = getenv("TCMALLOC_COUNTS");
        int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        void *map = file < 0 ? MAP_FAILED
                             : mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        counts = map == MAP_FAILED ? none : map;
        if (file >= 0)
            close(file);
    }
    __atomic_fetch_add(&counts[counter], value, __ATOMIC_RELAXED);
}

/* PageHeap::RegisterSizeClass(Span*, uint32_t) */
void _ZN8tcmalloc8PageHeap17RegisterSizeClassEPNS_4SpanEj(void *heap, struct span *span, uint32_t class)
{
    static void (*next)(void *, struct span *, uint32_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "_ZN8tcmalloc8PageHeap17RegisterSizeClassEPNS_4SpanEj");
    add(OPENED, 1);
    add(OPENED_BYTES, span->pages << 13);
    next(heap, span, class);
}

/* PageHeap::Delete(Span*) */
void _ZN8tcmalloc8PageHeap6DeleteEPNS_4SpanE(void *heap, struct span *span)
{
    static void (*next)(void *, struct span *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "_ZN8tcmalloc8PageHeap6DeleteEPNS_4SpanE");
    if (span->class) {
        add(CLOSED, 1);
        add(CLOSED_BYTES, span->pages << 13);
        add(CLOSED_IN_USE, span->in_use != 0);
    } else {
        add(LARGE_CLOSED, 1);
    }
    next(heap, span);
}

/* PageHeap::GrowHeap(size_t) */
int _ZN8tcmalloc8PageHeap8GrowHeapEm(void *heap, size_t pages)
{
    static _Bool (*next)(void *, size_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "_ZN8tcmalloc8PageHeap8GrowHeapEm");
    add(GROWN, 1);
    return next(heap, pages);
}
