/* Heaps of mimalloc, made and ended in every way, beside blocks that belong to no heap of the program.
 *
 * The library is opened by name and used as it is; `malloc` stays the C library's, unless the test preloads
 * mimalloc too. Heap n of four takes its blocks from every function that allocates in a heap. Of `heaps` as
 * many are destroyed as `destroyed`, the others deleted; every other one is emptied first. What a deleted
 * heap leaves behind is freed at the end. `kept` heaps are never ended.
 */
#include "truth.h"

#include <dlfcn.h>
#include <pthread.h>

enum { BLOCKS = 21, WAYS = 21 };

static void *(*heap_new)(void), *(*heap_malloc)(void *, size_t), *(*heap_small)(void *, size_t);
static void *(*heap_zalloc)(void *, size_t), *(*heap_calloc)(void *, size_t, size_t);
static void *(*heap_mallocn)(void *, size_t, size_t), *(*heap_aligned)(void *, size_t, size_t);
static void *(*heap_zaligned)(void *, size_t, size_t), *(*heap_realloc)(void *, void *, size_t);
static void *(*heap_rezalloc)(void *, void *, size_t), *(*heap_reallocn)(void *, void *, size_t, size_t);
static void *(*heap_realign)(void *, void *, size_t, size_t);
static void *(*heap_rezalign)(void *, void *, size_t, size_t);
static void *(*heap_realign_at)(void *, void *, size_t, size_t, size_t);
static void *(*heap_rezalign_at)(void *, void *, size_t, size_t, size_t);
static char *(*heap_strdup)(void *, const char *), *(*heap_strndup)(void *, const char *, size_t);
static void *(*heap_new_object)(void *, size_t), *(*heap_new_objects)(void *, size_t, size_t);
static void (*heap_destroy)(void *), (*heap_delete)(void *), (*block_free)(void *);
static void *(*own_malloc)(size_t), *(*own_realloc)(void *, size_t);
static size_t (*usable)(void *);

struct block {
    void *at;
    u64 size;
};

static struct truth t = {.kind = BULK};
static u64 deleted, left_behind;

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "mi_heaps: there is no %s\n", name);
        _exit(9);
    }
    return found;
}

static void load(void) {
    void *library = dlopen("libmimalloc.so.2.0", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "mi_heaps: %s\n", dlerror());
        _exit(9);
    }
#define LOAD(to, name) *(void **)&to = function(library, name)
    LOAD(heap_new, "mi_heap_new");
    LOAD(heap_destroy, "mi_heap_destroy");
    LOAD(heap_delete, "mi_heap_delete");
    LOAD(heap_malloc, "mi_heap_malloc");
    LOAD(heap_small, "mi_heap_malloc_small");
    LOAD(heap_zalloc, "mi_heap_zalloc");
    LOAD(heap_calloc, "mi_heap_calloc");
    LOAD(heap_mallocn, "mi_heap_mallocn");
    LOAD(heap_aligned, "mi_heap_malloc_aligned");
    LOAD(heap_zaligned, "mi_heap_zalloc_aligned");
    LOAD(heap_realloc, "mi_heap_realloc");
    LOAD(heap_rezalloc, "mi_heap_rezalloc");
    LOAD(heap_reallocn, "mi_heap_reallocn");
    LOAD(heap_realign, "mi_heap_realloc_aligned");
    LOAD(heap_rezalign, "mi_heap_rezalloc_aligned");
    LOAD(heap_realign_at, "mi_heap_realloc_aligned_at");
    LOAD(heap_rezalign_at, "mi_heap_rezalloc_aligned_at");
    LOAD(heap_strdup, "mi_heap_strdup");
    LOAD(heap_strndup, "mi_heap_strndup");
    LOAD(heap_new_object, "mi_heap_alloc_new");
    LOAD(heap_new_objects, "mi_heap_alloc_new_n");
    LOAD(block_free, "mi_free");
    LOAD(own_malloc, "mi_malloc");
    LOAD(own_realloc, "mi_realloc");
    LOAD(usable, "mi_usable_size");
}

static struct block took(struct gen *g, void *at, u64 size) {
    truth_alloc(&t, g, size);
    return (struct block){at, size};
}

static void give(struct gen *g, struct block *block) {
    block_free(block->at);
    truth_free(&t, g, block->size);
    block->at = NULL;
}

/* What reallocating made of a block: another one, or the same. */
static void became(struct gen *g, struct block *block, void *now, u64 size) {
    if (now == block->at) return;
    if (block->at) truth_free(&t, g, block->size);
    truth_alloc(&t, g, size);
    *block = (struct block){now, size};
}

static struct block take(void *heap, struct gen *g, unsigned way, u64 size) {
    static const char text[] = "a text that is copied";
    struct block block = {0};
    void *at;
    switch (way % WAYS) {
    case 0: return took(g, heap_malloc(heap, size), size);
    case 1: return took(g, heap_small(heap, size % 512 + 1), size % 512 + 1);
    case 2: return took(g, heap_zalloc(heap, size), size);
    case 3: return took(g, heap_calloc(heap, 3, size), 3 * size);
    case 4: return took(g, heap_mallocn(heap, 5, size), 5 * size);
    case 5: return took(g, heap_aligned(heap, 256, 64), 256); /* what size and alignment decide: */
    case 6: return took(g, heap_aligned(heap, size, 128), size); /* two ways inside */
    case 7: return took(g, heap_zaligned(heap, size, 32), size);
    case 8: return took(g, heap_new_object(heap, size), size);
    case 9: return took(g, heap_new_objects(heap, 7, size), 7 * size);
    case 10: at = heap_strdup(heap, text); return took(g, at, usable(at));
    case 11: at = heap_strndup(heap, text, 6); return took(g, at, usable(at));
    case 12: became(g, &block, heap_realloc(heap, NULL, size), size); return block;
    case 13:
        block = took(g, heap_malloc(heap, size), size);
        became(g, &block, heap_realloc(heap, block.at, 70000 + size), 70000 + size); /* moves */
        became(g, &block, heap_realloc(heap, block.at, 69000 + size), 69000 + size); /* stays */
        return block;
    case 14: became(g, &block, heap_rezalloc(heap, NULL, size), size); return block;
    case 15: became(g, &block, heap_reallocn(heap, NULL, 2, size), 2 * size); return block;
    case 16: became(g, &block, heap_realign(heap, NULL, size, 64), size); return block;
    case 17: became(g, &block, heap_rezalign(heap, NULL, size, 32), size); return block;
    case 18: became(g, &block, heap_realign_at(heap, NULL, size, 64, 16), size); return block;
    case 19: became(g, &block, heap_rezalign_at(heap, NULL, size, 64, 16), size); return block;
    default:
        block = took(g, heap_malloc(heap, size), size);
        became(g, &block, heap_realign(heap, block.at, 9000 + size, 64), 9000 + size);
        became(g, &block, heap_realign(heap, block.at, 19000 + size, 8), 19000 + size);
        return block;
    }
}

static void *abandon(void *unused) {
    (void)unused;
    return own_malloc(48);
}

/* A block is freed that no heap of ours has given out. */
static void not_ours(void *at) {
    block_free(at);
    truth_losses.unmatched_frees++;
}

/* Blocks of threads' own heaps: also one that moves, and one of a thread that has ended. */
static void others(void) {
    pthread_t thread;
    void *orphan = NULL;
    not_ours(own_realloc(own_malloc(100), 5000));
    truth_losses.unmatched_frees++; /* where it was before */
    block_free(NULL);
    if (pthread_create(&thread, NULL, abandon, NULL) || pthread_join(thread, &orphan)) _exit(9);
    not_ours(orphan);
}

static void more(void) {
    printf(",\"deleted\":%llu,\"left_behind\":%llu", (unsigned long long)deleted,
           (unsigned long long)left_behind);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 heaps = option("heaps", 50), destroyed = option("destroyed", 40), kept = option("kept", 0);
    struct block *orphans = calloc(heaps * BLOCKS, sizeof *orphans);
    load();
    heap_delete(heap_new()); /* the library is at work before anybody looks */
    ready();
    for (u64 n = 0; n < heaps + kept; n++) {
        void *heap = heap_new();
        struct gen *g = truth_open(&t, NULL, 0);
        struct block blocks[BLOCKS];
        for (unsigned b = 0; b < BLOCKS; b++)
            blocks[b] = take(heap, g, n % 4 ? 0 : b, 8 + random_below(900));
        if (n >= heaps) continue;
        /* Emptied, or not quite. */
        for (unsigned b = n % 2 ? 0 : 1 + (unsigned)random_below(BLOCKS - 1); b < BLOCKS; b++)
            give(g, &blocks[b]);
        others();
        if (n < destroyed) {
            heap_destroy(heap);
        } else {
            heap_delete(heap);
            deleted++;
            for (unsigned b = 0; b < BLOCKS; b++)
                if (blocks[b].at) orphans[left_behind++] = blocks[b];
        }
        truth_losses.unmatched_frees++; /* the heap itself is a block of the thread's own */
        truth_close(&t, g);
    }
    for (u64 n = 0; n < left_behind; n++) not_ours(orphans[n].at);
    truth_more = more;
    truth_print_single(&t);
    return 0;
}
