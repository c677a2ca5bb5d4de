/* Memory that grows in known ways. `mode` says which; the truth is one line of JSON.
 *
 * touch: `mb` MiB of fresh anonymous memory are touched, with transparent huge pages or (`thp=0`) without.
 * heap:  the end of the heap is moved by `mb` MiB, and half of as much moved back and again.
 * maps:  regions are mapped at two places in the code, some unmapped, some of these partly, one moved.
 * slabs: slabs of a page are opened, used and closed; of `share` in 10,000 an object stays.
 * fork:  a child touches `child` MiB, the parent `mb`.
 * exec:  touches `mb` MiB, then executes itself with mode=touch and `child` MiB.
 * creep: pages are touched, `rate` per second, from SIGUSR1 to SIGUSR2 (then it says `AT rest`), until a line comes: each
 *        is a slab of which an object stays.
 * thrash: `mb` MiB of a file are read through a mapping, again and again, until a line comes.
 * sparse: one page is touched in each of `count` regions of 2 MiB.
 * read:  `mb` MiB are locked, and as many read from /dev/zero into fresh memory: the kernel touches all of them.
 * storm: touches pages and gives them back, until `faults` have been touched: seven of eight are read, which is a fault
 *        that brings nothing (the page of zeros), and one written.
 */
#include "truth.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define PAGE 4096ull
#define HUGE (2ull << 20)
#define MIB (1ull << 20)

static void fail(const char *what) {
    fprintf(stderr, "grow: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* Resident memory in bytes, counted by a walk over the page tables. */
static u64 resident(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    u64 kib = 0;
    if (!file) fail("smaps_rollup");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Rss: %lu kB", &kib) == 1) break;
    fclose(file);
    return kib * 1024;
}

static u64 minor_faults(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (u64)use.ru_minflt;
}

static char *fresh(u64 bytes) {
    char *at = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    return (char *)(((uintptr_t)at + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
}

PROBED void touch_pages(char *at, u64 bytes) {
    for (u64 offset = 0; offset < bytes; offset += PAGE) ((volatile char *)at)[offset] = 1;
}

static void touch(u64 bytes, bool huge) {
    char *at = fresh(bytes);
    if (huge) madvise(at, bytes, MADV_HUGEPAGE);
    u64 faults = minor_faults(), before = resident();
    touch_pages(at, bytes);
    u64 after = resident();
    printf("{\"truth\":1,\"pid\":%d,\"rss\":%ld,\"faults\":%lu,\"bytes\":%lu}\n", getpid(),
           (long)(after - before), minor_faults() - faults, bytes);
}

PROBED void grow_heap(intptr_t by) {
    if (sbrk(by) == (void *)-1) fail("sbrk");
}

static void heap(u64 bytes) {
    for (u64 done = 0; done < bytes; done += MIB) {
        grow_heap((intptr_t)MIB);
        grow_heap(-(intptr_t)(MIB / 2));
        grow_heap((intptr_t)(MIB / 2));
    }
    printf("{\"truth\":1,\"heap\":%lu}\n", bytes);
}

static char *map(u64 bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}
PROBED char *map_small(void) {
    char *at = map(4 * PAGE);
    __asm__ volatile("" : : "r"(at) : "memory");
    return at;
}
PROBED char *map_large(void) {
    char *at = map(16 * PAGE);
    __asm__ volatile("" : : "r"(at) : "memory");
    return at;
}
PROBED char *map_move(char *at) {
    at = mremap(at, 16 * PAGE, 20 * PAGE, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) fail("mremap");
    return at;
}

static void maps(u64 count) {
    char **all = calloc(count, sizeof *all);
    u64 small = 0, large = 0, moved = 0;
    for (u64 i = 0; i < count; i++) {
        all[i] = i % 2 ? map_large() : map_small();
        *(i % 2 ? &large : &small) += i % 2 ? 16 * PAGE : 4 * PAGE;
    }
    /* Six of ten are unmapped: a third of these in whole, a third their first page, a third one in the middle. */
    for (u64 i = 0; i < count; i++) {
        if (i % 10 >= 6) continue;
        u64 size = (i % 2 ? 16 : 4) * PAGE;
        u64 from = i % 3 == 2 ? PAGE : 0, bytes = i % 3 == 0 ? size : PAGE;
        if (munmap(all[i] + from, bytes)) fail("munmap");
        *(i % 2 ? &large : &small) -= bytes;
    }
    for (u64 i = 9; i < count; i += 100) {
        all[i] = map_move(all[i]);
        moved += 4 * PAGE;
    }
    /* What fails changes nothing. */
    if (munmap(all[9] + 1, PAGE) == 0 || mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        fail("it should have failed");
    printf("{\"truth\":1,\"small\":%lu,\"large\":%lu,\"moved\":%lu}\n", small, large, moved);
}

/* ---- slabs of a page: the granule is the page ---- */

PROBED void slab_open(char *slab) { __asm__ volatile("" : : "r"(slab) : "memory"); }
PROBED void slab_close(char *slab) { __asm__ volatile("" : : "r"(slab) : "memory"); }
PROBED void slab_take(char *slab, u64 size) { ((volatile char *)slab)[size] = 1; }
PROBED void slab_give(char *slab) { __asm__ volatile("" : : "r"(slab) : "memory"); }

static void slabs(u64 count, u64 share) {
    char *arena = fresh(count * PAGE), **free_list = calloc(count, sizeof *free_list);
    u64 next = 0, free_count = 0, pinned = 0;
    madvise(arena, count * PAGE, MADV_NOHUGEPAGE);
    for (u64 n = 0; n < count; n++) {
        char *slab = free_count ? free_list[--free_count] : arena + PAGE * next++;
        slab_open(slab);
        slab_take(slab, 64);
        bool stays = chance(share);
        if (!stays) slab_give(slab);
        slab_close(slab);
        if (stays)
            pinned++;
        else
            free_list[free_count++] = slab;
    }
    printf("{\"truth\":1,\"pinned_slabs\":%lu,\"used_slabs\":%lu}\n", pinned, next);
}

static volatile sig_atomic_t creeping;

static void on(int signal) { creeping = signal == SIGUSR1; }

PROBED void creep(char *slab) {
    slab_open(slab);
    slab_take(slab, 64);
    slab_close(slab);
    __asm__ volatile("" : : : "memory");
}

/* In steps of ten milliseconds: a slow machine touches less, which is told. */
static void creeps(u64 rate) {
    const u64 room = 1ull << 30;
    char *at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || madvise(at, room, MADV_NOHUGEPAGE)) fail("mmap");
    struct pollfd in = {.fd = 0, .events = POLLIN};
    u64 touched = 0;
    bool moving = false;
    while (poll(&in, 1, 10) <= 0) {
        for (u64 i = 0; creeping && i < rate / 100 && touched < room / PAGE; i++) creep(at + PAGE * touched++);
        if (moving && !creeping) {
            printf("AT rest\n");
            fflush(stdout);
        }
        moving = creeping;
    }
    printf("{\"truth\":1,\"touched\":%llu}\n", touched * PAGE);
}

PROBED u64 storm(u64 faults) {
    /* Few enough that what is given back stays with the CPU: more of them cost up to twice as much each. */
    const u64 pages = 512;
    char *at = fresh(pages * PAGE);
    u64 writes = 0;
    madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
    for (u64 done = 0; done < faults;) {
        u64 some = faults - done < pages ? faults - done : pages;
        for (u64 i = 0; i < some; i++) {
            volatile char *page = (volatile char *)at + i * PAGE;
            if (i % 8 == 0) {
                *page = 1;
                writes++;
            } else {
                (void)*page;
            }
        }
        if (madvise(at, pages * PAGE, MADV_DONTNEED)) fail("madvise");
        done += some;
    }
    return writes;
}

PROBED void read_pages(int file, char *at, u64 bytes) {
    if (read(file, at, bytes) != (ssize_t)bytes) fail("read");
}

/* No page of these is touched by the program itself. */
static void by_kernel(u64 bytes) {
    char *at = fresh(2 * bytes);
    int file = open("/dev/zero", O_RDONLY);
    if (mlock(&file, sizeof file)) fail("mlock");
    /* Between these two calls no page is touched, so that what is locked is known to be no fault's. */
    madvise(at, 2 * bytes, MADV_NOHUGEPAGE);
    if (mlock(at, bytes)) fail("mlock");
    read_pages(file, at + bytes, bytes);
    printf("{\"truth\":1,\"bytes\":%lu}\n", bytes);
}

PROBED void sparse(u64 count) {
    char *at = mmap(NULL, count * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || madvise(at, count * HUGE, MADV_NOHUGEPAGE)) fail("mmap");
    for (u64 i = 0; i < count; i++) ((volatile char *)at)[i * HUGE] = 1;
    printf("{\"truth\":1,\"faults\":%lu}\n", count);
}

/* The file is on a disk: in a control group that may keep less of it, each round waits for memory. */
static void thrash(u64 bytes) {
    static char page[PAGE];
    int file = open(".", O_TMPFILE | O_RDWR, 0600);
    for (u64 at = 0; at < bytes; at += PAGE)
        if (write(file, page, PAGE) != (ssize_t)PAGE) fail("write");
    if (fsync(file)) fail("fsync");
    char *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) fail("mmap");
    struct pollfd in = {.fd = 0, .events = POLLIN};
    u64 rounds = 0;
    for (; poll(&in, 1, 0) <= 0; rounds++)
        for (u64 offset = 0; offset < bytes; offset += PAGE) (void)((volatile char *)at)[offset];
    printf("{\"truth\":1,\"rounds\":%lu}\n", rounds);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    const char *mode = option_text("mode", "touch");
    u64 mb = option("mb", 1), child = option("child", 1);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    signal(SIGUSR1, on);
    signal(SIGUSR2, on);
    if (!option("thp", 1)) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    ready();
    if (!strcmp(mode, "touch")) {
        touch(mb * MIB, option("thp", 1));
    } else if (!strcmp(mode, "heap")) {
        heap(mb * MIB);
    } else if (!strcmp(mode, "maps")) {
        maps(option("count", 1000));
    } else if (!strcmp(mode, "slabs")) {
        slabs(option("count", 4000), option("share", 0));
    } else if (!strcmp(mode, "creep")) {
        creeps(option("rate", 500));
    } else if (!strcmp(mode, "thrash")) {
        thrash(mb * MIB);
    } else if (!strcmp(mode, "sparse")) {
        sparse(option("count", 100));
    } else if (!strcmp(mode, "read")) {
        by_kernel(mb * MIB);
    } else if (!strcmp(mode, "storm")) {
        u64 faults = option("faults", 1000), writes = storm(faults);
        printf("{\"truth\":1,\"faults\":%lu,\"writes\":%lu}\n", faults, writes);
    } else if (!strcmp(mode, "fork")) {
        pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            touch(child * MIB, false);
            _exit(0);
        }
        waitpid(pid, NULL, 0);
        touch(mb * MIB, false);
    } else if (!strcmp(mode, "exec")) {
        touch(mb * MIB, false);
        char size[32];
        snprintf(size, sizeof size, "mb=%lu", child);
        setenv("DRAINPROF_GO", "1", 1);
        execl("/proc/self/exe", "grow", "mode=touch", "thp=0", size, (char *)NULL);
        fail("execl");
    }
    return 0;
}
