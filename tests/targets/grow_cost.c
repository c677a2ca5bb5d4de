/* cflags: -fno-omit-frame-pointer */
/* What watching growth costs the program: it measures its own CPU time. See docs/performance.md.
 *
 * Says `READY <pid>`. For each line on stdin it works for about `ms` milliseconds and says how much it did:
 * `SAMPLE <operations> 0 <CPU ns of them>`; it ends with its stdin. Between batches it sleeps.
 *
 * With frame pointers, so that tools that follow these see true call paths too.
 *
 * usage: grow_cost [what=faults: pages are touched for the first time
 *                   what=maps: pairs of mmap and munmap; what=heap: calls of brk]
 *                  [ms=N] [depth=N: work so many calls deep]
 */
#include "truth.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#define PAGE 4096ull
enum { PAGES = 4096, CALLS = 4096 };

static u64 milliseconds, operations, cpu;
static char *region;
static void (*work)(void);

static u64 now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    _exit(1);
}

static void count(u64 began, u64 number) {
    cpu += now_ns(CLOCK_THREAD_CPUTIME_ID) - began;
    operations += number;
}

/* What gives the pages back is not counted: neither the call nor its time. */
static void faults(void) {
    u64 began = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (u64 i = 0; i < PAGES; i++) ((volatile char *)region)[i * PAGE] = 1;
    count(began, PAGES);
    if (madvise(region, PAGES * PAGE, MADV_DONTNEED)) fail("madvise");
}

static void maps(void) {
    u64 began = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (u64 i = 0; i < CALLS; i++) {
        void *at = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || munmap(at, 16 * PAGE)) fail("mmap");
    }
    count(began, CALLS);
}

/* The end of the heap goes to and fro; malloc is not used meanwhile. */
static void heap(void) {
    u64 began = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (u64 i = 0; i < CALLS / 2; i++)
        if (brk(region + PAGE) || brk(region)) fail("brk");
    count(began, CALLS);
}

__attribute__((noinline, noipa)) static void descend(u64 more) {
    if (more == 0) work();
    else descend(more - 1);
    __asm__ volatile("" : : : "memory");
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    const char *what = option_text("what", "faults");
    u64 depth = option("depth", 0);
    milliseconds = option("ms", 100);
    /* Buffers that malloc has no part in: the heap's end is ours. */
    static char heard[256], said[256];
    setvbuf(stdin, heard, _IOFBF, sizeof heard);
    setvbuf(stdout, said, _IOFBF, sizeof said);
    if (!strcmp(what, "faults")) {
        work = faults;
        region = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (region == MAP_FAILED || madvise(region, PAGES * PAGE, MADV_NOHUGEPAGE)) fail("mmap");
    } else if (!strcmp(what, "maps")) {
        work = maps;
    } else if (!strcmp(what, "heap")) {
        work = heap;
        region = sbrk(0);
    } else {
        return 2;
    }
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        u64 start = now_ns(CLOCK_MONOTONIC);
        operations = cpu = 0;
        do descend(depth);
        while (now_ns(CLOCK_MONOTONIC) - start < milliseconds * 1000000);
        printf("SAMPLE %llu 0 %llu\n", (unsigned long long)operations, (unsigned long long)cpu);
        fflush(stdout);
    }
    return 0;
}
