/* cflags: -fno-omit-frame-pointer -fpatchable-function-entry=1 */
/* Many granules and many objects at once, as ids alone: no memory stands behind them, so that what grows is the
 * tracer's. Says `READY <pid>`; each line on stdin starts the next phase, which ends with
 * `SAMPLE <phase> <events> <CPU ns>`. After the last one it waits for another line, and frees and closes everything.
 *
 * usage: scale [granules=N] [objects=N] [steady=N]
 */
#include "truth.h"
#include <time.h>

PROBED void scale_open(u64 granule) { __asm__ volatile("" : : "r"(granule) : "memory"); }
PROBED void scale_close(u64 granule) { __asm__ volatile("" : : "r"(granule) : "memory"); }
PROBED void scale_alloc(u64 granule, u64 object) { __asm__ volatile("" : : "r"(granule), "r"(object) : "memory"); }
PROBED void scale_free(u64 object) { __asm__ volatile("" : : "r"(object) : "memory"); }

static u64 cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static void wait_for_phase(void) {
    char line[64];
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

static void done(const char *phase, u64 events, u64 since) {
    printf("SAMPLE %s %llu %llu\n", phase, (unsigned long long)events, (unsigned long long)(cpu_ns() - since));
    fflush(stdout);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 granules = option("granules", 1000000), objects = option("objects", 10000000);
    u64 steady = option("steady", 200000);
    if (granules == 0 || steady > objects) return 2;
    printf("READY %d\n", (int)getpid());
    fflush(stdout);

    wait_for_phase();
    u64 since = cpu_ns();
    for (u64 i = 0; i < granules; i++) scale_open(i + 1);
    done("open", granules, since);

    wait_for_phase();
    since = cpu_ns();
    for (u64 i = 0; i < objects; i++) scale_alloc(i % granules + 1, i + 1);
    done("alloc", objects, since);

    wait_for_phase();
    since = cpu_ns();
    for (u64 i = 0; i < steady; i++) {
        scale_free(i + 1);
        scale_alloc(i % granules + 1, objects + i + 1);
    }
    done("steady", 2 * steady, since);

    wait_for_phase();
    since = cpu_ns();
    for (u64 i = steady; i < objects + steady; i++) scale_free(i + 1);
    done("free", objects, since);

    wait_for_phase();
    since = cpu_ns();
    for (u64 i = 0; i < granules; i++) scale_close(i + 1);
    done("close", granules, since);
    return 0;
}
