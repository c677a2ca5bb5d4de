/* Leaks known bytes at known call paths, after it has filled and emptied the same pages of malloc several times.
 *
 * rounds=N    so often all pages are filled, at a path of their own, and emptied, before anything leaks
 * objects=N   so many objects leak at each of two paths, of 250 and of 40 bytes, by turns; and one of a thousand as
 *             many at a third, of 10,000 bytes
 *
 * The truth has the live bytes and objects of each path, by the name of the function that allocates.
 */
#include "truth.h"

enum { SMALL = 40, MEDIUM = 250, LARGE = 10000 };

static void **kept;
static u64 kept_count;

static void keep(void *object) {
    if (!object) abort();
    kept[kept_count++] = object;
}

PROBED void fill(void) { keep(malloc(MEDIUM)); }
PROBED void leak_small(void) { keep(malloc(SMALL)); }
PROBED void leak_medium(void) { keep(malloc(MEDIUM)); }
PROBED void leak_large(void) { keep(malloc(LARGE)); }

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 rounds = option("rounds", 3), objects = option("objects", 20000), large = objects / 1000;
    kept = malloc((2 * objects + large) * sizeof *kept);
    if (!kept) return 2;
    ready();
    for (u64 round = 0; round < rounds; round++) {
        for (u64 i = 0; i < objects; i++) fill();
        while (kept_count) free(kept[--kept_count]);
    }
    for (u64 i = 0; i < objects; i++) {
        leak_small();
        leak_medium();
        if (i < large) leak_large();
    }
    printf("{\"truth\":1,\"leaks\":{\"leak_small\":[%llu,%llu],\"leak_medium\":[%llu,%llu],\"leak_large\":[%llu,%llu]}}\n",
           (unsigned long long)objects, (unsigned long long)objects * SMALL, (unsigned long long)objects,
           (unsigned long long)objects * MEDIUM, (unsigned long long)large, (unsigned long long)large * LARGE);
    return 0;
}
