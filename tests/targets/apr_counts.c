/*
 * Counts APR pools from inside a program that is linked with libapr: preloaded, it stands before the
 * functions that create, clear and destroy pools and allocate in them. The second opinion beside drainprof,
 * which must come to the same counts from outside.
 *
 * libapr destroys children without calling a function that could be wrapped, so the books know who is whose
 * child. One thread only, as svn and svnadmin are. At the end of the process one line of JSON is appended
 * to the file that APR_COUNTS names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_POOLS = 4096 };

typedef struct {
    void *pool;
    void *parent;
} entry;

static entry pools[MOST_POOLS];
static size_t used;
static unsigned long created, destroyed, cleared, allocated, allocated_bytes;

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "apr_counts: there is no %s\n", name);
        abort();
    }
    return found;
}

static size_t find(const void *pool)
{
    size_t at = 0;
    while (at < used && pools[at].pool != pool)
        at++;
    return at;
}

static void note_created(void *pool)
{
    void *(*parent_of)(void *) = (void *(*)(void *))real("apr_pool_parent_get");
    if (used == MOST_POOLS) {
        fprintf(stderr, "apr_counts: more than %d pools\n", MOST_POOLS);
        abort();
    }
    pools[used++] = (entry){pool, parent_of(pool)};
    created++;
}

static void note_destroyed(const void *pool);

static void children_destroyed(const void *pool)
{
    for (size_t at = 0; at < used;) {
        if (pools[at].parent == pool) {
            note_destroyed(pools[at].pool);
            at = 0; /* entries have moved */
        } else {
            at++;
        }
    }
}

/* One that is not known any more went with its parent a moment ago, and is being destroyed by it now. */
static void note_destroyed(const void *pool)
{
    size_t at = find(pool);
    if (at == used)
        return;
    pools[at] = pools[--used];
    destroyed++;
    children_destroyed(pool);
}

int apr_pool_create_ex(void **pool, void *parent, void *abort_fn, void *allocator)
{
    int (*next)(void **, void *, void *, void *) =
        (int (*)(void **, void *, void *, void *))real("apr_pool_create_ex");
    int status = next(pool, parent, abort_fn, allocator);
    if (status == 0)
        note_created(*pool);
    return status;
}

int apr_pool_create_unmanaged_ex(void **pool, void *abort_fn, void *allocator)
{
    int (*next)(void **, void *, void *) =
        (int (*)(void **, void *, void *))real("apr_pool_create_unmanaged_ex");
    int status = next(pool, abort_fn, allocator);
    if (status == 0)
        note_created(*pool);
    return status;
}

void apr_pool_destroy(void *pool)
{
    void (*next)(void *) = (void (*)(void *))real("apr_pool_destroy");
    note_destroyed(pool);
    next(pool);
    /* What its cleanups made in it meanwhile has gone too. */
    children_destroyed(pool);
}

void apr_pool_clear(void *pool)
{
    void (*next)(void *) = (void (*)(void *))real("apr_pool_clear");
    cleared++;
    children_destroyed(pool);
    next(pool);
    children_destroyed(pool);
}

void *apr_palloc(void *pool, size_t size)
{
    static void *(*next)(void *, size_t);
    if (!next)
        next = (void *(*)(void *, size_t))real("apr_palloc");
    void *got = next(pool, size);
    if (got) {
        allocated++;
        allocated_bytes += size;
    }
    return got;
}

/* Runs after the program's own atexit functions, in which it ends APR. */
__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("APR_COUNTS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) {
        fprintf(stderr, "apr_counts: APR_COUNTS names no file that can be written\n");
        abort();
    }
    fprintf(file,
            "{\"opened\":%lu,\"closed\":%lu,\"resets\":%lu,\"open_now\":%zu,"
            "\"allocated\":%lu,\"allocated_bytes\":%lu}\n",
            created, destroyed, cleared, used, allocated, allocated_bytes);
    fclose(file);
}
