/* Pairs of malloc and free of the libc, as a busy program makes them: `window` objects of 16 to `size` bytes are
 * live, and each step replaces one of them, chosen at random.
 *
 * Says `READY <pid>`. For each line on stdin it works for `ms` milliseconds and says `SAMPLE <pairs> 0 <CPU ns>`; it
 * ends with its stdin. What it says costs no malloc.
 */
#include "truth.h"
#include <time.h>

enum { WINDOW_AT_MOST = 100000 };

static void *window[WINDOW_AT_MOST];

static u64 now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 live = option("window", 1000), size = option("size", 512), ms = option("ms", 100);
    if (live == 0 || live > WINDOW_AT_MOST || size <= 16) return 2;
    u64 state = 0x9e3779b97f4a7c15u;
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        u64 start = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_THREAD_CPUTIME_ID), pairs = 0;
        do {
            for (int i = 0; i < 64; i++, pairs++) {
                state ^= state << 13, state ^= state >> 7, state ^= state << 17;
                void **place = &window[(state >> 33) % live];
                free(*place);
                *place = malloc(16 + (state & 0xffffff) % (size - 16));
                /* The compiler must not see that nobody looks at it. */
                __asm__ volatile("" : : "r"(*place) : "memory");
            }
        } while (now_ns(CLOCK_MONOTONIC) - start < ms * 1000000);
        cpu = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
        printf("SAMPLE %llu 0 %llu\n", (unsigned long long)pairs, (unsigned long long)cpu);
        fflush(stdout);
    }
    return 0;
}
