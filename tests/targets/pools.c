/* A program with pools of its own: a list of blocks, of which each counts what is taken of it, and an array of slabs
 * with bits of what is taken. Prints how many there are and how much is in use, and sleeps until its stdin ends. */
/* cflags: -g */
#include "truth.h"

enum { BLOCKS = 300, BLOCK = 16384, SLABS = 64, SLAB = 4096 };

struct block {
    struct block *next;
    u32 taken;
    u64 used;
    char memory[];
};
struct slab {
    u64 bits;
    char *memory;
};

struct {
    struct block *first;
    struct slab *slabs;
} pools;

int main(void) {
    u64 objects = 0, bytes = 0, bits = 0;
    for (u32 i = 0; i < BLOCKS; i++) {
        struct block *block = calloc(1, BLOCK);
        if (!block) abort();
        block->next = pools.first, block->taken = i % 7, block->used = i % 7 * 40;
        objects += block->taken, bytes += block->used;
        pools.first = block;
    }
    pools.slabs = calloc(SLABS, sizeof *pools.slabs);
    if (!pools.slabs) abort();
    for (u32 i = 0; i < SLABS; i++) {
        pools.slabs[i].bits = (u64)i << 32 | 5;
        bits += (u64)__builtin_popcountll(pools.slabs[i].bits);
    }
    printf("READY {\"blocks\":%d,\"objects\":%llu,\"bytes\":%llu,\"slabs\":%d,\"bits\":%llu}\n", BLOCKS,
           (unsigned long long)objects, (unsigned long long)bytes, SLABS, (unsigned long long)bits);
    fflush(stdout);
    return getchar() == 'x';
}
