/* Threads that each fill some of glibc's 64 MiB heaps, twice, and free it all; with pin=1 each keeps one small block from
 * the middle of the first round.
 *
 * What the heaps do is found without glibc's help: a heap begins with the first object at its address, and is over
 * when the kernel says that nothing is mapped there any longer. For that the threads work in turns. All of them live to
 * the end, so that each has an arena of its own; what ends with the threads is looked at behind their ends.
 *
 * mode=kinds: instead each thread goes through the ways in which an object can come, change and go, those that lead
 * into and out of the heaps among them, and main does the same outside of them.
 */
#include "truth.h"
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

#define HEAP ((uintptr_t)64 << 20)
enum { THREADS = 3, BLOCKS = 1600, HEAPS = 64, THREADS_AT_MOST = 64 };

/* By itself: what is allocated here would lie in the very heaps. */
static struct { uintptr_t base; struct gen gen; } heaps[HEAPS];
static struct truth truth = {.kind = SLAB_HEAP};
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all;
static u64 pin, rounds;
static void *kept[THREADS_AT_MOST];

/* Heaps at which nothing is mapped are over. */
static void look_again(void) {
    unsigned char resident;
    for (size_t i = 0; i < HEAPS; i++) {
        if (!heaps[i].base || mincore((void *)heaps[i].base, 1, &resident) == 0 || errno != ENOMEM) continue;
        truth_close(&truth, &heaps[i].gen);
        heaps[i].base = 0;
    }
}

static struct gen *heap_of(uintptr_t object) {
    uintptr_t base = object & ~(HEAP - 1);
    size_t empty = HEAPS;
    for (size_t i = 0; i < HEAPS; i++) {
        if (heaps[i].base == base) return &heaps[i].gen;
        if (!heaps[i].base) empty = i;
    }
    if (empty == HEAPS) abort();
    heaps[empty].base = base;
    heaps[empty].gen = (struct gen){.open = true};
    truth.opened++;
    truth_now_open(&truth);
    return &heaps[empty].gen;
}

static void *allocated(void *object, u64 size) {
    truth_alloc(&truth, heap_of((uintptr_t)object), size);
    return object;
}

/* The only one whose blocks stay. */
PROBED void *keep_one(void) { return allocated(malloc(24), 24); }

PROBED void fill(void **blocks, u64 size) {
    for (int i = 0; i < BLOCKS; i++) blocks[i] = allocated(malloc(size), size);
}

PROBED void drain(void **blocks, u64 size) {
    for (int i = 0; i < BLOCKS; i++) {
        truth_free(&truth, heap_of((uintptr_t)blocks[i]), size);
        free(blocks[i]);
        look_again();
    }
}

/* ---- mode=kinds ---- */

enum { LARGE = 1 << 20 }; /* a mapping of its own: above the threshold, which is made to stay where it is */
static __thread bool in_heaps;

static void *came(void *object, u64 size) {
    if (!object) abort();
    return in_heaps && size < LARGE ? allocated(object, size) : object;
}

static void goes(const void *object, u64 size) {
    if (in_heaps && size < LARGE) truth_free(&truth, heap_of((uintptr_t)object), size);
}

static void *changed(void *object, u64 from, u64 to) {
    if (object) goes(object, from);
    return came(realloc(object, to), to);
}

PROBED void kinds(void) {
    void *object = came(calloc(10, 100), 1000), *aligned;
    object = changed(object, 1000, 500);         /* in place */
    void *wall = came(malloc(40), 40);           /* so that what comes next has to move */
    object = changed(object, 500, 5000);
    object = changed(object, 5000, LARGE);       /* out of the heaps */
    object = changed(object, LARGE, 3 * LARGE);  /* a mapping that moves */
    object = realloc(object, 700);               /* and one that shrinks, and stays one */
    if (!object || realloc(object, 0)) abort();
    object = changed(NULL, 0, 700);
    goes(object, 700);
    if (realloc(object, 0)) abort();
    object = changed(NULL, 0, 600);
    goes(object, 600);
    object = came(reallocarray(object, 30, 40), 1200);
    goes(object, 1200);
    free(object);
    if (posix_memalign(&aligned, 256, 3000)) abort();
    goes(came(aligned, 3000), 3000);
    free(aligned);
    aligned = came(memalign(8, 90), 90);         /* no stricter than malloc, which does it */
    goes(aligned, 90);
    free(aligned);
    aligned = came(aligned_alloc(512, 1024), 1024);
    goes(aligned, 1024);
    free(aligned);
    char *text = came(strdup("a text"), 7);
    goes(text, 7);
    free(text);
    object = came(malloc(LARGE), LARGE);
    goes(object, LARGE);
    free(object);
    goes(wall, 40);
    free(wall);
    free(NULL);
    object = came(malloc(64), 64);               /* stays */
}

static void *every_kind(void *argument) {
    static __thread void *blocks[BLOCKS];
    (void)argument;
    pthread_mutex_lock(&turn);
    in_heaps = true;
    kinds();
    fill(blocks, 100000); /* so that heaps come to an end, too */
    drain(blocks, 100000);
    pthread_mutex_unlock(&turn);
    pthread_barrier_wait(&all);
    return NULL;
}

static void *worker(void *argument) {
    static __thread void *blocks[BLOCKS];
    size_t number = (size_t)argument;
    for (u64 round = 0; round < rounds; round++) {
        pthread_mutex_lock(&turn);
        fill(blocks, 100000);
        if (pin && round == 0) kept[number] = keep_one();
        drain(blocks, 100000);
        pthread_mutex_unlock(&turn);
    }
    pthread_barrier_wait(&all);
    return NULL;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 threads = option("threads", THREADS);
    pin = option("pin", 0);
    rounds = option("rounds", 2);
    bool by_kinds = !strcmp(option_text("mode", ""), "kinds");
    if (threads == 0 || threads > THREADS_AT_MOST) return 2;
    if (by_kinds && mallopt(M_MMAP_THRESHOLD, 128 << 10) != 1) return 3;
    pthread_t ids[THREADS_AT_MOST];
    pthread_barrier_init(&all, NULL, (unsigned)threads);
    ready();
    for (size_t i = 0; i < threads; i++) pthread_create(&ids[i], NULL, by_kinds ? every_kind : worker, (void *)i);
    if (by_kinds) kinds();
    for (size_t i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    look_again();
    /* Each thread frees its cache as it ends, which no call of malloc has made. (And what is in it: that can be told
     * only where the secret is known by which glibc knows it.) */
    truth_losses.unmatched_frees = threads;
    stop_at("end");
    truth_print_single(&truth);
    return 0;
}
