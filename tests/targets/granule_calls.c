/* A program that tells a library about its granules and objects, through functions with the names, the arguments and the
 * structures of libdrainprof in production mode: a profiler has a table of slots, one for each open granule, with its
 * live count. The table is found by a hash of the id, and a full slot sends the search to the next one.
 *
 * Two profilers; granules of both have the same ids, which are used again, and objects have ids that are unique within
 * their granule only. Some calls name no profiler. With `boundary=1` no object is seen: what is known is read at closes.
 * With `mode=1` the library says that it is in its other mode, whose structures are others.
 */
#include "truth.h"

typedef struct slot { u32 live_count, occupied; u64 granule_id; } slot;
typedef struct table { slot *slots; u32 capacity; } table;
typedef struct drainprof {
    u32 mode, storage, slot_capacity;
    u8 rest_of_config[36];
    u64 counters[7];
    table *slots;
    void *report_buffer;
} drainprof;

_Static_assert(__builtin_offsetof(drainprof, slots) == 0x68, "named in the profile");
_Static_assert(__builtin_offsetof(drainprof, slot_capacity) == 8, "named in the profile");
_Static_assert(sizeof(slot) == 16, "named in the profile");

enum { CAPACITY = 24 };
static table tables[2] = {{NULL, CAPACITY}, {NULL, CAPACITY}};

/* The slot of a granule, or the free one at which the search for it ends. */
static slot *find(drainprof *prof, u64 granule) {
    u64 hash = granule;
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdull;
    hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53ull;
    hash ^= hash >> 33;
    for (u32 i = (u32)hash % CAPACITY;; i = (i + 1) % CAPACITY) {
        slot *found = &prof->slots->slots[i];
        if (!found->occupied || found->granule_id == granule) return found;
    }
}

PROBED int drainprof_granule_open(drainprof *prof, u64 granule) {
    if (!prof) return -1;
    slot *own = find(prof, granule);
    own->granule_id = granule;
    own->live_count = 0;
    own->occupied = 1;
    return 0;
}
PROBED int drainprof_granule_close(drainprof *prof, u64 granule) {
    if (!prof) return -1;
    slot *own = find(prof, granule);
    u32 live = own->live_count;
    memset(own, 0, sizeof *own);
    return live == 0;
}
static int registered(drainprof *prof, u64 granule, int change) {
    if (!prof) return -1;
    slot *own = find(prof, granule);
    if (!own->occupied) return -1;
    own->live_count += (u32)change;
    return 0;
}
PROBED int drainprof_alloc_register(drainprof *prof, u64 granule, u64 object, size_t size) {
    __asm__ volatile("" : : "r"(object), "r"(size) : "memory");
    return registered(prof, granule, 1);
}
PROBED int drainprof_alloc_register_located(drainprof *prof, u64 granule, u64 object, size_t size, const char *file,
                                            u32 line) {
    __asm__ volatile("" : : "r"(object), "r"(size), "r"(file), "r"(line) : "memory");
    return registered(prof, granule, 1);
}
PROBED int drainprof_alloc_deregister(drainprof *prof, u64 granule, u64 object) {
    __asm__ volatile("" : : "r"(object) : "memory");
    return registered(prof, granule, -1);
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
    for (size_t i = 0; i < PROFS; i++) {
        truths[i].instance = &profs[i];
        tables[i].slots = calloc(CAPACITY, sizeof(slot));
        profs[i].slots = &tables[i];
        profs[i].slot_capacity = CAPACITY;
        profs[i].mode = (u32)option("mode", 0);
        if (option("boundary", 0)) {
            truths[i].omit = NO_OBJECTS | NO_RETENTION;
            truths[i].pins_known = true;
        }
    }
    /* Open all the time, so that searches have to go on to other slots. */
    for (u64 granule = 1000; granule < 1010; granule++) {
        drainprof_granule_open(&profs[0], granule);
        truth_open(&truths[0], NULL, 0);
    }
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
