/* Threads that allocate and free without end, each with a count of what it holds: the truth for a census of a process
 * that is frozen at work. A count is right while its `busy` is 0; who reads it has stopped the process.
 *
 * Prints the address of the counts, waits for a line, works, and ends with the next line.
 */
#include "truth.h"
#include <malloc.h>
#include <pthread.h>

enum { THREADS = 2, SLOTS = 2048, BALLAST = 20000, SPIN = 2000 };

static struct {
    volatile u64 busy, objects, bytes, rounds;
} counts[THREADS];
static pthread_barrier_t begun, go;
static void *slots[THREADS][SLOTS], *ballast[BALLAST];
static volatile bool over;

static void *worker(void *number) {
    u64 own = (u64)(uintptr_t)number;
    u32 seed = (u32)own + 1;
    /* The thread's arena and cache are there from here on. */
    free(malloc(24));
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&go);
    while (!over) {
        seed = seed * 1103515245 + 12345;
        void **slot = &slots[own][(seed >> 16) % SLOTS];
        __atomic_store_n(&counts[own].busy, 1, __ATOMIC_SEQ_CST);
        if (*slot) {
            counts[own].objects--;
            counts[own].bytes -= malloc_usable_size(*slot) + 8;
            free(*slot);
            *slot = NULL;
        } else {
            *slot = malloc(16 + (seed >> 8) % 3000);
            if (!*slot) abort();
            counts[own].objects++;
            counts[own].bytes += malloc_usable_size(*slot) + 8;
        }
        __atomic_store_n(&counts[own].busy, 0, __ATOMIC_SEQ_CST);
        for (volatile u32 spin = 0; spin < SPIN; spin++) {}
        counts[own].rounds++;
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    char line[16];
    /* So that a reading takes long enough to be met. */
    for (u32 i = 0; i < BALLAST; i++) ballast[i] = memset(malloc(600), 1, 600);
    pthread_barrier_init(&begun, NULL, THREADS + 1);
    pthread_barrier_init(&go, NULL, THREADS + 1);
    for (u64 i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, worker, (void *)(uintptr_t)i)) abort();
    }
    pthread_barrier_wait(&begun);
    printf("READY %d %p\n", THREADS, (void *)counts);
    fflush(stdout);
    if (read(0, line, sizeof line) <= 0) return 1;
    pthread_barrier_wait(&go);
    printf("WORKS\n");
    fflush(stdout);
    if (read(0, line, sizeof line) < 0) return 1;
    over = true;
    for (u64 i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return ballast[0] == NULL;
}
