/* Threads that share granules, as in chaos.c, and know of each call path what of it was live at closes.
 *
 * Allocs, frees and reallocs of a granule run side by side (under its lock as readers), its close and next open run
 * alone (as writer). Objects go from thread to thread, are freed late by whoever has them, are moved to another granule by
 * other call paths, and shrink where they are; frees are refused now and then. Ids of objects and granules are used again
 * at once (of granules after `cycle` others). Of every path some objects stay for ever: one in `stay` of those that are left at the end.
 *
 * In a first round nothing is closed: all call paths are met, and nothing pins.
 *
 * `threads` threads do `events` things each, over `places` granules, and have up to `hold` objects in hand. Granules are
 * closed less often by a factor of `rare`.
 */
#include "truth.h"
#include <pthread.h>

enum { PATHS = 14, MOVERS = 2, CELLS = 65536, PLACES = 64, HOLD = 64, EXCHANGE = 64, BYTES = 4096 };
#define FRAME __attribute__((noinline, noipa, used))
#define FOLLOWED __asm__ volatile("" : : : "memory")

struct cell {
    struct cell *next; /* while it is free */
    u64 size, busy;
};

struct heap {
    pthread_mutex_t lock;
    struct cell *free;
};

PROBED void heap_open(struct heap *h, u64 id, u64 bytes) {
    __asm__ volatile("" : : "r"(h), "r"(id), "r"(bytes) : "memory");
}

PROBED void heap_close(struct heap *h, u64 id) { __asm__ volatile("" : : "r"(h), "r"(id) : "memory"); }

PROBED struct cell *heap_alloc(struct heap *h, u64 id, u64 size) {
    __asm__ volatile("" : : "r"(id) : "memory");
    pthread_mutex_lock(&h->lock);
    struct cell *c = h->free;
    if (c) h->free = c->next;
    pthread_mutex_unlock(&h->lock);
    if (c) c->size = size, c->busy = 0;
    return c;
}

PROBED bool heap_free(struct heap *h, struct cell *c) {
    if (c->busy) return false;
    pthread_mutex_lock(&h->lock);
    c->next = h->free;
    h->free = c;
    pthread_mutex_unlock(&h->lock);
    return true;
}

/* To another cell if it grows; else it stays. NULL: no room. */
PROBED struct cell *heap_realloc(struct heap *h, struct cell *c, u64 id, u64 size) {
    __asm__ volatile("" : : "r"(id) : "memory");
    if (size <= c->size) {
        c->size = size;
        return c;
    }
    pthread_mutex_lock(&h->lock);
    struct cell *to = h->free;
    if (to) {
        h->free = to->next;
        to->size = size;
        to->busy = 0;
        c->next = h->free;
        h->free = c;
    }
    pthread_mutex_unlock(&h->lock);
    return to;
}

/* ---- what is known ---- */

struct life {
    u64 live[PATHS], pinned; /* `live`: atomic */
    u64 all;
    struct life *next;
};

struct place {
    pthread_rwlock_t lock;
    u64 number, turn, id;
    struct life *life;
};

struct held {
    struct cell *cell;
    struct place *place;
    struct life *life;
    u64 path, id;
};

struct sums {
    struct truth totals;
    u64 allocated[PATHS], bytes[PATHS], pins[PATHS], granules[PATHS];
};

static struct heap heap;
static struct cell cells[CELLS];
static struct place places[PLACES];
static struct held *exchange[EXCHANGE], *left[CELLS];
static struct life *lives;
static u64 left_count;
static struct sums all;
static pthread_mutex_t sums_lock = PTHREAD_MUTEX_INITIALIZER;
static u64 place_count, cycle, hold_count, events, seed, stay, rare;
static bool warming; /* nothing is closed and nothing stays, so nothing pins */

static u64 next(u64 *state) {
    u64 z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* All granules are opened at one place: a path is one site. */
FRAME static void open_place(struct sums *t, struct place *p) {
    struct life *l = calloc(1, sizeof *l);
    do l->next = __atomic_load_n(&lives, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&lives, &l->next, l, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    p->life = l;
    p->id = p->number + place_count * p->turn;
    heap_open(&heap, p->id, BYTES);
    t->totals.opened++;
    t->totals.open_now++;
}

static void turn_over(struct sums *t, struct place *p) {
    pthread_rwlock_wrlock(&p->lock);
    struct life *l = p->life;
    heap_close(&heap, p->id);
    t->totals.closed++;
    t->totals.open_now--;
    if (l->all == 0) {
        t->totals.drainable++;
    } else {
        l->pinned = 1;
        t->totals.pinned++;
        t->totals.pinned_objects += l->all;
        t->totals.retained++;
        t->totals.retained_bytes += BYTES;
        for (u64 i = 0; i < PATHS; i++) {
            t->pins[i] += l->live[i];
            t->granules[i] += l->live[i] != 0;
        }
    }
    p->turn = (p->turn + 1) % cycle;
    open_place(t, p);
    pthread_rwlock_unlock(&p->lock);
}

static void came(struct sums *t, struct held *h, struct cell *c, struct place *p, u64 path) {
    *h = (struct held){c, p, p->life, path, p->id};
    t->totals.allocated++;
    t->totals.allocated_bytes += c->size;
    t->allocated[path]++;
    t->bytes[path] += c->size;
    __atomic_fetch_add(&h->life->live[path], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&h->life->all, 1, __ATOMIC_ACQ_REL);
}

static void went(struct sums *t, struct held *h, u64 size) {
    t->totals.freed++;
    t->totals.freed_bytes += size;
    __atomic_fetch_sub(&h->life->live[h->path], 1, __ATOMIC_RELAXED);
    if (__atomic_sub_fetch(&h->life->all, 1, __ATOMIC_ACQ_REL) == 0 && h->life->pinned) {
        t->totals.late_drained++;
        t->totals.retained--;
        t->totals.retained_bytes -= BYTES;
    }
}

/* ---- call paths ---- */

FRAME static struct cell *make(u64 id, u64 size) {
    struct cell *c = heap_alloc(&heap, id, size);
    FOLLOWED;
    return c;
}

/* Frames of different sizes, so that nothing goes by where they stand. */
#define MAKER(i) \
    FRAME static struct cell *maker_##i(u64 id, u64 size) { \
        volatile u64 room[1 + 3 * i]; \
        room[3 * i] = size; \
        struct cell *c = make(id, room[3 * i]); \
        FOLLOWED; \
        return c; \
    }
#define MOVER(i) \
    FRAME static struct cell *mover_##i(struct cell *old, u64 id, u64 size) { \
        struct cell *c = heap_realloc(&heap, old, id, size); \
        FOLLOWED; \
        return c; \
    }
MAKER(0) MAKER(1) MAKER(2) MAKER(3) MAKER(4) MAKER(5)
MAKER(6) MAKER(7) MAKER(8) MAKER(9) MAKER(10) MAKER(11)
MOVER(0) MOVER(1)

static struct cell *(*const makers[])(u64, u64) = {maker_0, maker_1, maker_2, maker_3, maker_4,  maker_5,
                                                   maker_6, maker_7, maker_8, maker_9, maker_10, maker_11};
static struct cell *(*const movers[])(struct cell *, u64, u64) = {mover_0, mover_1};
_Static_assert(sizeof makers / sizeof *makers + MOVERS == PATHS, "every path has its function");

/* ---- the driver ---- */

FRAME static struct held *take(struct sums *t, struct place *p, u64 random) {
    struct held *h = NULL;
    u64 path = random % (PATHS - MOVERS);
    pthread_rwlock_rdlock(&p->lock);
    struct cell *c = makers[path](p->id, 16 + (random >> 8) % 64);
    if (c) came(t, h = calloc(1, sizeof *h), c, p, path);
    pthread_rwlock_unlock(&p->lock);
    return h;
}

static void give(struct sums *t, struct held *h, u64 random) {
    pthread_rwlock_rdlock(&h->place->lock);
    u64 size = h->cell->size;
    if (random % 8 == 0) {
        h->cell->busy = 1;
        if (heap_free(&heap, h->cell)) abort();
        h->cell->busy = 0;
    }
    if (!heap_free(&heap, h->cell)) abort();
    went(t, h, size);
    pthread_rwlock_unlock(&h->place->lock);
    free(h);
}

static void shrink(struct sums *t, struct held *h) {
    pthread_rwlock_rdlock(&h->place->lock);
    u64 size = h->cell->size;
    if (movers[0](h->cell, h->id, size / 2 + 1) != h->cell) abort();
    t->totals.freed_bytes += size - h->cell->size;
    pthread_rwlock_unlock(&h->place->lock);
}

FRAME static void move(struct sums *t, struct held *h, struct place *to, u64 random) {
    struct place *from = h->place;
    if (to == from) return;
    struct place *first = from < to ? from : to, *second = from < to ? to : from;
    u64 number = random % MOVERS, size = h->cell->size;
    pthread_rwlock_rdlock(&first->lock);
    pthread_rwlock_rdlock(&second->lock);
    struct cell *c = movers[number](h->cell, to->id, size + 1);
    if (c) {
        went(t, h, size);
        came(t, h, c, to, PATHS - MOVERS + number);
    }
    pthread_rwlock_unlock(&second->lock);
    pthread_rwlock_unlock(&first->lock);
}

static void add_up(const struct sums *mine) {
    pthread_mutex_lock(&sums_lock);
    u64 *to = &all.totals.opened;
    const u64 *from = &mine->totals.opened;
    for (; to <= &all.totals.pinned_objects; to++, from++) *to += *from;
    for (u64 i = 0; i < PATHS; i++) {
        all.allocated[i] += mine->allocated[i];
        all.bytes[i] += mine->bytes[i];
        all.pins[i] += mine->pins[i];
        all.granules[i] += mine->granules[i];
    }
    pthread_mutex_unlock(&sums_lock);
}

static void leave(struct sums *t, struct held *h, u64 random) {
    if (warming || !stay || random % stay) give(t, h, random);
    else left[__atomic_fetch_add(&left_count, 1, __ATOMIC_RELAXED)] = h;
}

FRAME static void *run(void *argument) {
    struct sums mine = {0};
    u64 state = (u64)(uintptr_t)argument;
    struct held *held[HOLD] = {0};
    for (u64 n = 0; n < events; n++) {
        u64 random = next(&state), more = next(&state);
        struct held **at = &held[more % hold_count];
        struct place *p = &places[(random >> 8) % place_count];
        switch (random % 16) {
        case 0:
            if (!warming && (more >> 16) % rare == 0) turn_over(&mine, p);
            break;
        case 1: /* hands an object to another thread, and gets one of its */
            *at = __atomic_exchange_n(&exchange[(more >> 16) % EXCHANGE % hold_count], *at, __ATOMIC_ACQ_REL);
            break;
        case 2:
            if (*at) shrink(&mine, *at);
            break;
        case 3:
            if (*at) move(&mine, *at, p, more >> 16);
            break;
        default:
            if (*at) {
                struct held *h = *at;
                *at = NULL;
                give(&mine, h, more >> 16);
            } else {
                *at = take(&mine, p, more >> 16);
            }
        }
    }
    for (u64 i = 0; i < HOLD; i++)
        if (held[i]) leave(&mine, held[i], next(&state));
    add_up(&mine);
    return NULL;
}

static void print_paths(void) {
    printf(",\"paths\":[");
    for (u64 i = 0; i < PATHS; i++) {
        u64 live = 0, live_bytes = 0, late = 0, late_bytes = 0, retained = 0;
        for (u64 n = 0; n < left_count; n++) {
            if (left[n]->path != i) continue;
            live++, live_bytes += left[n]->cell->size;
            if (left[n]->life->pinned) late++, late_bytes += left[n]->cell->size;
        }
        for (const struct life *l = lives; l; l = l->next) retained += l->pinned && l->live[i];
        bool moves = i >= PATHS - MOVERS;
        printf("%s{\"name\":\"%llu\",\"chain\":\"%s%s_%llu < %s < run < *\",\"site\":{", i ? "," : "", (unsigned long long)i,
               moves ? "" : "make < ", moves ? "mover" : "maker", (unsigned long long)(moves ? i - PATHS + MOVERS : i), moves ? "move" : "take");
        truth_first = true;
        KEY("allocated", all.allocated[i]);
        KEY("allocated_bytes", all.bytes[i]);
        KEY("live", live);
        KEY("live_bytes", live_bytes);
        KEY("objects", all.pins[i]);
        KEY("objects_live", late);
        KEY("bytes_live", late_bytes);
        KEY("granules_pinned", all.granules[i]);
        KEY("granules_retained", retained);
        KEY("retained_bytes", retained * BYTES);
        printf(",\"path_end\":\"start\"}}");
    }
    printf("]");
}


static void begin(struct sums *t) {
    for (u64 i = 0; i < place_count; i++) {
        pthread_rwlock_init(&places[i].lock, NULL);
        places[i].number = i;
        open_place(t, &places[i]);
    }
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    place_count = option("places", 8);
    cycle = option("cycle", 1);
    hold_count = option("hold", 24);
    events = option("events", 20000);
    seed = option("seed", 1);
    stay = option("stay", 2);
    rare = option("rare", 1);
    u64 threads = option("threads", 4), rounds = option("rounds", 2), state = seed;
    if (place_count > PLACES || hold_count > HOLD) return 7;
    all.totals = (struct truth){.instance = &heap, .omit = NO_PEAK, .pins_known = true, .bytes_known = true};
    pthread_mutex_init(&heap.lock, NULL);
    for (u64 i = 0; i < CELLS; i++) {
        cells[i].next = heap.free;
        heap.free = &cells[i];
    }
    pthread_t *ids = calloc(threads, sizeof *ids);
    ready();
    struct sums mine = {0};
    begin(&mine);
    for (u64 r = 0; r <= rounds; r++) {
        warming = r == 0;
        for (u64 i = 0; i < threads; i++) pthread_create(&ids[i], NULL, run, (void *)(uintptr_t)next(&state));
        for (u64 i = 0; i < threads; i++) pthread_join(ids[i], NULL);
        for (u64 i = 0; i < EXCHANGE && warming; i++) {
            if (exchange[i]) give(&mine, exchange[i], 0);
            exchange[i] = NULL;
        }
        if (warming) stop_at("warm");
    }
    for (u64 i = 0; i < EXCHANGE; i++)
        if (exchange[i]) leave(&mine, exchange[i], next(&state));
    add_up(&mine);
    truth_more = print_paths;
    truth_print_single(&all.totals);
    return 0;
}
