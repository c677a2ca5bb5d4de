/* A ring of 16 epochs: open without an id argument (read from memory: current + 1, modulo 16), object
 * ids that are handles and come back through a pointer, frees by handle alone, failed allocs and
 * rejected frees that return false, epoch 0 never opened, ids reused while the earlier life is pinned.
 * Live counts stand in memory twice: as a number per epoch and as a bit map per epoch.
 * With -DDEMO its fields are where the built-in profile `epoch-demo` has them.
 */
#include "truth.h"

#define EPOCHS 16
#define SLOTS 64 /* objects per epoch and life */

struct epoch {
    u32 live;
    u32 life;
};

struct ring {
#ifdef DEMO
    u64 head[8];
#endif
    struct epoch epochs[EPOCHS]; /* offset 0; 0x40 in the demonstration */
    u64 bitmap[EPOCHS];          /* offset 0x80 */
#ifdef DEMO
    u64 filled[360];
#endif
    u32 current; /* offset 0x100; 0xc80 in the demonstration */
    u32 reserved;
};

#ifdef DEMO
_Static_assert(__builtin_offsetof(struct ring, epochs) == 0x40, "named in the profile");
_Static_assert(__builtin_offsetof(struct ring, current) == 0xc80, "named in the profile");
#else
_Static_assert(__builtin_offsetof(struct ring, bitmap) == 0x80, "named in the profile");
_Static_assert(__builtin_offsetof(struct ring, current) == 0x100, "named in the profile");
#endif

/* handle = life << 16 | epoch << 8 | slot + 1; `alive` says whether it is out. */
#define LIVES 65536
static u64 alive[LIVES][EPOCHS];

PROBED void epoch_advance(struct ring *r) {
    r->current = (r->current + 1) % EPOCHS;
    struct epoch *e = &r->epochs[r->current];
    e->life++;
    e->live = 0;
    r->bitmap[r->current] = 0;
}

PROBED void epoch_close(struct ring *r, u32 epoch) { __asm__ volatile("" : : "r"(r), "r"(epoch) : "memory"); }

PROBED bool alloc_obj(struct ring *r, u64 size, u32 epoch, u64 *handle) {
    struct epoch *e = &r->epochs[epoch];
    u64 *map = &alive[e->life % LIVES][epoch];
    if (size > 768 || *map == ~(u64)0) return false;
    u32 slot = (u32)__builtin_ctzll(~*map);
    *map |= (u64)1 << slot;
    r->bitmap[epoch] |= (u64)1 << slot;
    e->live++;
    *handle = (u64)e->life << 16 | epoch << 8 | (slot + 1);
    return true;
}

PROBED bool free_obj(struct ring *r, u64 handle) {
    u32 slot = (handle & 0xff) - 1, epoch = handle >> 8 & 0xff;
    u64 life = handle >> 16;
    if ((handle & 0xff) == 0 || slot >= SLOTS || epoch >= EPOCHS) return false;
    u64 bit = (u64)1 << slot;
    if (!(alive[life % LIVES][epoch] & bit)) return false;
    alive[life % LIVES][epoch] &= ~bit;
    struct epoch *e = &r->epochs[epoch];
    if (e->life == life) {
        e->live--;
        r->bitmap[epoch] &= ~bit;
    }
    return true;
}

static struct ring ring;
#define HELD 32768
static struct { u64 handle, size; struct gen *gen; u64 due; } held[HELD];
static size_t held_count;

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 epochs = option("epochs", 1000), p = option("p", 2500), late = option("late", 20);
    u64 bytes = 4096, handle;
    struct truth t = {.instance = &ring};
    if (option("boundary", 0)) t.omit = NO_OBJECTS | NO_RETENTION | NO_PEAK;
    struct gen *now = NULL; /* epoch 0 is never opened */
    ready();
    for (u64 n = 0; n < epochs; n++) {
        u64 mine[SLOTS], sizes[SLOTS], count = random_below(8);
        for (u64 i = 0; i < count; i++) {
            u64 size = 1 + random_below(768);
            if (!alloc_obj(&ring, size, ring.current, &handle)) abort();
            if (!now) now = truth_lazy(&t, bytes);
            if (t.omit) now->before = false; /* boundary: what stands in memory decides */
            mine[i] = handle;
            sizes[i] = size;
            truth_alloc(&t, now, size);
        }
        alloc_obj(&ring, 800, ring.current, &handle); /* fails */
        bool pin = count && chance(p);
        for (u64 i = pin ? 1 : 0; i < count; i++) {
            if (!free_obj(&ring, mine[i])) abort();
            truth_free(&t, now, sizes[i]);
            if (chance(1000) && free_obj(&ring, mine[i])) abort(); /* a double free, rejected */
        }
        if (chance(500) && free_obj(&ring, 0)) abort();
        if (pin && held_count < HELD) {
            held[held_count].handle = mine[0];
            held[held_count].size = sizes[0];
            held[held_count].gen = now;
            held[held_count++].due = n + late;
        }
        if (!now) now = truth_lazy(&t, bytes);
        if (t.omit) now->before = false;
        epoch_close(&ring, ring.current);
        truth_close(&t, now);
        for (size_t i = 0; late && i < held_count;) {
            if (held[i].due > n) { i++; continue; }
            if (!free_obj(&ring, held[i].handle)) abort();
            truth_free(&t, held[i].gen, held[i].size);
            held[i] = held[--held_count];
        }
        if (n + 1 < epochs) {
            epoch_advance(&ring);
            now = truth_open(&t, now, bytes);
        }
    }
    truth_print_single(&t);
    return 0;
}
