/* cflags: -fno-omit-frame-pointer */
/* `threads` threads that are all alive when each opens a granule with one object, and `mappings` executable mappings
 * of this program's file. Every other thread frees its object behind the close.
 */
#include "arena.h"
#include <pthread.h>

static struct arena arena;
static struct truth truth = {.instance = &arena};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all_alive, all_open, all_closed;

static void *run(void *number) {
    u64 id = 1 + (u64)number;
    pthread_barrier_wait(&all_alive);
    pthread_barrier_wait(&all_alive);
    pthread_mutex_lock(&mutex);
    struct gen *gen = do_open(&truth, &arena, id, 4096, NULL);
    struct object *object = do_alloc(&truth, &arena, id, gen, 64);
    pthread_mutex_unlock(&mutex);
    pthread_barrier_wait(&all_open);
    pthread_mutex_lock(&mutex);
    if (id % 2) do_free(&truth, &arena, object);
    do_close(&truth, &arena, id, gen);
    pthread_mutex_unlock(&mutex);
    pthread_barrier_wait(&all_closed);
    if (id % 2) return NULL;
    pthread_mutex_lock(&mutex);
    do_free(&truth, &arena, object);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void map(u64 mappings) {
    int file = open("/proc/self/exe", O_RDONLY);
    for (u64 n = 0; n < mappings; n++)
        if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) abort();
    close(file);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 threads = option("threads", 4);
    map(option("mappings", 0));
    pthread_t *ids = calloc(threads, sizeof *ids);
    pthread_barrier_init(&all_alive, NULL, threads + 1);
    pthread_barrier_init(&all_open, NULL, threads);
    pthread_barrier_init(&all_closed, NULL, threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (u64 n = 0; n < threads; n++)
        if (pthread_create(&ids[n], &small, run, (void *)n)) abort();
    pthread_barrier_wait(&all_alive);
    ready();
    pthread_barrier_wait(&all_alive);
    for (u64 n = 0; n < threads; n++) pthread_join(ids[n], NULL);
    truth_print_single(&truth);
    return 0;
}
