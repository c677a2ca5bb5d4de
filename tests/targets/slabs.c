/* Epochs whose live count stands in no one place: each is a list of slabs, and only the slabs count.
 * Every slab counts twice: objects handed out and given back as numbers, and objects out as a bit map of
 * four words. The slabs of an epoch hang in two lists at once: one that ends with NULL, and a circular
 * one with its head in the epoch, as in the Linux kernel and PostgreSQL.
 *
 * granule=epoch   epochs are closed, with p of 10,000 pinned
 * granule=slab    each slab is closed by itself
 * damage=long|cyclic|wild   every tenth epoch has a list that is too long, runs in a circle, or leads
 *                 to an address that is not mapped: its close cannot be decided
 * long=N          slabs of the lists that are too long; with 512 they are not (default 513)
 * slabs=N         slabs of an epoch at most (default 6)
 */
#include "truth.h"

#define CELLS 256 /* objects per slab */
#define WORDS (CELLS / 64)
#define EPOCHS 16
#define WALKED 512 /* slabs that a walk visits at most, unless the profile says otherwise */

struct link {
    struct link *next, *previous;
};

struct slab {
    struct slab *next;           /* 0: to the next one, NULL at the end */
    struct link ring;            /* 8: the circular list's */
    u32 object_count, free_count; /* 24, 28: handed out, and given back */
    u64 bitmap[WORDS];           /* 32: which are out */
};

struct epoch {
    struct slab *slabs; /* 0 */
    struct link ring;   /* 8 */
};

_Static_assert(__builtin_offsetof(struct slab, ring) == 8, "named in the profiles");
_Static_assert(__builtin_offsetof(struct slab, object_count) == 24, "named in the profiles");
_Static_assert(__builtin_offsetof(struct slab, free_count) == 28, "named in the profiles");
_Static_assert(__builtin_offsetof(struct slab, bitmap) == 32, "named in the profiles");
_Static_assert(__builtin_offsetof(struct epoch, ring) == 8, "named in the profiles");

PROBED void epoch_open(struct epoch *e) {
    e->slabs = NULL;
    e->ring.next = e->ring.previous = &e->ring;
}

PROBED void epoch_close(struct epoch *e) { __asm__ volatile("" : : "r"(e) : "memory"); }

PROBED void slab_open(struct slab *s) { memset(s, 0, sizeof *s); }

PROBED void slab_close(struct slab *s) { __asm__ volatile("" : : "r"(s) : "memory"); }

static void take(struct slab *s, u32 cell) {
    s->object_count++;
    s->bitmap[cell / 64] |= (u64)1 << cell % 64;
}

static void give_back(struct slab *s, u32 cell) {
    s->free_count++;
    s->bitmap[cell / 64] &= ~((u64)1 << cell % 64);
}

/* Cells are used in a random order, so that bits stand in all words. */
static void fill(struct truth *t, struct gen *g, struct slab *s, bool pin) {
    u32 count = (u32)random_below(CELLS), left = pin ? 1 + (u32)random_below(9) : 0;
    u32 step = 1 + 2 * (u32)random_below(CELLS / 2); /* odd: every cell comes up once */
    if (left > count) count = left;
    for (u32 i = 0; i < count; i++) {
        take(s, i * step % CELLS);
        truth_alloc(t, g, 8);
    }
    for (u32 i = left; i < count; i++) {
        give_back(s, i * step % CELLS);
        truth_free(t, g, 8);
    }
}

static struct slab *add_slab(struct epoch *e, struct slab *s) {
    s->next = e->slabs;
    e->slabs = s;
    s->ring.next = e->ring.next;
    s->ring.previous = &e->ring;
    e->ring.next->previous = &s->ring;
    e->ring.next = &s->ring;
    return s;
}

static void release(struct epoch *e) {
    for (struct link *link = e->ring.next; link && link != &e->ring;) {
        struct link *next = link->next;
        free((char *)link - __builtin_offsetof(struct slab, ring));
        link = next;
    }
}

static void run_epochs(struct truth *t) {
    static struct epoch epochs[EPOCHS];
    u64 count = option("epochs", 1000), p = option("p", 2500), most = option("slabs", 6);
    u64 length = option("long", WALKED + 1);
    const char *damage = option_text("damage", "none");
    struct epoch *e = &epochs[0];
    epoch_open(e); /* before anybody looks */
    ready();
    for (u64 n = 0; n < count; n++) {
        struct gen *g;
        if (n == 0 && !truth_from_start) {
            g = truth_lazy(t, 0);
            g->before = false; /* what stands in memory decides */
        } else if (n == 0) {
            g = truth_open(t, NULL, 0);
        } else {
            e = &epochs[n % EPOCHS];
            release(e);
            epoch_open(e);
            g = truth_open(t, NULL, 0);
        }
        bool damaged = strcmp(damage, "none") && n % 10 == 9;
        bool is_long = damaged && !strcmp(damage, "long");
        u64 slabs = is_long ? length : damaged ? 2 + random_below(most) : random_below(most + 1);
        bool pin = slabs && chance(p);
        struct slab *last = NULL;
        for (u64 i = 0; i < slabs; i++) {
            struct slab *s = add_slab(e, calloc(1, sizeof *s));
            if (!last) last = s; /* slabs are added in front */
            fill(t, g, s, pin && i == slabs / 2);
        }
        struct link *back = e->ring.previous;
        if (is_long && length <= WALKED) damaged = false;
        if (damaged) {
            g->before = true; /* no verdict */
            if (strcmp(damage, "wild")) truth_losses.walk_cut++;
            else truth_losses.read_fault++;
            if (!strcmp(damage, "cyclic")) {
                last->next = e->slabs;
                back->next = e->ring.next; /* passes the head by */
            } else if (!strcmp(damage, "wild")) {
                last->next = (struct slab *)16;
                back->next = (struct link *)16;
            }
        }
        epoch_close(e);
        truth_close(t, g);
        if (damaged) {
            last->next = NULL;
            back->next = &e->ring;
        }
        free(g);
    }
}

static void run_slabs(struct truth *t) {
    static struct slab slabs[EPOCHS];
    u64 count = option("epochs", 1000), p = option("p", 2500);
    ready();
    for (u64 n = 0; n < count; n++) {
        struct slab *s = &slabs[n % EPOCHS];
        slab_open(s);
        struct gen *g = truth_open(t, NULL, 0);
        fill(t, g, s, chance(p));
        slab_close(s);
        truth_close(t, g);
        free(g);
    }
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    struct truth t = {.omit = NO_OBJECTS | NO_RETENTION | NO_PEAK, .pins_known = true};
    if (strcmp(option_text("granule", "epoch"), "slab")) run_epochs(&t);
    else run_slabs(&t);
    truth_print_single(&t);
    return 0;
}
