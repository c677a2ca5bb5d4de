/* cflags: -fomit-frame-pointer */
/* Call paths that use plain malloc, each in its own way, at an even pace, with the chances of bytehound's simulation:
 *   temporary     a list that grows and shrinks by chance
 *   leak          frees none
 *   at_the_end    frees all at the very end
 *   bounded       frees none in the first half; then one by chance for each that would make it hold more
 *   mixed         frees all but one in 40, at once
 *   once          leaks a few objects in one moment, and none later
 *   chain         one object, made at the begin, that realloc makes larger once a second
 *   seed=N  seconds=N  rate=N (iterations/s)  size=N (most bytes of an object)
 * The truth says which verdict is right for each, and what it leaves live.
 */
#include "truth.h"
#include <time.h>

#define PATH __attribute__((noinline, noipa))

struct list {
    void **objects;
    u64 *sizes;
    u64 count, room, bytes;
};

static struct list lists[5];
static u64 live[6], size_most, state, freed;

static u64 pick(u64 below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % below;
}

static void *sized(u64 *bytes) {
    *bytes = size_most > 4096 ? size_most : 1 + pick(size_most);
    void *object = malloc(*bytes);
    if (!object) abort();
    return object;
}

/* The lists are not from malloc, so that only what the paths allocate is. */
static void put(struct list *list, void *object, u64 bytes) {
    if (list->count == list->room) abort();
    list->sizes[list->count] = bytes;
    list->objects[list->count++] = object;
    list->bytes += bytes;
}

PATH static void take(struct list *list, u64 at) {
    freed++;
    list->bytes -= list->sizes[at];
    free(list->objects[at]);
    list->objects[at] = list->objects[--list->count];
    list->sizes[at] = list->sizes[list->count];
}

#define ALLOCATES(name) \
    PATH static void *name(u64 *bytes) { \
        void *object = sized(bytes); \
        __asm__ volatile("" ::: "memory"); \
        return object; \
    }
ALLOCATES(temporary)
ALLOCATES(leak)
ALLOCATES(at_the_end)
ALLOCATES(bounded)
ALLOCATES(mixed)
ALLOCATES(once)

PATH static void *chain(void *object, u64 bytes) {
    object = realloc(object, bytes);
    __asm__ volatile("" ::: "memory");
    return object;
}

static void step(int is_late) {
    static u64 most;
    u64 bytes;
    void *object;
    if (pick(4)) object = temporary(&bytes), put(&lists[0], object, bytes);
    if (pick(4) && lists[0].count) take(&lists[0], pick(lists[0].count));
    if (!pick(20)) leak(&bytes), live[1]++;
    if (!pick(20)) object = at_the_end(&bytes), put(&lists[2], object, bytes);
    if (!pick(20)) {
        object = bounded(&bytes);
        put(&lists[3], object, bytes);
        if (is_late && !most) most = lists[3].bytes;
        while (most && lists[3].bytes > most) take(&lists[3], pick(lists[3].count));
    }
    object = mixed(&bytes);
    if (!pick(40)) {
        live[4]++;
    } else {
        put(&lists[4], object, bytes);
        take(&lists[4], lists[4].count - 1);
    }
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 rate = option("rate", 400), seconds = option("seconds", 8);
    size_most = option("size", 64);
    state = option("seed", 1) * 0x9e3779b97f4a7c15 | 1;
    for (int i = 0; i < 5; i++) {
        static void *objects[5][1 << 18];
        static u64 sizes[5][1 << 18];
        lists[i] = (struct list){.objects = objects[i], .sizes = sizes[i], .room = 1 << 18};
    }
    ready();
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    u64 ticks = seconds * 100;
    static void *volatile chained;
    u64 links = 0;
    for (u64 tick = 0; tick < ticks; tick++) {
        if (tick % 100 == 0) chained = chain(chained, 4096 * ++links);
        for (u64 bytes; tick == ticks / 3 && live[5] < 12; live[5]++) once(&bytes);
        for (u64 i = 0; i < rate / 100; i++) step(tick >= ticks / 2);
        at.tv_nsec += 10000000;
        if (at.tv_nsec >= 1000000000) at.tv_nsec -= 1000000000, at.tv_sec++;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) {
        }
    }
    while (lists[0].count) take(&lists[0], 0);
    while (lists[2].count) take(&lists[2], 0);
    live[3] = lists[3].count;
    static const char *const names[][2] = {{"temporary", "bounded"},
                                           {"leak", "linear_leak"},
                                           {"at_the_end", "freed_at_shutdown"},
                                           {"bounded", "bounded"},
                                           {"mixed", "mixed"},
                                           {"once", "too_early"}};
    printf("{\"truth\":1,\"sites\":{");
    for (int i = 0; i < 6; i++)
        printf("%s\"%s\":[\"%s\",%llu]", i ? "," : "", names[i][0], names[i][1], (unsigned long long)live[i]);
    printf("},\"chain\":%llu,\"freed\":%llu}\n", (unsigned long long)links * 4096, (unsigned long long)freed);
    return 0;
}
