/* An allocator with the calls of temporal-slab, and its structures where that has them: a ring of 16 epochs, eight
 * classes of sizes, slabs of one page in a list of partial and one of full ones, objects freed by handle.
 *
 * The epoch that epoch_advance opens is named by no argument. Objects live on behind their epoch's close and behind the
 * next opening of its id; a stale handle, a double free, a size that is too large and an epoch that is closing are
 * refused. CLASS is the size of a class's structure, which other builds have otherwise. With CACHED a thread keeps
 * objects that it has allocated ahead.
 */
#include <sys/mman.h>

#include "truth.h"

#ifndef CLASS
#define CLASS 0x190 /* the default build */
#endif

typedef u32 EpochId;
typedef u64 SlabHandle;

enum { EPOCHS = 16, CLASSES = 8, HANDLES = 4096, LARGEST = 768, PAGE = 4096, HEADER = 128, CLOSING = 1 };
static const u32 sizes_of[CLASSES] = {64, 96, 128, 192, 256, 384, 512, 768};

typedef struct Slab {
    struct Slab *prev, *next;
    u32 magic, object_size, object_count, free_count, list_id, cache_state, epoch_id;
    u64 era, taken; /* a bit for each object that is out */
} Slab;

struct list { Slab *head, *tail; size_t len; };
typedef struct EpochState { struct list partial, full; Slab *current; u32 empty; } EpochState;

typedef struct SizeClass {
    u32 object_size;
    EpochState *epochs;
    u8 lock[40];
    struct SlabAllocator *parent_alloc;
    u8 counters[CLASS - 64];
} SizeClass;

typedef struct SlabAllocator {
    SizeClass classes[CLASSES];
    u32 current_epoch; /* counts on: the epoch is the rest by 16 */
    u32 epoch_count;
    u32 epoch_state[EPOCHS];
    struct slot { u32 generation; bool out; Slab *slab; u32 index; } slots[HANDLES];
    Slab *cache; /* slabs that were given back */
} SlabAllocator;

_Static_assert(sizeof(EpochState) == 0x40, "named in the profile");
_Static_assert(__builtin_offsetof(SizeClass, parent_alloc) == 0x38, "named in the profile");
_Static_assert(__builtin_offsetof(SlabAllocator, current_epoch) == 8 * CLASS, "named in the profile");
_Static_assert(sizeof(Slab) <= HEADER, "objects come behind it");

static void unlink_slab(struct list *list, Slab *slab) {
    *(slab->prev ? &slab->prev->next : &list->head) = slab->next;
    *(slab->next ? &slab->next->prev : &list->tail) = slab->prev;
    list->len--;
}

static void append_slab(struct list *list, Slab *slab) {
    slab->next = NULL;
    slab->prev = list->tail;
    *(list->tail ? &list->tail->next : &list->head) = slab;
    list->tail = slab;
    list->len++;
}

PROBED void allocator_init(SlabAllocator *a) {
    for (int i = 0; i < CLASSES; i++) {
        a->classes[i].object_size = sizes_of[i];
        a->classes[i].epochs = calloc(EPOCHS, sizeof(EpochState));
        a->classes[i].parent_alloc = a;
    }
    a->current_epoch = 0;
    a->epoch_count = EPOCHS;
    memset(a->epoch_state, 0, sizeof a->epoch_state);
}

PROBED void allocator_destroy(SlabAllocator *a) { a->epoch_count = 0; }

PROBED EpochId epoch_current(SlabAllocator *a) { return a->current_epoch % a->epoch_count; }

PROBED void epoch_advance(SlabAllocator *a) {
    u32 old = __atomic_fetch_add(&a->current_epoch, 1, __ATOMIC_RELAXED);
    a->epoch_state[old % a->epoch_count] = CLOSING;
    a->epoch_state[(old + 1) % a->epoch_count] = 0;
}

/* Gives back the slabs that are empty. */
PROBED void epoch_close(SlabAllocator *a, EpochId epoch) {
    if (!a || epoch >= a->epoch_count) return;
    a->epoch_state[epoch] = CLOSING;
    for (int i = 0; i < CLASSES; i++) {
        struct list *partial = &a->classes[i].epochs[epoch].partial;
        for (Slab *slab = partial->head, *next; slab; slab = next) {
            next = slab->next;
            if (slab->taken) continue;
            unlink_slab(partial, slab);
            madvise(slab, PAGE, MADV_DONTNEED);
            slab->next = a->cache;
            a->cache = slab;
        }
    }
}

PROBED void slab_epoch_set_label(SlabAllocator *a, EpochId epoch, const char *label) {
    __asm__ volatile("" : : "r"(a), "r"(epoch), "r"(label) : "memory");
}

static Slab *fresh_slab(SlabAllocator *a, SizeClass *class, EpochId epoch) {
    Slab *slab = a->cache;
    if (slab) a->cache = slab->next;
    else slab = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slab == MAP_FAILED) abort();
    slab->object_size = class->object_size;
    slab->object_count = slab->free_count = (PAGE - HEADER) / class->object_size;
    slab->epoch_id = epoch;
    slab->taken = 0;
    append_slab(&class->epochs[epoch].partial, slab);
    return slab;
}

static void *take(SlabAllocator *a, u32 size, EpochId epoch, SlabHandle *out) {
    static u32 next;
    SizeClass *class = a->classes;
    while (class->object_size < size) class++;
    EpochState *lists = &class->epochs[epoch];
    Slab *slab = lists->partial.head ? lists->partial.head : fresh_slab(a, class, epoch);
    u32 index = (u32)__builtin_ctzll(~slab->taken);
    slab->taken |= 1ull << index;
    if (--slab->free_count == 0) {
        unlink_slab(&lists->partial, slab);
        append_slab(&lists->full, slab);
    }
    while (a->slots[next = (next + 1) % HANDLES].out) continue;
    struct slot *slot = &a->slots[next];
    slot->out = true;
    slot->slab = slab;
    slot->index = index;
    *out = (u64)++slot->generation << 32 | next << 8 | 1;
    return (u8 *)slab + HEADER + index * slab->object_size;
}

#ifdef CACHED
/* One object ahead for each class, taken from the epoch of the moment: what comes from here is no new object of the
 * allocator's, and what is in here is out for the allocator. */
static struct { void *bytes; SlabHandle handle; EpochId epoch; } tls_cache[CLASSES];

PROBED void tls_refill(SlabAllocator *a, u32 class, EpochId epoch) {
    tls_cache[class].bytes = take(a, sizes_of[class], epoch, &tls_cache[class].handle);
    tls_cache[class].epoch = epoch;
}

PROBED void *tls_try_alloc(SlabAllocator *a, u32 class, EpochId epoch, SlabHandle *out) {
    if (!tls_cache[class].bytes || tls_cache[class].epoch != epoch) tls_refill(a, class, epoch);
    void *bytes = tls_cache[class].bytes;
    *out = tls_cache[class].handle;
    tls_refill(a, class, epoch);
    return bytes;
}
#endif

PROBED void *alloc_obj_epoch(SlabAllocator *a, u32 size, EpochId epoch, SlabHandle *out) {
    if (size == 0 || size > LARGEST || epoch >= a->epoch_count || a->epoch_state[epoch] == CLOSING) return NULL;
#ifdef CACHED
    u32 class = 0;
    while (sizes_of[class] < size) class++;
    return tls_try_alloc(a, class, epoch, out);
#else
    return take(a, size, epoch, out);
#endif
}

PROBED bool free_obj(SlabAllocator *a, SlabHandle handle) {
    u32 place = (u32)handle >> 8;
    if (handle == 0 || place >= HANDLES) return false;
    struct slot *slot = &a->slots[place];
    if (!slot->out || slot->generation != handle >> 32) return false;
    slot->out = false;
    Slab *slab = slot->slab;
    SizeClass *class = a->classes;
    while (class->object_size != slab->object_size) class++;
    EpochState *lists = &class->epochs[slab->epoch_id];
    slab->taken &= ~(1ull << slot->index);
    if (slab->free_count++ == 0) {
        unlink_slab(&lists->full, slab);
        append_slab(&lists->partial, slab);
    }
    return true;
}

/* The handle stands before the object. */
PROBED void *slab_malloc_epoch(SlabAllocator *a, size_t size, EpochId epoch) {
    SlabHandle handle;
    u8 *bytes = alloc_obj_epoch(a, (u32)size + 8, epoch, &handle);
    if (!bytes) return NULL;
    memcpy(bytes, &handle, sizeof handle);
    return bytes + 8;
}

PROBED void slab_free(SlabAllocator *a, void *object) {
    SlabHandle handle;
    if (!object) return;
    memcpy(&handle, (u8 *)object - 8, sizeof handle);
    free_obj(a, handle);
}

static SlabAllocator allocator;
enum { HELD = 2048 };
static struct { SlabHandle handle; u64 size, due; struct gen *gen; } held[HELD];
static size_t held_count;

/* Pages of closed epochs, by the slabs that are out. */
static void print_pages(void) {
    u64 pages = 0;
    for (u32 epoch = 0; epoch < EPOCHS; epoch++)
        for (int i = 0; i < CLASSES && epoch != allocator.current_epoch % EPOCHS; i++) {
            EpochState *lists = &allocator.classes[i].epochs[epoch];
            pages += lists->partial.len + lists->full.len;
        }
    printf(",\"pinned_pages\":%llu", (unsigned long long)pages);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 epochs = option("epochs", 1000), p = option("p", 2500), late = option("late", 40);
    struct truth t = {.instance = &allocator};
    ready();
    allocator_init(&allocator);
    struct gen *now = truth_open(&t, NULL, 0);
    for (u64 n = 0; n < epochs; n++) {
        SlabHandle mine[8], handle;
        u64 sizes[8], count = random_below(8);
        EpochId epoch = epoch_current(&allocator);
        for (u64 i = 0; i < count; i++) {
            sizes[i] = 1 + random_below(LARGEST);
            if (!alloc_obj_epoch(&allocator, (u32)sizes[i], epoch, &mine[i])) abort();
            truth_alloc(&t, now, sizes[i]);
        }
        void *plain = slab_malloc_epoch(&allocator, 100, epoch);
        truth_alloc(&t, now, 108);
        slab_free(&allocator, plain);
        truth_free(&t, now, 108);
        slab_free(&allocator, NULL);
        if (alloc_obj_epoch(&allocator, LARGEST + 1, epoch, &handle)) abort();
        bool pin = count && held_count < HELD && chance(p);
        for (u64 i = pin ? 1 : 0; i < count; i++) {
            if (!free_obj(&allocator, mine[i]) || free_obj(&allocator, mine[i])) abort();
            truth_free(&t, now, sizes[i]);
        }
        if (pin) {
            held[held_count].handle = mine[0];
            held[held_count].size = sizes[0];
            held[held_count].gen = now;
            held[held_count++].due = n + late;
        }
        epoch_close(&allocator, epoch);
        truth_close(&t, now);
        epoch_close(&allocator, EPOCHS);
        if (alloc_obj_epoch(&allocator, 10, epoch, &handle)) abort();
        for (size_t i = 0; late && i < held_count;) {
            if (held[i].due > n) { i++; continue; }
            if (!free_obj(&allocator, held[i].handle)) abort();
            truth_free(&t, held[i].gen, held[i].size);
            held[i] = held[--held_count];
        }
        epoch_advance(&allocator);
        now = truth_open(&t, now, 0);
    }
    slab_epoch_set_label(&allocator, EPOCHS, "refused");
    slab_epoch_set_label(&allocator, epoch_current(&allocator), "the last one");
    stop_at("end");
    if (option("destroy", 0)) {
        /* What pins an allocator that is destroyed is forgotten with it; `keep`: it goes with it unfreed. */
        while (held_count && !option("keep", 0)) {
            held_count--;
            if (!free_obj(&allocator, held[held_count].handle)) abort();
            truth_free(&t, held[held_count].gen, held[held_count].size);
        }
        allocator_destroy(&allocator);
        truth_destroy(&t, t.open_now);
        t.retained = 0;
    }
    truth_more = print_pages;
    truth_print_single(&t);
    return 0;
}
