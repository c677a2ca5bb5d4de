/* A heap with holes, for a census from outside: objects of 16 to 515 bytes in main and in threads, of which one in fifty
 * stays, and a few large ones. glibc's own numbers are printed at the handshake; then the target sleeps, works, or trims.
 *
 * Lines on stdin: `trim` calls malloc_trim(0) and prints by how much the resident memory fell; `work` lets a thread
 * allocate and free without end; `out` asks for the main heap to be swapped out; `grow` makes more holes and prints the numbers again; anything else ends it. Nothing is
 * allocated between the numbers and the sleep.
 */
/* cflags: -pthread */
#include "truth.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

enum { THREADS_AT_MOST = 64, LARGE = 5 };

static u64 objects = 200000, threads, grown;
static pthread_barrier_t all;
static void *large[LARGE];
static volatile bool works;

static long resident_kib(void) {
    char text[64];
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (!file || !fgets(text, sizeof text, file) || sscanf(text, "%*d %ld", &pages) != 1) abort();
    fclose(file);
    return pages * 4;
}

/* Holes: of so many objects one in so many is kept. */
static void **holes(u64 count, u64 one_in, u32 seed) {
    void **all_of_them = malloc(count * sizeof *all_of_them);
    if (!all_of_them) abort();
    for (u64 i = 0; i < count; i++) {
        seed = seed * 1103515245 + 12345;
        size_t size = 16 + (seed >> 16) % 500;
        all_of_them[i] = memset(malloc(size), 1, size);
    }
    for (u64 i = 0; i < count; i++) {
        if (i % one_in) free(all_of_them[i]);
    }
    return all_of_them;
}

static void *thread(void *seed) {
    void **kept = holes(objects / 10, 50, (u32)(uintptr_t)seed);
    pthread_barrier_wait(&all);
    for (;;) pause();
    return kept;
}

static void *worker(void *nothing) {
    void *ring[256] = {0};
    for (u32 i = 0; works; i++) {
        u32 at = i * 2654435761u >> 24;
        free(ring[at]);
        ring[at] = malloc(16 + i % 700);
    }
    return nothing;
}

/* What glibc says of itself. */
static void numbers(const char *word) {
    struct mallinfo2 info = mallinfo2();
    printf("%s {\"in_use\":%zu,\"free\":%zu,\"mapped\":%zu,\"arenas\":%llu}\n", word, info.uordblks, info.fordblks,
           info.hblkhd, (unsigned long long)threads + 1);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc > 1) objects = strtoull(argv[1], 0, 10);
    if (argc > 2) threads = strtoull(argv[2], 0, 10);
    if (threads > THREADS_AT_MOST) return 2;
    void **kept = holes(objects, 50, 1);
    pthread_t id;
    pthread_barrier_init(&all, NULL, (unsigned)threads + 1);
    for (u64 i = 0; i < threads; i++) {
        if (pthread_create(&id, NULL, thread, (void *)(uintptr_t)(i + 2))) abort();
    }
    pthread_barrier_wait(&all);
    for (int i = 0; i < LARGE; i++) large[i] = memset(malloc(300000 + 100000 * i), 1, 300000);
    /* stdio has its buffer from here on. */
    printf("BEGINS %d\n", getpid());
    fflush(stdout);
    numbers("READY");
    char line[16];
    for (;;) {
        ssize_t length = read(0, line, sizeof line);
        if (length <= 0) break;
        if (line[0] == 't') {
            works = false;
            resident_kib();
            long before = resident_kib();
            malloc_trim(0);
            printf("TRIMMED %ld\n", before - resident_kib());
        } else if (line[0] == 'o') {
            char *from = (char *)((uintptr_t)kept[0] & ~4095ul);
            if (madvise(from, (size_t)((char *)sbrk(0) - from) & ~4095ul, MADV_PAGEOUT)) abort();
            printf("OUT\n");
        } else if (line[0] == 'g') {
            /* What was freed is used again, so it takes more objects each time. */
            grown++;
            kept = holes(objects * (2 + grown), 5000, 3);
            numbers("GROWN");
        } else if (line[0] == 'w') {
            works = true;
            if (pthread_create(&id, NULL, worker, NULL)) abort();
            printf("WORKS\n");
        } else {
            break;
        }
        fflush(stdout);
    }
    return kept == NULL;
}
