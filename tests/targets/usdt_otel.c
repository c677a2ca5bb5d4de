/* A heap with a sampler in front of it, by the contract that OpenTelemetry's profiler expects of programs: of all allocations
 * those at which a counter of bytes runs out are told by `otel_memory:alloc(pointer, size, weight)`, and their frees by
 * `otel_memory:free(pointer)`; nothing is sampled while nobody listens. The weight is what a sample stands for in bytes.
 *
 * The truth is that of the sampled objects; the granules are the 2 MiB regions that they lie in, each from its first
 * one to its last. Those that weigh more than a region lie in none: `apart`.
 */
#define USDT_SEMAPHORES
#include "truth.h"
#include "usdt.h"
#include <sys/mman.h>

USDT_SEMAPHORE(otel_memory, alloc);
USDT_SEMAPHORE(otel_memory, free);

#define REGION ((u64)2 << 20)
enum { REGIONS = 64, OBJECTS = 20000, INTERVAL = 16384 };

struct object {
    u64 size, weight; /* weight 0: not sampled */
    struct gen *gen;
};

static struct truth t = {.kind = SLAB_HEAP};
static char *space;
static u64 used, left = INTERVAL;
static struct gen *gens[REGIONS];
static u64 apart, apart_bytes;

/* A sampled object comes into its region, and is the first of it perhaps. */
static void enter(struct object *o) {
    static struct gen none; /* counts what is in no region */
    o->gen = &none;
    if (o->weight > REGION) {
        apart++;
        apart_bytes += o->weight;
    } else {
        struct gen **gen = &gens[((uintptr_t)o - (uintptr_t)space) / REGION];
        if (!*gen) *gen = truth_from_start ? truth_open(&t, NULL, 0) : truth_lazy(&t, 0);
        o->gen = *gen;
    }
    truth_alloc(&t, o->gen, o->weight);
}

/* It goes, and its region ends with it if it was the last. */
static void leave(struct object *o) {
    truth_free(&t, o->gen, o->weight);
    if (o->weight > REGION) {
        apart--;
        apart_bytes -= o->weight;
    } else if (!o->gen->live) {
        truth_close(&t, o->gen);
        /* Older objects that were not sampled in our sight may be there. */
        if (!truth_from_start) t.unknown++;
        gens[((uintptr_t)o - (uintptr_t)space) / REGION] = NULL;
    }
}

static void more(void) {
    printf(",\"apart\":{\"objects\":%llu,\"bytes\":%llu}", (unsigned long long)apart, (unsigned long long)apart_bytes);
}

static void *sampled_malloc(u64 size) {
    struct object *o = (struct object *)(space + used);
    used += (size + sizeof *o + 15) & ~(u64)15;
    if (used > REGIONS * REGION) abort();
    o->size = size;
    o->weight = 0;
    if (!USDT_ENABLED(otel_memory, alloc)) return o;
    if (size < left) {
        left -= size;
        return o;
    }
    u64 samples = 1 + (size - left) / INTERVAL;
    left = INTERVAL - (size - left) % INTERVAL;
    o->weight = samples * INTERVAL;
    DTRACE_PROBE3(otel_memory, alloc, (void *)o, o->size, o->weight);
    enter(o);
    return o;
}

static void sampled_free(void *pointer) {
    struct object *o = pointer;
    if (!o->weight) return;
    if (USDT_ENABLED(otel_memory, free)) DTRACE_PROBE1(otel_memory, free, pointer);
    leave(o);
}

static u64 any_size(bool large) {
    if (large || chance(5)) return REGION + random_below(2 * REGION);
    return 1 + (chance(100) ? random_below(65536) : random_below(2048));
}

int main(int argc, char **argv) {
    static void *objects[OBJECTS];
    truth_begin(argc, argv);
    char *mapped = mmap(NULL, (REGIONS + 1) * REGION, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) abort();
    space = (char *)(((uintptr_t)mapped + REGION - 1) & ~(uintptr_t)(REGION - 1));
    ready();
    for (int n = 0; n < OBJECTS; n++) {
        objects[n] = sampled_malloc(any_size(n == OBJECTS - 1)); /* the last one stays */
        if (n >= 1000 && n % 50) sampled_free(objects[n - 1000]);
    }
    truth_more = more;
    truth_print_single(&t);
    return 0;
}
