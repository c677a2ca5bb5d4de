/* cflags: -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -fno-shrink-wrap */
/* Threads that share granules, as in chaos.c, and know of each call path what of it was live at closes.
 *
 * Allocs, frees and moves of a granule run side by side (under its lock as readers), its close and next open run
 * alone (as writer). What an earlier life has left is freed without a lock, while the next one is opened and closed.
 * Objects go from thread to thread, are moved to another granule by other call paths, and shrink where they are; every
 * second call path goes through a wrapper; allocs, frees and moves are refused now and then. Ids of objects and granules
 * are used again at once (of granules after `cycle` others). Of every path some objects stay for ever: one in `stay` of
 * those that are left at the end.
 *
 * In a first round one thread meets all call paths, and closes nothing, so that nothing pins.
 *
 * `threads` threads do `events` things each, in all, over `places` granules and `own` of each thread's own (one thing in
 * `share` over the former, where there are both), and have up to `hold` objects in hand. `total` instead of `events`: of
 * all threads; `warm`: in the first round. Granules are closed less often by a factor of `rare`. `plain`: nothing is
 * refused or moved, so that probes at entry see all. `policy`: see policies.h. `boundary`: what a probe of opens and
 * closes knows.
 */
#include "cells.h"
#include "policies.h"

enum { MAKERS = 12, MOVERS = 2, CELLS = 65536, PLACES = 2048, HOLD = 64, EXCHANGE = 64, BYTES = 4096, BATCH = 16 };
_Static_assert(MAKERS + MOVERS == PATHS, "every path has its function");
#define FRAME __attribute__((noinline, noipa, used))

struct place {
    struct gate gate;
    u64 number, turn, id;
    struct life *life;
};

/* ---- what is known ---- */

struct sums {
    struct truth totals;
    u64 allocated[PATHS], bytes[PATHS], pins[PATHS], granules[PATHS];
};

struct worker {
    u64 number, state;
};

static struct heap heap;
static struct cell cells[CELLS];
static struct place places[PLACES];
static struct cell *exchange[EXCHANGE], *left[CELLS];
static struct life *lives;
static u64 left_count;
static struct sums all;
static pthread_mutex_t sums_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static u64 shared_count, own_count, share, place_count, cycle, hold_count, stay, rare, plain;
static long long to_do;
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
    heap.lives[p->id] = l;
    if (heap_open(&heap, p->id, BYTES) != p->id) abort();
    t->totals.opened++;
    t->totals.open_now++;
}

static void turn_over(struct sums *t, struct place *p) {
    gate_enter(&p->gate, true);
    struct life *l = p->life;
    heap_close(&heap, p->id);
    t->totals.closed++;
    t->totals.open_now--;
    if (l->all == 0) {
        t->totals.drainable++;
    } else {
        t->totals.pinned++;
        t->totals.pinned_objects += l->all;
        t->totals.retained++;
        t->totals.retained_bytes += BYTES;
        for (u64 i = 0; i < PATHS; i++) {
            t->pins[i] += l->live[i];
            t->granules[i] += l->live[i] != 0;
        }
        __atomic_store_n(&l->pinned, 1, __ATOMIC_RELEASE);
    }
    p->turn = (p->turn + 1) % cycle;
    open_place(t, p);
    gate_leave(&p->gate);
}

static void came(struct sums *t, struct cell *c, struct place *p, u64 path) {
    c->place = p;
    c->life = p->life;
    c->id = p->id;
    c->path = path;
    t->totals.allocated++;
    t->totals.allocated_bytes += c->size;
    t->allocated[path]++;
    t->bytes[path] += c->size;
    __atomic_fetch_add(&c->life->live[path], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->life->all, 1, __ATOMIC_ACQ_REL);
}

static void went(struct sums *t, const struct cell *was) {
    t->totals.freed++;
    t->totals.freed_bytes += was->size;
    __atomic_fetch_sub(&was->life->live[was->path], 1, __ATOMIC_RELAXED);
    if (__atomic_sub_fetch(&was->life->all, 1, __ATOMIC_ACQ_REL) == 0 && was->life->pinned) {
        t->totals.late_drained++;
        t->totals.retained--;
        t->totals.retained_bytes -= BYTES;
    }
}

/* ---- call paths ---- */

/* Frames of different sizes, so that nothing goes by where they stand. Every second one calls the wrapper. */
#define MAKER(i) \
    FRAME static u64 maker_##i(u64 id, u64 size, struct cell *given, struct cell **out) { \
        volatile u64 room[1 + 3 * i]; \
        room[3 * i] = size; \
        u64 done = (i % 2 ? heap_wrap : heap_alloc)(&heap, id, room[3 * i], given, out); \
        FOLLOWED; \
        return done; \
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

static u64 (*const makers[MAKERS])(u64, u64, struct cell *, struct cell **) = {
    maker_0, maker_1, maker_2, maker_3, maker_4, maker_5, maker_6, maker_7, maker_8, maker_9, maker_10, maker_11};
static struct cell *(*const movers[MOVERS])(struct cell *, u64, u64) = {mover_0, mover_1};

/* ---- the driver ---- */

FRAME static struct cell *take(struct sums *t, struct place *p, u64 random) {
    u64 path = random % MAKERS, size = 16 + (random >> 8) % 64;
    struct cell *given = pop(&heap), *c = NULL;
    if (!given) return NULL;
    if (!plain && (random >> 16) % 16 == 0) size = MOST + 1;
    gate_enter(&p->gate, false);
    if (makers[path](p->id, size, given, &c)) came(t, c, p, path);
    gate_leave(&p->gate);
    if (!c) push(&heap, given);
    return c;
}

static void give(struct sums *t, struct cell *c, u64 random) {
    u64 (*release)(struct heap *, struct cell *) = c->path % 2 ? heap_unwrap : heap_free;
    struct cell was = *c;
    bool is_late = __atomic_load_n(&was.life->pinned, __ATOMIC_ACQUIRE);
    if (!is_late) gate_enter(&was.place->gate, false);
    if (!plain && random % 8 == 0) {
        c->busy = 1;
        if (release(&heap, c)) abort();
        c->busy = 0;
    }
    if (!release(&heap, c)) abort();
    went(t, &was);
    if (!is_late) gate_leave(&was.place->gate);
}

static void shrink(struct sums *t, struct cell *c) {
    u64 size = c->size;
    if (movers[0](c, c->id, size / 2 + 1) != c) abort();
    t->totals.freed_bytes += size - c->size;
}

FRAME static struct cell *move(struct sums *t, struct cell *c, struct place *to, u64 random) {
    struct place *from = c->place;
    if (to == from) return c;
    struct place *first = from < to ? from : to, *second = from < to ? to : from;
    u64 number = random % MOVERS;
    struct cell was = *c;
    gate_enter(&first->gate, false);
    gate_enter(&second->gate, false);
    struct cell *moved = movers[number](c, to->id, was.size + 1);
    if (moved) {
        went(t, &was);
        came(t, moved, to, MAKERS + number);
    }
    gate_leave(&second->gate);
    gate_leave(&first->gate);
    return moved ? moved : c;
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

static void leave(struct sums *t, struct cell *c, u64 random) {
    if (warming || !stay || random % stay) give(t, c, random);
    else left[__atomic_fetch_add(&left_count, 1, __ATOMIC_RELAXED)] = c;
}

static struct place *pick(const struct worker *w, u64 random) {
    u64 own = own_count && (!shared_count || random % share);
    random >>= 8;
    return &places[own ? shared_count + w->number * own_count + random % own_count : random % shared_count];
}

FRAME static void step(struct sums *t, const struct worker *w, struct cell **held, u64 random, u64 more) {
    struct cell **at = &held[more % hold_count];
    struct place *p = pick(w, random >> 8);
    more >>= 16;
    switch (random % 16) {
    case 0:
        if (!warming && more % rare == 0) turn_over(t, p);
        break;
    case 1: /* hands an object to another thread, and gets one of its */
        *at = __atomic_exchange_n(&exchange[more % EXCHANGE % hold_count], *at, __ATOMIC_ACQ_REL);
        break;
    case 2:
        if (*at && !plain) shrink(t, *at);
        break;
    case 3:
        if (*at && !plain) *at = move(t, *at, p, more);
        break;
    default:
        if (*at) {
            struct cell *c = *at;
            *at = NULL;
            give(t, c, more);
        } else {
            *at = take(t, p, more);
        }
    }
}

FRAME static void *run(void *argument) {
    struct worker *w = argument;
    struct sums mine = {0};
    struct cell *held[HOLD] = {0};
    policy_take(w->number);
    pthread_barrier_wait(&barrier);
    struct place *own = &places[shared_count + w->number * own_count];
    for (u64 i = 0; i < own_count; i++)
        if (!own[i].life) open_place(&mine, &own[i]);
    for (u64 n = 0; n % BATCH || __atomic_fetch_sub(&to_do, BATCH, __ATOMIC_RELAXED) > 0; n++) {
        u64 random = next(&w->state), more = next(&w->state);
        step(&mine, w, held, random, more);
        policy_rest(n, random >> 40);
    }
    for (u64 i = 0; i < HOLD; i++)
        if (held[i]) leave(&mine, held[i], next(&w->state));
    add_up(&mine);
    return NULL;
}

static void print_paths(void) {
    printf(",\"paths\":[");
    for (u64 i = 0; i < PATHS; i++) {
        u64 live = 0, live_bytes = 0, late = 0, late_bytes = 0, retained = 0;
        for (u64 n = 0; n < left_count; n++) {
            if (left[n]->path != i) continue;
            live++, live_bytes += left[n]->size;
            if (left[n]->life->pinned) late++, late_bytes += left[n]->size;
        }
        for (const struct life *l = lives; l; l = l->next) retained += l->pinned && l->live[i];
        bool moves = i >= MAKERS;
        printf("%s{\"name\":\"%llu\",\"chain\":\"%s%s_%llu < %s < step < run < *\",\"site\":{", i ? "," : "",
               (unsigned long long)i, !moves && i % 2 ? "heap_wrap < " : "", moves ? "mover" : "maker",
               (unsigned long long)(moves ? i - MAKERS : i), moves ? "move" : "take");
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

static void begin(u64 threads) {
    for (u64 i = 0; i < place_count; i++) {
        gate_init(&places[i].gate);
        places[i].number = i;
    }
    pthread_mutex_init(&heap.lock, NULL);
    for (u64 i = 0; i < CELLS; i++) push(&heap, &cells[i]);
    policies_begin(threads);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 threads = option("threads", 4), rounds = option("rounds", 2), state = option("seed", 1);
    u64 total = option("total", threads * option("events", 20000)), warm = option("warm", total);
    shared_count = option("places", 8);
    own_count = option("own", 0);
    share = option("share", 2);
    place_count = shared_count + threads * own_count;
    cycle = option("cycle", 1);
    hold_count = option("hold", 24);
    stay = option("stay", 2);
    rare = option("rare", 1);
    plain = option("plain", 0);
    if (place_count == 0 || place_count > PLACES || place_count * cycle > IDS || hold_count > HOLD) return 7;
    all.totals = (struct truth){.instance = &heap, .omit = NO_PEAK, .pins_known = true, .bytes_known = true};
    if (option("boundary", 0)) all.totals.omit |= NO_OBJECTS | NO_RETENTION;
    begin(threads);
    pthread_t *ids = calloc(threads, sizeof *ids);
    struct worker *workers = calloc(threads, sizeof *workers);
    ready();
    struct sums mine = {0};
    for (u64 i = 0; i < shared_count; i++) open_place(&mine, &places[i]);
    for (u64 r = 0; r <= rounds; r++) {
        warming = r == 0;
        to_do = (long long)(warming ? warm : total);
        u64 count = warming ? 1 : threads;
        pthread_barrier_init(&barrier, NULL, (unsigned)count);
        for (u64 i = 0; i < count; i++) {
            workers[i] = (struct worker){i, next(&state)};
            pthread_create(&ids[i], NULL, run, &workers[i]);
        }
        for (u64 i = 0; i < count; i++) pthread_join(ids[i], NULL);
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
