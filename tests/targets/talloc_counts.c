/*
 * Counts talloc chunks from inside a program that is linked with libtalloc: preloaded, it stands before the functions
 * that make, move and free chunks. The second opinion beside drainprof, which must come to the same counts from
 * outside.
 *
 * Before a chunk is freed, talloc itself is asked what is below it (talloc_report_depth_cb, which its reports are made
 * with); what of that is not freed by a call of its own meanwhile has gone with it. So nothing here knows how chunks
 * look in memory. One thread only, as ldb's tools are. At the end of the process one line of JSON is appended to the
 * file that TALLOC_COUNTS names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 16 };

typedef struct chunk {
    void *at;
    unsigned long serial;
    unsigned long seen; /* the last walk that has met it */
    struct chunk *next;
} chunk;

static chunk *chunks[BUCKETS];
static unsigned long serials, walks;
static unsigned long opened, closed, resets, ended, moved, reparented, refused, open_now, named;

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "talloc_counts: there is no %s\n", name);
        abort();
    }
    return found;
}

static chunk **find(const void *at)
{
    chunk **place = &chunks[((unsigned long)at >> 4) % BUCKETS];
    while (*place && (*place)->at != at)
        place = &(*place)->next;
    return place;
}

static void made(void *at)
{
    chunk **place = find(at);
    if (!at)
        return;
    if (!*place) {
        *place = calloc(1, sizeof **place);
        if (!*place)
            abort();
        (*place)->at = at;
        open_now++;
    } else {
        fprintf(stderr, "talloc_counts: %p was made twice\n", at);
        abort();
    }
    (*place)->serial = ++serials;
    opened++;
}

static bool gone(const void *at)
{
    chunk **place = find(at);
    chunk *found = *place;
    if (!found)
        return false;
    *place = found->next;
    free(found);
    open_now--;
    return true;
}

/* What is below a chunk, before it is freed. */
typedef struct {
    chunk *all;
    size_t used, size;
} list;

static void collect(const void *at, int depth, int most, int is_reference, void *private)
{
    (void)most;
    list *below = private;
    chunk *found = *find(at);
    if (depth == 0 || is_reference || !found)
        return;
    if (below->used == below->size) {
        below->size = below->size * 2 + 64;
        below->all = realloc(below->all, below->size * sizeof *below->all);
        if (!below->all)
            abort();
    }
    below->all[below->used++] = *found;
}

static list below(void *at)
{
    void (*walk)(const void *, int, int, void (*)(const void *, int, int, int, void *), void *) =
        (void (*)(const void *, int, int, void (*)(const void *, int, int, int, void *), void *))real(
            "talloc_report_depth_cb");
    list found = {0};
    walk(at, 0, -1, collect, &found);
    return found;
}

static void meet(const void *at, int depth, int most, int is_reference, void *private)
{
    (void)depth, (void)most, (void)private;
    chunk *found = *find(at);
    if (found && !is_reference)
        found->seen = walks;
}

/* What was below a chunk has gone with it, but for what is still somewhere in the tree: a destructor has refused, or has
 * given it another parent. */
static void went(list found)
{
    void (*walk)(const void *, int, int, void (*)(const void *, int, int, int, void *), void *) =
        (void (*)(const void *, int, int, void (*)(const void *, int, int, int, void *), void *))real(
            "talloc_report_depth_cb");
    walks++;
    if (found.used)
        walk(NULL, 0, -1, meet, NULL); /* from the top */
    for (size_t i = 0; i < found.used; i++) {
        chunk *now = *find(found.all[i].at);
        if (now && now->serial == found.all[i].serial && now->seen != walks && gone(now->at))
            ended++;
    }
    free(found.all);
}

#define MAKER(name, parameters, arguments)                             \
    void *name parameters                                              \
    {                                                                  \
        static void *(*next)parameters;                                \
        if (!next)                                                     \
            next = (void *(*)parameters)real(#name);                   \
        void *got = next arguments;                                    \
        made(got);                                                     \
        return got;                                                    \
    }

MAKER(_talloc, (const void *parent, size_t size), (parent, size))
MAKER(talloc_named_const, (const void *parent, size_t size, const char *name), (parent, size, name))
MAKER(talloc_pool, (const void *parent, size_t size), (parent, size))
MAKER(_talloc_zero, (const void *parent, size_t size, const char *name), (parent, size, name))
MAKER(_talloc_array, (const void *parent, size_t size, unsigned count, const char *name),
      (parent, size, count, name))
MAKER(_talloc_memdup, (const void *parent, const void *what, size_t size, const char *name),
      (parent, what, size, name))
MAKER(talloc_strdup, (const void *parent, const char *text), (parent, text))
MAKER(talloc_strndup, (const void *parent, const char *text, size_t size), (parent, text, size))
MAKER(talloc_vasprintf, (const void *parent, const char *format, va_list rest), (parent, format, rest))

void *_talloc_realloc(const void *parent, void *old, size_t size, const char *name)
{
    void *(*next)(const void *, void *, size_t, const char *) =
        (void *(*)(const void *, void *, size_t, const char *))real("_talloc_realloc");
    void *got = next(parent, old, size, name);
    if (!old) {
        made(got);
    } else if (got && got != old) {
        moved++;
        if (gone(old)) {
            made(got);
            opened--;
        }
    }
    return got;
}

int _talloc_free(void *at, const char *where)
{
    int (*next)(void *, const char *) = (int (*)(void *, const char *))real("_talloc_free");
    if (!at)
        return next(at, where);
    list found = below(at);
    chunk *own = *find(at);
    unsigned long serial = own ? own->serial : 0;
    int status = next(at, where);
    if (status != 0) {
        refused++;
        free(found.all);
        return status;
    }
    own = *find(at);
    if (own && own->serial == serial && gone(at))
        closed++;
    went(found);
    return status;
}

int talloc_unlink(const void *parent, void *at)
{
    int (*next)(const void *, void *) = (int (*)(const void *, void *))real("talloc_unlink");
    if (!at)
        return next(parent, at);
    list found = below(at);
    size_t (*references)(const void *) = (size_t (*)(const void *))real("talloc_reference_count");
    bool ends = references(at) == 0;
    int status = next(parent, at);
    if (status == 0 && ends) {
        if (gone(at))
            closed++;
        went(found);
    } else {
        free(found.all);
    }
    return status;
}

void talloc_free_children(void *at)
{
    void (*next)(void *) = (void (*)(void *))real("talloc_free_children");
    if (!at)
        return;
    list found = below(at);
    next(at);
    resets++;
    went(found);
}

void *_talloc_steal_loc(const void *parent, const void *at, const char *where)
{
    void *(*next)(const void *, const void *, const char *) =
        (void *(*)(const void *, const void *, const char *))real("_talloc_steal_loc");
    void *got = next(parent, at, where);
    if (got)
        reparented++;
    return got;
}

void talloc_set_name_const(const void *at, const char *name)
{
    void (*next)(const void *, const char *) =
        (void (*)(const void *, const char *))real("talloc_set_name_const");
    next(at, name);
    named++;
}

/* Chunks without a parent get one, so that there is a top from which all are found. */
__attribute__((constructor)) static void begin(void)
{
    ((void (*)(void))real("talloc_enable_null_tracking_no_autofree"))();
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("TALLOC_COUNTS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) {
        fprintf(stderr, "talloc_counts: TALLOC_COUNTS names no file that can be written\n");
        abort();
    }
    fprintf(file,
            "{\"opened\":%lu,\"closed\":%lu,\"resets\":%lu,\"ended_with_parent\":%lu,\"open_now\":%lu,"
            "\"moved\":%lu,\"reparented\":%lu,\"named\":%lu,\"refused\":%lu}\n",
            opened, closed, resets, ended, open_now, moved, reparented, named, refused);
    fclose(file);
}
