/* Holes in a heap, whichever malloc the process has: glibc's, or that of a library that is preloaded. Of small objects
 * one in twenty stays, in main and in each further thread, beside large ones. The allocator's own numbers are printed as
 * one line of JSON; nothing is allocated after they are read.
 *
 * Usage: heap [THREADS [OBJECTS [full]]]. With `full`, main has eight times as many, and keeps them all, threads keep
 * nearly none, and none is large. A line `t` on stdin calls malloc_trim(0), and is answered; all else ends it.
 * Compiled with -DALONE (static, musl), it asks for no library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

enum { THREADS_AT_MOST = 64, KEPT = 20, FEW = 1000, LARGE = 12, SIZES = 4096 };

static size_t objects = 40000;
static unsigned threads = 1;
static bool full;
static pthread_barrier_t made;
static struct { void **kept; size_t count; } sets[THREADS_AT_MOST];
static struct { size_t size, objects; } sizes[SIZES];

/* Of so many objects one in KEPT stays; the array that leads to them is one more. */
static void fill(unsigned number) {
    bool keeps = full && !number;
    size_t all_objects = keeps ? 8 * objects : objects, every = keeps ? 1 : full ? FEW : KEPT;
    unsigned seed = 77 * number + 7;
    void **all = malloc(all_objects * sizeof *all);
    void **kept = malloc((all_objects / every + LARGE + 2) * sizeof *kept);
    size_t count = 0;
    if (!all || !kept) abort();
    for (size_t i = 0; i < all_objects; i++) {
        seed = seed * 1103515245u + 12345u;
        size_t size = 16 + (seed >> 8) % 1500;
        all[i] = memset(malloc(size), 1, size);
    }
    for (size_t i = 0; i < all_objects; i++) {
        if (i % every) free(all[i]);
        else kept[count++] = all[i];
    }
    free(all);
    for (size_t i = 0; i < LARGE && !full; i++) {
        size_t size = (140 << 10) + i * 70000;
        kept[count++] = memset(malloc(size), 2, size);
    }
    kept[count++] = kept;
    sets[number].kept = kept;
    sets[number].count = count;
}

static void *work(void *number) {
    fill((unsigned)(size_t)number);
    pthread_barrier_wait(&made);
    for (;;) pause();
    return NULL;
}

/* What the program holds, by the size of the block that it lies in. */
static void held(void) {
    size_t count = 0;
    for (unsigned i = 0; i < threads; i++) {
        for (size_t n = 0; n < sets[i].count; n++, count++) {
            size_t size = malloc_usable_size(sets[i].kept[n]), at = 0;
            while (at < SIZES - 1 && sizes[at].size && sizes[at].size != size) at++;
            sizes[at].size = size;
            sizes[at].objects++;
        }
    }
    printf(",\"held\":%zu,\"classes\":{", count);
    for (size_t at = 0; sizes[at].size; at++) {
        printf("%s\"%zu\":%zu", at ? "," : "", sizes[at].size, sizes[at].objects);
    }
    printf("}");
}

#ifndef ALONE
static int (*mallctl)(const char *, void *, size_t *, void *, size_t);

/* A number of either type; only its own length is taken. */
static size_t ask(const char *name) {
    size_t size = 0, length = sizeof size;
    if (!mallctl(name, &size, &length, NULL, 0)) return size;
    unsigned number = 0;
    length = sizeof number;
    return mallctl(name, &number, &length, NULL, 0) ? 0 : number;
}

/* jemalloc's table of one kind of sizes: those of `bin` with slabs, those of `lextent` with an extent each. */
static const char *jemalloc_sizes(const char *kind, size_t number, const char *count, const char *comma) {
    char name[64];
    for (size_t i = 0; i < number; i++) {
        snprintf(name, sizeof name, "arenas.%s.%zu.size", kind, i);
        size_t size = ask(name);
        /* 4096 stands for all arenas. */
        snprintf(name, sizeof name, "stats.arenas.4096.%ss.%zu.%s", kind, i, count);
        size_t now = ask(name);
        if (now) {
            printf("%s\"%zu\":%zu", comma, size, now);
            comma = ",";
        }
    }
    return comma;
}

static bool jemalloc(void) {
    mallctl = (int (*)(const char *, void *, size_t *, void *, size_t))dlsym(RTLD_DEFAULT, "mallctl");
    if (!mallctl) return false;
    const char *version = "";
    size_t length = sizeof version;
    unsigned long long epoch = 1;
    mallctl("version", &version, &length, NULL, 0);
    mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    printf("{\"library\":\"jemalloc\",\"version\":\"%.*s\",\"classes\":{", (int)strcspn(version, "-"), version);
    const char *comma = jemalloc_sizes("bin", ask("arenas.nbins"), "curregs", "");
    jemalloc_sizes("lextent", ask("arenas.nlextents"), "curlextents", comma);
    printf("},\"dirty\":%zu,\"allocated\":%zu", ask("stats.arenas.4096.pdirty") * 4096, ask("stats.allocated"));
    return true;
}

static bool mimalloc(void) {
    int (*version)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "mi_version");
    if (!version) return false;
    int now = version();
    /* 212 is 2.1.2; later versions have two digits for each part. */
    if (now < 10000) printf("{\"library\":\"mimalloc\",\"version\":\"%d.%d.%d\"", now / 100, now / 10 % 10, now % 10);
    else printf("{\"library\":\"mimalloc\",\"version\":\"%d.%d.%d\"", now / 10000, now / 100 % 100, now % 100);
    held();
    return true;
}

static bool tcmalloc(void) {
    const char *(*version)(int *, int *, const char **) =
        (const char *(*)(int *, int *, const char **))dlsym(RTLD_DEFAULT, "tc_version");
    int (*property)(const char *, size_t *) =
        (int (*)(const char *, size_t *))dlsym(RTLD_DEFAULT, "MallocExtension_GetNumericProperty");
    if (!version || !property) return false;
    int major = 0, minor = 0;
    const char *patch = "";
    version(&major, &minor, &patch);
    size_t allocated = 0, cached = 0, transfer = 0;
    property("generic.current_allocated_bytes", &allocated);
    property("tcmalloc.current_total_thread_cache_bytes", &cached);
    property("tcmalloc.transfer_cache_free_bytes", &transfer);
    printf("{\"library\":\"gperftools\",\"version\":\"%d.%d%s\"", major, minor, patch);
    printf(",\"allocated\":%zu,\"cached\":%zu,\"not_free\":%zu", allocated, cached, allocated + cached + transfer);
    held();
    return true;
}
#endif

static void glibc(void) {
#ifdef __GLIBC__
    struct mallinfo2 info = mallinfo2();
    printf("{\"library\":\"glibc\",\"version\":\"%s\",\"used\":%zu,\"free\":%zu", gnu_get_libc_version(),
           info.uordblks + info.hblkhd, info.fordblks);
    printf(",\"alone\":%zu,\"arenas\":%u", info.hblkhd, threads);
#else
    printf("{\"library\":\"musl\"");
#endif
    size_t count = 0;
    for (unsigned i = 0; i < threads; i++) count += sets[i].count;
    printf(",\"held\":%zu", count);
}

int main(int argc, char **argv) {
    static char out[1 << 16];
    char line[16];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    if (argc > 1) threads = (unsigned)atoi(argv[1]);
    if (argc > 2) objects = strtoull(argv[2], NULL, 10);
    full = argc > 3;
    if (threads < 1 || threads > THREADS_AT_MOST) return 2;
#ifdef __GLIBC__
    /* Else it grows with the first large object that is freed. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
#endif
    pthread_t id;
    pthread_barrier_init(&made, NULL, threads);
    for (unsigned i = 1; i < threads; i++) {
        if (pthread_create(&id, NULL, work, (void *)(size_t)i)) abort();
    }
    fill(0);
    pthread_barrier_wait(&made);
#ifndef ALONE
    if (!jemalloc() && !mimalloc() && !tcmalloc())
#endif
        glibc();
    printf(",\"pid\":%d}\n", (int)getpid());
    fflush(stdout);
    while (read(0, line, sizeof line) > 0 && line[0] == 't') {
#ifdef __GLIBC__
        malloc_trim(0);
#endif
        printf("{\"trimmed\":true}\n");
        fflush(stdout);
    }
    return 0;
}
