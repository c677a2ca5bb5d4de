/* What every target shares: the truth that it prints, the handshake, options, and a random source.
 *
 * The truth is kept by the driver beside the calls that it makes, never by the allocator functions
 * that are probed, and is printed as one line of JSON with the keys of drainprof's report. Only keys
 * that the truth names are compared.
 *
 * Handshake: `READY <pid>` on stdout, then wait for a line on stdin. With DRAINPROF_GO=1 in the
 * environment (`drainprof run`: observed from the first instruction) nothing is waited for.
 */
#ifndef TRUTH_H
#define TRUTH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

/* A function that keeps its name, its body and its calling convention: what a profile can name. */
#define PROBED __attribute__((noinline, noipa, used, visibility("default")))

enum truth_kind { DRAIN, BULK, SLAB_HEAP };

/* Which groups of keys are not printed, because the workload leaves them to chance. */
enum { NO_VERDICTS = 1, NO_PEAK = 2, NO_OBJECT_FLOW = 4, NO_RETENTION = 8, NO_BYTES = 16, NO_OBJECTS = 32 };

/* One allocator instance. */
struct truth {
    const void *instance; /* NULL: the profile names none */
    enum truth_kind kind;
    int omit;
    u64 opened, opened_before, closed, drainable, pinned, unknown, resets, reopened, destroyed;
    u64 migrated, ended_with_parent, migrated_objects; /* printed only where `nests` */
    u64 open_now, open_peak;
    u64 allocated, freed, bulk_freed, allocated_bytes, freed_bytes;
    u64 retained, retained_bytes, late_drained, pinned_objects;
    bool nests;
    const char *verdict; /* what is retained over time; NULL: left to chance */
    bool pins_known;  /* whether the objects that were live at pinned closes are printed */
    bool bytes_known; /* bytes of granules are compared only where the profile knows them */
};

/* One life of a granule id. */
struct gen {
    u64 live, live_bytes, bytes;
    bool open, closed, pinned, before;
};

/* Losses and notices, per process; the names are those of the report. */
struct truth_losses {
    u64 unmatched_frees, unmatched_closes, objects_replaced, allocs_after_close;
    u64 call_abandoned, calls_cut_by_exec, read_fault, walk_cut;
};

static struct truth_losses truth_losses;
static bool truth_from_start;
static int truth_argc;
static char **truth_argv;
static u64 truth_random_state;
static const char *truth_role = "main";
/* Prints more keys of the truth's line, each with a comma before it; or NULL. */
static void (*truth_more)(void);

/* ---- options: key=value ---- */

static inline const char *option_text(const char *key, const char *otherwise) {
    size_t length = strlen(key);
    for (int i = 1; i < truth_argc; i++)
        if (!strncmp(truth_argv[i], key, length) && truth_argv[i][length] == '=')
            return truth_argv[i] + length + 1;
    return otherwise;
}

static inline u64 option(const char *key, u64 otherwise) {
    const char *text = option_text(key, NULL);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static inline void truth_begin(int argc, char **argv) {
    truth_argc = argc;
    truth_argv = argv;
    truth_from_start = getenv("DRAINPROF_GO") != NULL;
    truth_random_state = option("seed", 1) * 0x9e3779b97f4a7c15u + 1;
}

/* ---- random numbers: splitmix64 ---- */

static inline u64 random_u64(void) {
    u64 z = (truth_random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline u64 random_below(u64 limit) { return random_u64() % limit; }
/* True in `share` of 10,000 cases. */
static inline bool chance(u64 share) { return random_below(10000) < share; }

/* ---- handshake ---- */

static inline void wait_for_line(void) {
    char c;
    do {
        if (read(0, &c, 1) != 1) {
            fprintf(stderr, "target: stdin ended while it waited\n");
            _exit(9);
        }
    } while (c != '\n');
}

/* Maps the files of DRAINPROF_TEST_MAP (with colons between them) for execution, a page of each. */
static inline void map_files(void) {
    char *all = getenv("DRAINPROF_TEST_MAP");
    for (char *path = all ? strtok(all, ":") : NULL; path; path = strtok(NULL, ":")) {
        int file = open(path, O_RDONLY);
        if (file < 0 || mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) {
            perror(path);
            _exit(9);
        }
        close(file);
    }
}

static inline void ready(void) {
    map_files();
    if (truth_from_start) return;
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    wait_for_line();
}

/* A stop in mid-run, where the test asked for it: `AT <name>`, then wait for a line. */
static inline void stop_at(const char *name) {
    if (!option("stops", 0)) return;
    printf("AT %s\n", name);
    fflush(stdout);
    wait_for_line();
}

/* ---- bookkeeping: a naive model, one line per rule of DESIGN's words ---- */

static inline void truth_now_open(struct truth *t) {
    if (++t->open_now > t->open_peak) t->open_peak = t->open_now;
}

/* An open that is seen; `before` is what the id meant until now, or NULL. */
static inline struct gen *truth_open(struct truth *t, struct gen *before, u64 bytes) {
    struct gen *g = (struct gen *)calloc(1, sizeof *g);
    t->opened++;
    if (before && before->open) { /* reopened without a close: the earlier one is gone */
        t->reopened++;
        t->open_now--;
        before->open = false;
    }
    truth_now_open(t);
    g->open = true;
    g->bytes = bytes;
    t->bytes_known |= bytes != 0;
    return g;
}

/* A granule whose open was not seen, at the first alloc or close in our sight. */
static inline struct gen *truth_lazy(struct truth *t, u64 bytes) {
    struct gen *g = (struct gen *)calloc(1, sizeof *g);
    t->opened_before++;
    truth_now_open(t);
    g->open = true;
    g->bytes = bytes;
    t->bytes_known |= bytes != 0;
    /* Observed from the start, "never opened in our sight" is "never opened": its close is decided. */
    g->before = !truth_from_start;
    return g;
}

static inline void truth_alloc(struct truth *t, struct gen *g, u64 size) {
    t->allocated++;
    t->allocated_bytes += size;
    g->live++;
    g->live_bytes += size;
    if (g->closed) truth_losses.allocs_after_close++;
}

static inline void truth_free(struct truth *t, struct gen *g, u64 size) {
    t->freed++;
    t->freed_bytes += size;
    g->live--;
    g->live_bytes -= size;
    if (g->live == 0 && g->closed && g->pinned) {
        t->late_drained++;
        t->retained--;
        t->retained_bytes -= g->bytes;
        g->pinned = false;
    }
}

static inline void truth_drop_members(struct truth *t, struct gen *g) {
    t->bulk_freed += g->live;
    t->freed_bytes += g->live_bytes;
    g->live = g->live_bytes = 0;
}

static inline void truth_close(struct truth *t, struct gen *g) {
    if (!g->open) {
        truth_losses.unmatched_closes++;
        return;
    }
    g->open = false;
    g->closed = true;
    t->closed++;
    t->open_now--;
    if (t->kind != DRAIN) {
        if (t->kind == BULK) truth_drop_members(t, g);
    } else if (g->before) {
        t->unknown++;
    } else if (g->live == 0) {
        t->drainable++;
    } else {
        t->pinned++;
        t->pinned_objects += g->live;
        t->retained++;
        t->retained_bytes += g->bytes;
        g->pinned = true;
    }
}

static inline void truth_reset(struct truth *t, struct gen *g) {
    t->resets++;
    truth_drop_members(t, g);
}

/* The instance is torn down; `open` granules end with it. */
static inline void truth_destroy(struct truth *t, u64 open) {
    t->destroyed += open;
    t->open_now -= open;
}

/* ---- printing ---- */

#define KEY(name, value) printf("%s\"%s\":%llu", truth_comma(), name, (unsigned long long)(value))
static bool truth_first;
static inline const char *truth_comma(void) {
    const char *comma = truth_first ? "" : ",";
    truth_first = false;
    return comma;
}

static inline void truth_print_one(const struct truth *t) {
    static const char *const kinds[] = {"drain", "bulk", "slab"};
    printf("{\"kind\":\"%s\"", kinds[t->kind]);
    if (t->instance) printf(",\"instance\":\"0x%llx\"", (unsigned long long)(uintptr_t)t->instance);
    printf(",\"granules\":{");
    truth_first = true;
    KEY("opened", t->opened);
    KEY("opened_before", t->opened_before);
    KEY("closed", t->closed);
    if (!(t->omit & NO_VERDICTS)) {
        KEY("drainable", t->drainable);
        KEY("pinned", t->pinned);
        KEY("unknown", t->unknown);
    }
    KEY("resets", t->resets);
    KEY("reopened", t->reopened);
    KEY("destroyed", t->destroyed);
    if (t->nests) {
        KEY("migrated", t->migrated);
        KEY("ended_with_parent", t->ended_with_parent);
    }
    KEY("open_now", t->open_now);
    if (!(t->omit & NO_PEAK)) KEY("open_peak", t->open_peak);
    printf("}");
    if (!(t->omit & NO_OBJECTS)) {
        printf(",\"objects\":{");
        truth_first = true;
        if (!(t->omit & NO_OBJECT_FLOW)) {
            KEY("allocated", t->allocated);
            KEY("freed", t->freed + t->bulk_freed); /* as in the report: one by one and in bulk */
            if (!(t->omit & NO_BYTES)) KEY("allocated_bytes", t->allocated_bytes);
        }
        if (t->nests) KEY("migrated", t->migrated_objects);
        KEY("live", t->allocated - t->freed - t->bulk_freed);
        if (!(t->omit & NO_BYTES)) KEY("live_bytes", t->allocated_bytes - t->freed_bytes);
        printf("}");
    }
    if (t->pins_known) printf(",\"pins\":{\"objects\":%llu}", (unsigned long long)t->pinned_objects);
    if (t->kind == DRAIN && !(t->omit & NO_RETENTION)) {
        printf(",\"retention\":{");
        truth_first = true;
        KEY("granules", t->retained);
        if (t->bytes_known && !(t->omit & NO_BYTES)) KEY("bytes", t->retained_bytes);
        KEY("late_drained", t->late_drained);
        if (t->verdict) printf(",\"verdict\":\"%s\"", t->verdict);
        printf("}");
    } else if (t->kind != DRAIN && t->verdict) {
        printf(",\"retention\":{\"verdict\":\"%s\"}", t->verdict);
    }
    printf("}");
}

static inline void truth_print(const struct truth *const *all, size_t count) {
    printf("{\"truth\":1,\"role\":\"%s\",\"pid\":%d,\"allocators\":[", truth_role, (int)getpid());
    for (size_t i = 0; i < count; i++) {
        if (i) printf(",");
        truth_print_one(all[i]);
    }
    printf("],\"losses\":{");
    truth_first = true;
    KEY("unmatched_frees", truth_losses.unmatched_frees);
    KEY("unmatched_closes", truth_losses.unmatched_closes);
    KEY("objects_replaced", truth_losses.objects_replaced);
    KEY("allocs_after_close", truth_losses.allocs_after_close);
    KEY("call_abandoned", truth_losses.call_abandoned);
    KEY("calls_cut_by_exec", truth_losses.calls_cut_by_exec);
    KEY("read_fault", truth_losses.read_fault);
    KEY("walk_cut", truth_losses.walk_cut);
    printf("}");
    if (truth_more) truth_more();
    printf("}\n");
    fflush(stdout);
}

static inline void truth_print_single(const struct truth *t) { truth_print(&t, 1); }

#endif
