/* cflags: -fno-omit-frame-pointer -fpatchable-function-entry=1 */
/* What probing costs the target: it measures itself, and says every 100 ms how much CPU time one object took, from
 * its allocation to its free, its share of the granule's open and close included. See docs/overhead.md.
 * The probed functions begin with a 1-byte nop, which the kernel emulates as it does the usual `push`; built
 * with -fcf-protection=full instead they begin with `endbr64`, which it single-steps.
 *
 * usage: cost [objects=N per granule] [seconds=N]
 */
#include "arena.h"
#include <time.h>

static struct arena arena;

static u64 now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 objects = option("objects", 1000), seconds = option("seconds", 60);
    static struct object *members[4096];
    if (objects == 0 || objects > 4096) return 2;
    ready();
    u64 id = 0, end = now_ns(CLOCK_MONOTONIC) + seconds * 1000000000;
    for (u64 start = now_ns(CLOCK_MONOTONIC); start < end;) {
        u64 done = 0, now = start, cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
        while (now - start < 100000000) {
            id = id % 1024 + 1;
            arena_open(&arena, id, 4096);
            for (u64 i = 0; i < objects; i++) members[i] = arena_alloc(&arena, id, 64);
            for (u64 i = 0; i < objects; i++) arena_free(&arena, members[i]);
            arena_close(&arena, id);
            done += objects;
            now = now_ns(CLOCK_MONOTONIC);
        }
        cpu = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
        printf("%.2f %.2f\n", (double)start / 1e9, (double)cpu / (double)done);
        fflush(stdout);
        start = now;
    }
    return 0;
}
