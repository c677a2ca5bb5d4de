/* An allocator with the calls of temporal-slab, and with its current epoch at the place where that has it: a ring of 16
 * epochs, objects freed by handle, handles that carry a generation.
 *
 * The epoch that epoch_advance opens is named by no argument. Objects live on behind their epoch's close and behind the
 * next opening of its id; a stale handle, a double free, a size that is too large and an epoch that is closing are
 * refused.
 */
#include "truth.h"

typedef u32 EpochId;
typedef u64 SlabHandle;

enum { EPOCHS = 16, SLOTS = 4096, LARGEST = 768, CLOSING = 1 };

typedef struct SlabAllocator {
    u8 classes[0xc80]; /* what is before the epoch in the default build */
    u32 current_epoch; /* counts on: the epoch is the rest by 16 */
    u32 epoch_count;
    u32 epoch_state[EPOCHS];
    struct slot { u32 generation; bool out; u8 bytes[16]; } slots[SLOTS];
} SlabAllocator;

_Static_assert(__builtin_offsetof(SlabAllocator, current_epoch) == 0xc80, "named in the profile");

PROBED void allocator_init(SlabAllocator *a) {
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

PROBED void epoch_close(SlabAllocator *a, EpochId epoch) {
    if (!a || epoch >= a->epoch_count) return;
    a->epoch_state[epoch] = CLOSING;
}

PROBED void slab_epoch_set_label(SlabAllocator *a, EpochId epoch, const char *label) {
    __asm__ volatile("" : : "r"(a), "r"(epoch), "r"(label) : "memory");
}

PROBED void *alloc_obj_epoch(SlabAllocator *a, u32 size, EpochId epoch, SlabHandle *out) {
    static u32 next;
    if (size == 0 || size > LARGEST || epoch >= a->epoch_count || a->epoch_state[epoch] == CLOSING) return NULL;
    for (u32 tried = 0; tried < SLOTS; tried++) {
        struct slot *slot = &a->slots[next = (next + 1) % SLOTS];
        if (slot->out) continue;
        slot->out = true;
        *out = (u64)++slot->generation << 32 | next << 8 | 1;
        return slot->bytes;
    }
    return NULL;
}

PROBED bool free_obj(SlabAllocator *a, SlabHandle handle) {
    u32 place = (u32)handle >> 8;
    if (handle == 0 || place >= SLOTS) return false;
    struct slot *slot = &a->slots[place];
    if (!slot->out || slot->generation != handle >> 32) return false;
    slot->out = false;
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
    if (option("destroy", 0)) {
        /* What pins an allocator that is destroyed is forgotten with it. */
        while (held_count) {
            held_count--;
            if (!free_obj(&allocator, held[held_count].handle)) abort();
            truth_free(&t, held[held_count].gen, held[held_count].size);
        }
        allocator_destroy(&allocator);
        truth_destroy(&t, t.open_now);
    }
    truth_print_single(&t);
    return 0;
}
