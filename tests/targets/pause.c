/* How long a program is stopped while it is attached to: a thread reads the clock as fast as it can and remembers the
 * longest time between two readings.
 *
 * Says `READY <pid>`. On stdin: `reset` forgets the longest pause and is answered with `RESET`; `read` is answered with
 * `PAUSE <ns>`. It ends with its stdin. Ten functions for a profile to probe stand beside the loop; nobody calls them,
 * so that what is measured is the attaching and not the hits.
 */
#include "truth.h"
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#define FUNCTION(n) PROBED u64 ten_##n(u64 granule, u64 object) { __asm__ volatile("# " #n); return granule + object + n; }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3) FUNCTION(4)
FUNCTION(5) FUNCTION(6) FUNCTION(7) FUNCTION(8) FUNCTION(9)

static u64 longest, resets;

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static void *look(void *unused) {
    u64 seen = 0, last = now_ns();
    for (;;) {
        u64 now = now_ns(), wanted = __atomic_load_n(&resets, __ATOMIC_ACQUIRE);
        if (wanted != seen) {
            __atomic_store_n(&longest, 0, __ATOMIC_RELEASE);
            __atomic_store_n(&resets, seen = 0, __ATOMIC_RELEASE);
        } else if (now - last > __atomic_load_n(&longest, __ATOMIC_RELAXED)) {
            __atomic_store_n(&longest, now - last, __ATOMIC_RELEASE);
        }
        last = now;
    }
    return unused;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    /* Other programs should not get in between; where that is not allowed, they do, and the undisturbed pause says so. */
    if (setpriority(PRIO_PROCESS, 0, -20)) fprintf(stderr, "pause: runs at its usual priority\n");
    pthread_t thread;
    if (pthread_create(&thread, NULL, look, NULL)) return 3;
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "reset\n")) {
            __atomic_store_n(&resets, 1, __ATOMIC_RELEASE);
            while (__atomic_load_n(&resets, __ATOMIC_ACQUIRE)) {}
            printf("RESET\n");
        } else {
            printf("PAUSE %llu\n", (unsigned long long)__atomic_load_n(&longest, __ATOMIC_ACQUIRE));
        }
        fflush(stdout);
    }
    return 0;
}
