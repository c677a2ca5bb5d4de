/* A program whose resident memory has a known course: `mode` 0 leaks 100 KB/s, 1 is flat, 2 is a saw-tooth of 20 MB
 * every two seconds. It is looked at from outside, and ends when its stdin does. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { KB = 1000, RATE = 100 * KB, TOOTH = 20 * KB * KB, BASE = 30 * KB * KB, ROOM = 400 * KB * KB };

static double now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static char *reserve(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    /* Huge pages would make steps of 2 MiB of it. */
    madvise(at, bytes, MADV_NOHUGEPAGE);
    return at;
}

int main(int argc, char **argv) {
    int mode = argc > 1 ? atoi(argv[1]) : 0;
    char *memory = reserve(ROOM);
    memset(memory, 1, BASE);
    size_t touched = BASE;
    double begin = now();
    puts("READY");
    fflush(stdout);
    struct pollfd end = {.fd = 0, .events = POLLIN};
    /* The course follows the clock, not the number of steps: a slow machine makes coarser steps of the same slope. */
    while (poll(&end, 1, 20) == 0) {
        double seconds = now() - begin;
        size_t wanted = BASE;
        if (mode == 0) wanted += (size_t)(seconds * RATE);
        if (mode == 2) wanted += (size_t)((seconds / 2 - (double)(long)(seconds / 2)) * TOOTH);
        if (wanted > ROOM) wanted = ROOM;
        if (wanted > touched) {
            memset(memory + touched, 1, wanted - touched);
        } else if (wanted < touched) {
            size_t from = (wanted + 4095) / 4096 * 4096;
            if (from < touched) madvise(memory + from, touched - from, MADV_DONTNEED);
        }
        touched = wanted;
    }
    return 0;
}
