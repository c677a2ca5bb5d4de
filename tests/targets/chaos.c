/* cflags: -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -fno-shrink-wrap */
/* Threads that share granules, and know all the same what happens: allocs, frees and reallocs of a granule run
 * side by side (under its lock as readers), its close, reset and next open run alone (as writer). Objects go from
 * thread to thread; their ids are addresses that the next alloc is given at once (`fifo`: last), and granules' ids
 * come back at once, or after `cycle` others (`jump`: in any order), while objects of their earlier lives are live.
 *
 * `mode`: drain; lazy (no opens: a granule's first object opens it); bulk (closes and resets free the members);
 * counted (objects without ids: what a close finds cannot be told from what an earlier life has left).
 * `keep`: in bulk, members are freed by closes and resets only.
 * `rounds` of `threads` threads that each do `events` things; `children` processes do the same beside this one.
 */
#include "truth.h"
#include <pthread.h>
#include <sys/wait.h>

#define IDS (1 << 20)
#define CELLS 8192
#define PLACES 4096
#define HOLD 64
#define EXCHANGE 64

struct cell {
    struct cell *next; /* while it is free */
    u64 size;
    u64 busy; /* a free is refused */
    u32 id, life;
};

struct heap {
    u32 live[IDS]; /* offset 0: objects live in the present life of an id */
    u32 life[IDS];
    pthread_mutex_t lock;
    struct cell *free, *last;
    u64 fifo; /* cells wait for their turn, instead of being used again at once */
};

static struct cell *pop(struct heap *h) {
    pthread_mutex_lock(&h->lock);
    struct cell *c = h->free;
    if (c) h->free = c->next;
    pthread_mutex_unlock(&h->lock);
    return c;
}

static void push(struct heap *h, struct cell *c) {
    pthread_mutex_lock(&h->lock);
    if (h->fifo && h->free) {
        c->next = NULL;
        h->last = h->last->next = c;
    } else {
        if (!h->free) h->last = c;
        c->next = h->free;
        h->free = c;
    }
    pthread_mutex_unlock(&h->lock);
}

static void next_life(struct heap *h, u64 id) {
    h->life[id]++;
    h->live[id] = 0;
}

PROBED void heap_open(struct heap *h, u64 id, u64 bytes) {
    __asm__ volatile("" : : "r"(bytes) : "memory");
    next_life(h, id);
}

/* `members`: what a bulk close frees. */
PROBED void heap_close(struct heap *h, u64 id, struct cell **members, u64 count) {
    __asm__ volatile("" : : "r"(id) : "memory");
    for (u64 i = 0; i < count; i++) push(h, members[i]);
}

PROBED void heap_reset(struct heap *h, u64 id, struct cell **members, u64 count) {
    for (u64 i = 0; i < count; i++) push(h, members[i]);
    next_life(h, id);
}

PROBED struct cell *heap_alloc(struct heap *h, u64 id, u64 size) {
    struct cell *c = pop(h);
    if (!c) return NULL;
    c->size = size;
    c->busy = 0;
    c->id = (u32)id;
    c->life = h->life[id];
    __atomic_fetch_add(&h->live[id], 1, __ATOMIC_RELAXED);
    return c;
}

PROBED bool heap_free(struct heap *h, struct cell *c, u64 id) {
    if (c->busy) return false;
    if (c->life == h->life[id]) __atomic_fetch_sub(&h->live[id], 1, __ATOMIC_RELAXED);
    push(h, c);
    return true;
}

/* Moves where the size is odd; fails where it is above 4096. */
PROBED struct cell *heap_realloc(struct heap *h, struct cell *c, u64 size) {
    if (size > 4096) return NULL;
    if (size % 2) {
        struct cell *moved = pop(h);
        if (!moved) return NULL;
        *moved = *c;
        push(h, c);
        c = moved;
    }
    c->size = size;
    return c;
}

/* ---- the driver ---- */

enum mode { DRAINS, LAZY, BULKS, COUNTED };

/* One life of a granule. */
struct life {
    u64 live, live_bytes; /* atomic */
    u64 used, pinned;
    struct cell **members;
    u64 count, room; /* under the thread lock below */
    pthread_mutex_t lock;
};

struct place {
    pthread_rwlock_t lock;
    u64 id, turn;
    struct life *life;
};

struct held {
    struct cell *cell;
    struct place *place;
    struct life *life;
};

static struct heap heap;
static struct cell cells[CELLS];
static struct place places[PLACES];
static struct held *exchange[EXCHANGE];
static struct truth sums;
static pthread_mutex_t sums_lock = PTHREAD_MUTEX_INITIALIZER;
static enum mode mode;
static u64 place_count, cycle, jump, keep, hold_count, events, bytes_each, seed;

static u64 next(u64 *state) {
    u64 z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static struct life *new_life(void) {
    struct life *l = calloc(1, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

static void member_add(struct life *l, struct cell *c) {
    pthread_mutex_lock(&l->lock);
    if (l->count == l->room) {
        l->room = l->room ? 2 * l->room : 16;
        l->members = realloc(l->members, l->room * sizeof *l->members);
    }
    l->members[l->count++] = c;
    pthread_mutex_unlock(&l->lock);
}

static void member_remove(struct life *l, struct cell *c) {
    pthread_mutex_lock(&l->lock);
    for (u64 i = 0; i < l->count; i++)
        if (l->members[i] == c) {
            l->members[i] = l->members[--l->count];
            break;
        }
    pthread_mutex_unlock(&l->lock);
}

static void opened(struct truth *t, struct life *l) {
    l->used = 1;
    t->opened++;
    t->open_now++;
}

static void open_place(struct truth *t, struct place *p) {
    p->life = new_life();
    if (mode == LAZY) return;
    heap_open(&heap, p->id, bytes_each);
    opened(t, p->life);
}

/* What a boundary finds; as writer. */
static void judge(struct truth *t, struct life *l) {
    t->closed++;
    t->open_now--;
    if (mode == BULKS) {
        t->bulk_freed += l->live;
        t->freed_bytes += l->live_bytes;
        l->live = l->live_bytes = 0;
    } else if (l->live == 0) {
        t->drainable++;
    } else {
        t->pinned++;
        t->pinned_objects += l->live;
        t->retained++;
        t->retained_bytes += bytes_each;
        l->pinned = 1;
    }
}

static void turn_over(struct truth *t, struct place *p, u64 random) {
    pthread_rwlock_wrlock(&p->lock);
    struct life *old = p->life;
    u64 count = mode == BULKS ? old->count : 0;
    if (mode != LAZY && random % 4 == 0) {
        heap_reset(&heap, p->id, old->members, count);
        t->resets++;
        if (mode == BULKS) {
            t->bulk_freed += old->live;
            t->freed_bytes += old->live_bytes;
        } else {
            judge(t, old);
            t->opened++;
            t->open_now++;
        }
        p->life = new_life();
    } else {
        heap_close(&heap, p->id, old->members, count);
        if (mode == LAZY) {
            next_life(&heap, p->id);
            if (!old->used) opened(t, old);
        }
        judge(t, old);
        p->turn = jump ? (random >> 4) % cycle : (p->turn + 1) % cycle;
        p->id = (u64)(p - places) + place_count * p->turn;
        open_place(t, p);
    }
    pthread_rwlock_unlock(&p->lock);
}

static void gone(struct truth *t, struct life *l, u64 size) {
    __atomic_fetch_sub(&l->live_bytes, size, __ATOMIC_RELAXED);
    if (__atomic_sub_fetch(&l->live, 1, __ATOMIC_ACQ_REL) == 0 && l->pinned) {
        t->late_drained++;
        t->retained--;
        t->retained_bytes -= bytes_each;
    }
}

static struct held *take(struct truth *t, struct place *p, u64 size) {
    struct held *h = NULL;
    pthread_rwlock_rdlock(&p->lock);
    struct life *l = p->life;
    struct cell *c = heap_alloc(&heap, p->id, size);
    if (c) {
        h = calloc(1, sizeof *h);
        *h = (struct held){c, p, l};
        t->allocated++;
        t->allocated_bytes += size;
        __atomic_fetch_add(&l->live_bytes, size, __ATOMIC_RELAXED);
        __atomic_fetch_add(&l->live, 1, __ATOMIC_ACQ_REL);
        if (mode == LAZY && !__atomic_exchange_n(&l->used, 1, __ATOMIC_ACQ_REL)) opened(t, l);
        if (mode == BULKS) member_add(l, c);
    }
    pthread_rwlock_unlock(&p->lock);
    return h;
}

static void give(struct truth *t, struct held *h, u64 random) {
    struct place *p = h->place;
    pthread_rwlock_rdlock(&p->lock);
    if (mode != BULKS || (p->life == h->life && !keep)) {
        u64 size = h->cell->size;
        if (random % 4 == 0 && mode != COUNTED) {
            h->cell->busy = 1;
            if (heap_free(&heap, h->cell, h->cell->id)) abort();
            h->cell->busy = 0;
        }
        if (mode == BULKS) member_remove(h->life, h->cell);
        if (!heap_free(&heap, h->cell, h->cell->id)) abort();
        t->freed++;
        t->freed_bytes += size;
        gone(t, h->life, size);
    }
    pthread_rwlock_unlock(&p->lock);
    free(h);
}

static void resize(struct truth *t, struct held *h, u64 random) {
    static const u64 far = 5000;
    struct place *p = h->place;
    pthread_rwlock_rdlock(&p->lock);
    if (mode != COUNTED && (mode != BULKS || p->life == h->life)) {
        u64 old = h->cell->size, size = random % 8 == 0 ? far : 1 + (random >> 8) % 1000;
        if (mode == BULKS) member_remove(h->life, h->cell);
        struct cell *c = heap_realloc(&heap, h->cell, size);
        if (c && c != h->cell) { /* a free and an alloc in the same granule */
            t->allocated++;
            t->freed++;
            t->allocated_bytes += size;
            t->freed_bytes += old;
        } else if (c) {
            t->allocated_bytes += size > old ? size - old : 0;
            t->freed_bytes += size < old ? old - size : 0;
        }
        if (c) {
            __atomic_fetch_add(&h->life->live_bytes, size - old, __ATOMIC_RELAXED);
            h->cell = c;
        }
        if (mode == BULKS) member_add(h->life, h->cell);
    }
    pthread_rwlock_unlock(&p->lock);
}

static void add_up(const struct truth *mine) {
    pthread_mutex_lock(&sums_lock);
    u64 *to = &sums.opened;
    const u64 *from = &mine->opened;
    for (; to <= &sums.pinned_objects; to++, from++) *to += *from;
    pthread_mutex_unlock(&sums_lock);
}

static void *run(void *argument) {
    struct truth mine = {0};
    u64 state = (u64)(uintptr_t)argument;
    struct held *held[HOLD] = {0};
    for (u64 n = 0; n < events; n++) {
        u64 random = next(&state), more = next(&state);
        struct held **at = &held[more % hold_count];
        struct place *p = &places[(random >> 8) % place_count];
        switch (random % 16) {
        case 0: case 1:
            turn_over(&mine, p, more >> 16);
            break;
        case 2: /* hands an object to another thread, and gets one of its */
            *at = __atomic_exchange_n(&exchange[(more >> 16) % EXCHANGE % (2 * hold_count)], *at, __ATOMIC_ACQ_REL);
            break;
        case 3:
            if (*at) resize(&mine, *at, more >> 16);
            break;
        default:
            if (*at) {
                struct held *h = *at;
                *at = NULL;
                give(&mine, h, more >> 16);
            } else {
                *at = take(&mine, p, 16 + (more >> 32) % 64);
            }
        }
    }
    for (u64 i = 0; i < HOLD; i++)
        if (held[i]) give(&mine, held[i], 3);
    add_up(&mine);
    return NULL;
}

static void work(void) {
    u64 threads = option("threads", 4), rounds = option("rounds", 4), state = seed;
    struct truth mine = {0};
    pthread_t *ids = calloc(threads, sizeof *ids);
    for (u64 i = 0; i < place_count; i++) {
        pthread_rwlock_init(&places[i].lock, NULL);
        places[i].id = i;
        open_place(&mine, &places[i]);
    }
    for (u64 r = 0; r < rounds; r++) {
        for (u64 i = 0; i < threads; i++)
            pthread_create(&ids[i], NULL, run, (void *)(uintptr_t)next(&state));
        for (u64 i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    }
    for (u64 i = 0; i < EXCHANGE; i++)
        if (exchange[i]) give(&mine, exchange[i], 3);
    add_up(&mine);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    static const char *const names[] = {"drain", "lazy", "bulk", "counted"};
    const char *name = option_text("mode", "drain");
    for (unsigned i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) mode = (enum mode)i;
    place_count = option("places", 32);
    cycle = option("cycle", 1);
    jump = option("jump", 0);
    keep = option("keep", 0);
    heap.fifo = option("fifo", 0);
    hold_count = option("hold", 6);
    events = option("events", 20000);
    bytes_each = mode == LAZY ? 0 : option("bytes", 4096);
    seed = option("seed", 1);
    u64 children = option("children", 0);
    if (place_count > PLACES || hold_count > HOLD || place_count * cycle > IDS) return 7;
    sums.instance = &heap;
    sums.kind = mode == BULKS ? BULK : DRAIN;
    sums.omit = NO_PEAK | (mode == COUNTED ? NO_VERDICTS | NO_RETENTION : 0);
    sums.bytes_known = bytes_each != 0;
    sums.pins_known = mode == DRAINS || mode == LAZY;
    if (option("boundary", 0)) sums.omit |= NO_OBJECTS | NO_RETENTION;
    pthread_mutex_init(&heap.lock, NULL);
    for (u64 i = 0; i < CELLS; i++) push(&heap, &cells[i]);
    ready();
    for (u64 i = 0; i < children; i++)
        if (fork() == 0) {
            truth_role = "child";
            seed = seed * 31 + i + 1;
            work();
            truth_print_single(&sums);
            _exit(0);
        }
    work();
    for (u64 i = 0; i < children; i++) {
        int status;
        if (wait(&status) < 0 || status != 0) return 8;
    }
    truth_print_single(&sums);
    return 0;
}
