/* Kind `slab`: slabs of 16 cells; a slab is closed only once it is empty. The object's granule is its
 * address with the low bits masked. At the end `slabs` slabs are open with known numbers of cells.
 */
#include "truth.h"

#define SLAB 4096
#define CELLS 16

struct slab {
    u32 live;
    u32 map;
    struct gen *gen;
};

PROBED struct slab *slab_map(void) {
    struct slab *s = aligned_alloc(SLAB, SLAB);
    memset(s, 0, sizeof *s);
    return s;
}
PROBED void slab_unmap(struct slab *s) { __asm__ volatile("" : : "r"(s) : "memory"); }
PROBED void *cell_take(struct slab *s, u64 size) {
    u32 i = (u32)__builtin_ctz(~s->map);
    s->map |= 1u << i;
    s->live++;
    __asm__ volatile("" : : "r"(size));
    return (char *)s + 256 + i * 128;
}
PROBED void cell_give(void *cell) {
    struct slab *s = (struct slab *)((uintptr_t)cell & ~(uintptr_t)(SLAB - 1));
    s->map &= ~(1u << (((uintptr_t)cell & (SLAB - 1)) - 256) / 128);
    s->live--;
}

static struct truth t = {.kind = SLAB_HEAP};

static void give(void *cell) {
    struct slab *s = (struct slab *)((uintptr_t)cell & ~(uintptr_t)(SLAB - 1));
    cell_give(cell);
    truth_free(&t, s->gen, 100);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 slabs = option("slabs", 64);
    struct slab **all = calloc(slabs, sizeof *all);
    void *(*cells)[CELLS] = calloc(slabs, sizeof *cells);
    ready();
    for (u64 n = 0; n < slabs; n++) {
        all[n] = slab_map();
        all[n]->gen = truth_open(&t, NULL, SLAB);
        for (u64 i = 0; i < CELLS; i++) {
            cells[n][i] = cell_take(all[n], 100);
            truth_alloc(&t, all[n]->gen, 100);
        }
    }
    /* A quarter is emptied and given back, a quarter emptied and kept, a quarter held by one cell. */
    for (u64 n = 0; n < slabs; n++) {
        u64 keep = n % 4 == 3 ? CELLS : n % 4 == 2 ? 1 : 0;
        for (u64 i = keep; i < CELLS; i++) give(cells[n][i]);
        if (n % 4 == 0) {
            slab_unmap(all[n]);
            truth_close(&t, all[n]->gen);
        }
    }
    truth_print_single(&t);
    return 0;
}
