/* Blocks of mimalloc, for a census from outside: of blocks of 8 to 607 bytes one in fifty stays, beside a large one and a
 * huge one; a thread frees some that it has not made. The program's malloc is not used. What is held is printed by the
 * size of the block that it lies in.
 */
/* cflags: -pthread */
#include "truth.h"

#include <dlfcn.h>
#include <pthread.h>

enum { BLOCKS = 100000, KEPT = 50, GIVEN = 40, SIZES = 4096 };

static void *(*take)(size_t);
static void (*give_back)(void *);
static size_t (*usable)(void *);
static void *blocks[BLOCKS], *given[GIVEN];
static size_t sizes[SIZES], counts[SIZES];

static void hold(void *block) {
    size_t size = usable(block), at = 0;
    while (sizes[at] && sizes[at] != size) at++;
    sizes[at] = size;
    counts[at]++;
}

static void *other(void *nothing) {
    for (int i = 0; i < GIVEN; i++) give_back(given[i]);
    return nothing;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) return 3;
    take = (void *(*)(size_t))dlsym(library, "mi_malloc");
    give_back = (void (*)(void *))dlsym(library, "mi_free");
    usable = (size_t (*)(void *))dlsym(library, "mi_usable_size");
    u32 seed = 1;
    for (int i = 0; i < BLOCKS; i++) {
        seed = seed * 1103515245 + 12345;
        blocks[i] = take(8 + (seed >> 16) % 600);
    }
    for (int i = 0; i < GIVEN; i++) given[i] = take(700);
    for (int i = 0; i < BLOCKS; i++) {
        if (i % KEPT) give_back(blocks[i]);
        else hold(blocks[i]);
    }
    hold(take(300000));
    hold(take(20 << 20));
    pthread_t thread;
    if (pthread_create(&thread, NULL, other, NULL) || pthread_join(thread, NULL)) return 4;
    printf("READY {");
    for (int at = 0; sizes[at]; at++) printf("%s\"%zu\": %zu", at ? ", " : "", sizes[at], counts[at]);
    printf("}\n");
    fflush(stdout);
    getchar();
    return 0;
}
