/* A program that tells a library about its granules and objects, through functions with the names and arguments of
 * libdrainprof. The library of this file forgets everything at once: what is true is kept beside the calls.
 *
 * Two profilers; granules of both have the same ids, which are used again, and objects have ids that are unique within
 * their granule only. Some calls name no profiler.
 */
#include "truth.h"

typedef struct drainprof { u64 calls; } drainprof;

PROBED int drainprof_granule_open(drainprof *prof, u64 granule) {
    __asm__ volatile("" : : "r"(granule) : "memory");
    return prof ? (int)(prof->calls++ & 0) : -1;
}
PROBED int drainprof_granule_close(drainprof *prof, u64 granule) {
    __asm__ volatile("" : : "r"(granule) : "memory");
    return prof ? (int)(prof->calls++ & 1) : -1;
}
PROBED int drainprof_alloc_register(drainprof *prof, u64 granule, u64 object, size_t size) {
    __asm__ volatile("" : : "r"(granule), "r"(object), "r"(size) : "memory");
    return prof ? (int)(prof->calls++ & 0) : -1;
}
PROBED int drainprof_alloc_register_located(drainprof *prof, u64 granule, u64 object, size_t size, const char *file,
                                            u32 line) {
    __asm__ volatile("" : : "r"(granule), "r"(object), "r"(size), "r"(file), "r"(line) : "memory");
    return prof ? (int)(prof->calls++ & 0) : -1;
}
PROBED int drainprof_alloc_deregister(drainprof *prof, u64 granule, u64 object) {
    __asm__ volatile("" : : "r"(granule), "r"(object) : "memory");
    return prof ? (int)(prof->calls++ & 0) : -1;
}
PROBED void drainprof_destroy(drainprof *prof) { __asm__ volatile("" : : "r"(prof) : "memory"); }

enum { PROFS = 2, RING = 32, OBJECTS = 12, LATE = 40 };

static drainprof profs[PROFS];
static struct truth truths[PROFS];
static u64 next_object[PROFS][RING];
static struct { struct gen *gen; u64 prof, granule, object, size; bool out; } late[LATE];

/* Frees what was kept `LATE` pins ago: its granule is closed, and its id may have been opened again. */
static void free_late(size_t place) {
    if (!late[place].out) return;
    drainprof_alloc_deregister(&profs[late[place].prof], late[place].granule, late[place].object);
    truth_free(&truths[late[place].prof], late[place].gen, late[place].size);
    late[place].out = false;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 closes = option("closes", 1000), p = option("p", 2500), pins = 0;
    ready();
    for (size_t i = 0; i < PROFS; i++) truths[i].instance = &profs[i];
    for (u64 n = 0; n < closes; n++) {
        u64 which = n % 3 == 0, granule = n / 2 % RING, count = random_below(OBJECTS), ids[OBJECTS], sizes[OBJECTS];
        drainprof *prof = &profs[which];
        struct truth *t = &truths[which];
        drainprof_granule_open(prof, granule);
        struct gen *g = truth_open(t, NULL, 0);
        for (u64 i = 0; i < count; i++) {
            ids[i] = next_object[which][granule]++;
            sizes[i] = 1 + random_below(4096);
            if (i % 2) drainprof_alloc_register(prof, granule, ids[i], sizes[i]);
            else drainprof_alloc_register_located(prof, granule, ids[i], sizes[i], __FILE__, __LINE__);
            truth_alloc(t, g, sizes[i]);
        }
        bool pin = count && chance(p);
        for (u64 i = pin ? 1 : 0; i < count; i++) {
            drainprof_alloc_deregister(prof, granule, ids[i]);
            truth_free(t, g, sizes[i]);
        }
        drainprof_alloc_register(NULL, granule, 1, 1);
        drainprof_alloc_deregister(NULL, granule, 1);
        drainprof_granule_close(NULL, granule);
        drainprof_granule_close(prof, granule);
        truth_close(t, g);
        if (!pin) continue;
        size_t place = pins++ % LATE;
        free_late(place);
        late[place].gen = g;
        late[place].prof = which;
        late[place].granule = granule;
        late[place].object = ids[0];
        late[place].size = sizes[0];
        late[place].out = true;
    }
    /* What pins a profiler that is destroyed is forgotten with it. */
    for (size_t place = 0; place < LATE; place++)
        if (late[place].prof == 1) free_late(place);
    for (u64 granule = 100; granule < 105; granule++) {
        drainprof_granule_open(&profs[1], granule);
        truth_open(&truths[1], NULL, 0);
    }
    drainprof_destroy(&profs[1]);
    truth_destroy(&truths[1], 5);
    drainprof_destroy(NULL);
    const struct truth *list[] = {&truths[0], &truths[1]};
    truth_print(list, PROFS);
    return 0;
}
