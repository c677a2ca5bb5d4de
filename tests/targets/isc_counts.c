/*
 * Counts calls of BIND's memory functions from inside a program that is linked with libisc: preloaded, it
 * stands before the functions that make contexts and take and give back objects. The second opinion beside
 * drainprof, which must come to the same counts from outside. Calls inside of libisc go through it as well,
 * but for those of its static functions.
 *
 * The counts are kept in the file that ISC_COUNTS names, mapped as an array of 64-bit words, because libisc
 * itself gives memory back after every handler of the end of a process has run. See `Counts` in src/bind.rs
 * for the order. Any number of threads.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CREATE, GET, ALLOCATE, POOL_GET, PUT, PUT_AND_DETACH, FREE, POOL_PUT, GOT_BYTES, REPLACED, WORDS };

static _Atomic unsigned long *counts;

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "isc_counts: there is no %s\n", name);
        abort();
    }
    return found;
}

__attribute__((constructor)) static void begin(void)
{
    if (counts)
        return;
    const char *path = getenv("ISC_COUNTS");
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, WORDS * sizeof *counts) != 0) {
        fprintf(stderr, "isc_counts: ISC_COUNTS names no file that can be written\n");
        abort();
    }
    void *map = mmap(NULL, WORDS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        abort();
    close(file);
    counts = map;
}

static void count(int what, unsigned long by)
{
    /* The constructor of libisc 9.20, which makes contexts, runs before that of this library. */
    if (!counts)
        begin();
    atomic_fetch_add(&counts[what], by);
}

void isc__mem_create(void **context)
{
    ((void (*)(void **))real("isc__mem_create"))(context);
    count(CREATE, 1);
}

void isc__mem_create_arena(void **context)
{
    ((void (*)(void **))real("isc__mem_create_arena"))(context);
    count(CREATE, 1);
}

void *isc__mem_get(void *context, size_t size, int flags)
{
    count(GET, 1);
    count(GOT_BYTES, size);
    return ((void *(*)(void *, size_t, int))real("isc__mem_get"))(context, size, flags);
}

/* 9.18 has no flags here, and ignores them. */
void *isc__mem_allocate(void *context, size_t size, int flags)
{
    count(ALLOCATE, 1);
    return ((void *(*)(void *, size_t, int))real("isc__mem_allocate"))(context, size, flags);
}

void *isc__mempool_get(void *pool)
{
    count(POOL_GET, 1);
    return ((void *(*)(void *))real("isc__mempool_get"))(pool);
}

void isc__mem_put(void *context, void *object, size_t size, int flags)
{
    count(PUT, 1);
    ((void (*)(void *, void *, size_t, int))real("isc__mem_put"))(context, object, size, flags);
}

void isc__mem_putanddetach(void **context, void *object, size_t size, int flags)
{
    count(PUT_AND_DETACH, 1);
    ((void (*)(void **, void *, size_t, int))real("isc__mem_putanddetach"))(context, object, size,
                                                                         flags);
}

void isc__mem_free(void *context, void *object, int flags)
{
    count(FREE, 1);
    ((void (*)(void *, void *, int))real("isc__mem_free"))(context, object, flags);
}

/* Without an old object or a new size, these call the functions above. */
void *isc__mem_reget(void *context, void *object, size_t old, size_t size, int flags)
{
    count(REPLACED, object && size);
    return ((void *(*)(void *, void *, size_t, size_t, int))real("isc__mem_reget"))(
        context, object, old, size, flags);
}

void *isc__mem_reallocate(void *context, void *object, size_t size, int flags)
{
    count(REPLACED, object && size);
    return ((void *(*)(void *, void *, size_t, int))real("isc__mem_reallocate"))(context, object, size,
                                                                              flags);
}

void isc__mempool_put(void *pool, void *object)
{
    count(POOL_PUT, 1);
    ((void (*)(void *, void *))real("isc__mempool_put"))(pool, object);
}
