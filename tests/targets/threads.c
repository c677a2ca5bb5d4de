/* cflags: -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -fno-shrink-wrap */
/* Eight threads alloc, free, close and reopen shared granules without any order between them, `events`
 * events in all. What a close found is left to chance; sums are not. At the end everything is freed.
 */
#include "arena.h"
#include <pthread.h>

#define THREADS 8
#define GRANULES 64
#define HOLD 256

static struct arena arena;
static u64 shared[GRANULES]; /* the id that each place stands for now */
static u64 next_id;
static struct sums { u64 opened, closed, allocated, freed, allocated_bytes, freed_bytes; } sums[THREADS];
static u64 events_each;
static pthread_barrier_t barrier;

static u64 open_next(struct sums *mine) {
    u64 id = __atomic_add_fetch(&next_id, 1, __ATOMIC_RELAXED);
    arena_open(&arena, id, 4096);
    mine->opened++;
    return id;
}

static void *run(void *argument) {
    struct sums *mine = argument;
    u64 state = (u64)(mine - sums + 1) * 0x9e3779b97f4a7c15u, spent = 0;
    struct object *held[HOLD] = {0};
    pthread_barrier_wait(&barrier);
    while (spent < events_each) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        u64 place = state % GRANULES, slot = (state >> 20) % HOLD;
        if ((state >> 40) % 64 == 0) { /* a new granule takes the place, the old one is closed */
            u64 fresh = open_next(mine);
            u64 old = __atomic_exchange_n(&shared[place], fresh, __ATOMIC_ACQ_REL);
            arena_close(&arena, old);
            mine->closed++;
            spent += 2;
        } else if (held[slot]) {
            mine->freed_bytes += held[slot]->size;
            arena_free(&arena, held[slot]);
            held[slot] = NULL;
            mine->freed++;
            spent++;
        } else {
            u64 size = 16 + (state >> 50) % 64;
            held[slot] = arena_alloc(&arena, __atomic_load_n(&shared[place], __ATOMIC_ACQUIRE), size);
            mine->allocated++;
            mine->allocated_bytes += size;
            spent++;
        }
    }
    for (u64 i = 0; i < HOLD; i++)
        if (held[i]) {
            mine->freed_bytes += held[i]->size;
            arena_free(&arena, held[i]);
            mine->freed++;
        }
    return NULL;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    events_each = option("events", 1000000) / THREADS;
    struct truth t = {.instance = &arena, .omit = NO_VERDICTS | NO_PEAK | NO_RETENTION};
    pthread_t ids[THREADS];
    ready();
    for (u64 i = 0; i < GRANULES; i++) shared[i] = open_next(&sums[0]);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_create(&ids[i], NULL, run, &sums[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        t.opened += sums[i].opened;
        t.closed += sums[i].closed;
        t.allocated += sums[i].allocated;
        t.freed += sums[i].freed;
        t.allocated_bytes += sums[i].allocated_bytes;
        t.freed_bytes += sums[i].freed_bytes;
    }
    t.open_now = t.opened - t.closed;
    truth_print_single(&t);
    return 0;
}
