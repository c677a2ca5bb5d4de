/* cflags: -fno-omit-frame-pointer -fpatchable-function-entry=1 */
/* What probing costs the target: it measures its own CPU time. See docs/performance.md.
 *
 * Says `READY <pid>`. For each line on stdin it works for `ms` milliseconds and says how much it did:
 * `SAMPLE <objects> <granules> <CPU ns of all threads>`; it ends with its stdin. Between batches it sleeps.
 *
 * The probed functions begin with a 1-byte nop, which the kernel emulates as it does the usual `push`; built with
 * -fcf-protection=full as well (`cost_endbr`) they begin with `endbr64`, which it single-steps.
 *
 * Built with -DBY_NUMBER (`cost_entry`) it calls the functions of paths.h instead, whose objects are numbers that are
 * known at entry: profiles/paths_entry.toml.
 *
 * usage: cost [objects=N per granule] [ms=N] [threads=N] [hold=1: keep a granule open, only alloc and free]
 *             [shared=1: threads alloc in one granule, not each in its own; with hold=1]
 *             [depth=N: work so many calls deep] [only=alloc: CPU time of allocs alone]
 */
#include "arena.h"
#include "paths.h"
#include <pthread.h>
#include <time.h>

enum { MEMBERS = 4096, THREADS = 64, IDS_EACH = 64 };

#ifdef BY_NUMBER
typedef u64 member;
#else
typedef struct object *member;
#endif

struct worker {
    u64 first_id, objects, granules, cpu, alloc_cpu;
    member members[MEMBERS];
    u64 next;
};

static struct worker workers[THREADS];
static u64 objects, milliseconds, threads, hold, shared, depth;
static bool only_allocs;
static pthread_barrier_t barrier;

static u64 now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

#ifdef BY_NUMBER
static inline void begin(u64 id) { path_open(id, 4096); }
static inline void end(u64 id) { path_close(id); }
static inline member take(struct worker *w, u64 id) { return path_alloc(id, w->first_id << 40 | ++w->next, 64); }
static inline void give(member m) { path_free(m); }
#else
static struct arena arena;
static inline void begin(u64 id) { arena_open(&arena, id, 4096); }
static inline void end(u64 id) { arena_close(&arena, id); }
static inline member take(struct worker *w, u64 id) {
    (void)w;
    return arena_alloc(&arena, id, 64);
}
static inline void give(member m) { arena_free(&arena, m); }
#endif

static void fill_and_empty(struct worker *w, u64 id) {
    u64 before = only_allocs ? now_ns(CLOCK_THREAD_CPUTIME_ID) : 0;
    for (u64 i = 0; i < objects; i++) w->members[i] = take(w, id);
    if (only_allocs) w->alloc_cpu += now_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    for (u64 i = 0; i < objects; i++) give(w->members[i]);
}

/* Functions that call one another: as many return addresses as a call path of a real program has. */
typedef void level(struct worker *, u64, u64);
static level *const levels[16];
static void descend(struct worker *w, u64 id, u64 more) {
    if (more == 0) fill_and_empty(w, id);
    else levels[more % 16](w, id, more);
}
#define LEVEL(n) \
    __attribute__((noinline, noipa)) static void level_##n(struct worker *w, u64 id, u64 more) { \
        descend(w, id, more - 1); \
        __asm__ volatile("" : : : "memory"); \
    }
LEVEL(0) LEVEL(1) LEVEL(2) LEVEL(3) LEVEL(4) LEVEL(5) LEVEL(6) LEVEL(7)
LEVEL(8) LEVEL(9) LEVEL(10) LEVEL(11) LEVEL(12) LEVEL(13) LEVEL(14) LEVEL(15)
static level *const levels[16] = {level_0, level_1, level_2,  level_3,  level_4,  level_5,  level_6,  level_7,
                                  level_8, level_9, level_10, level_11, level_12, level_13, level_14, level_15};

static void batch(struct worker *w) {
    /* Reading the clock must not count where a granule has few objects. */
    u64 repeat = 1 + 64 / (objects + 1), id = 0;
    u64 start = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
    w->objects = w->granules = w->alloc_cpu = 0;
    do {
        for (u64 i = 0; i < repeat; i++) {
            u64 granule = hold ? (shared ? workers[0].first_id : w->first_id) : w->first_id + id++ % IDS_EACH;
            if (!hold) begin(granule);
            descend(w, granule, depth);
            if (!hold) end(granule);
        }
        w->objects += repeat * objects;
        w->granules += repeat;
    } while (now_ns(CLOCK_MONOTONIC) - start < milliseconds * 1000000);
    w->cpu = only_allocs ? w->alloc_cpu : now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
}

static void *run(void *worker) {
    for (;;) {
        pthread_barrier_wait(&barrier);
        batch(worker);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    objects = option("objects", 1000), milliseconds = option("ms", 100);
    threads = option("threads", 1), hold = option("hold", 0), shared = option("shared", 0);
    depth = option("depth", 0), only_allocs = !strcmp(option_text("only", ""), "alloc");
    if (objects > MEMBERS || threads == 0 || threads > THREADS) return 2;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (u64 i = 0; i < threads; i++) {
        pthread_t thread;
        workers[i].first_id = 1 + i * IDS_EACH;
        if (pthread_create(&thread, NULL, run, &workers[i])) return 3;
    }
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        u64 sum[3] = {0};
        if (hold)
            for (u64 i = 0; i < (shared ? 1 : threads); i++) begin(workers[i].first_id);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        if (hold)
            for (u64 i = 0; i < (shared ? 1 : threads); i++) end(workers[i].first_id);
        for (u64 i = 0; i < threads; i++)
            sum[0] += workers[i].objects, sum[1] += workers[i].granules, sum[2] += workers[i].cpu;
        printf("SAMPLE %llu %llu %llu\n", (unsigned long long)sum[0], (unsigned long long)sum[1],
               (unsigned long long)sum[2]);
        fflush(stdout);
    }
    return 0;
}
