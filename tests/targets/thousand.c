/* cflags: -fomit-frame-pointer */
/* A thousand call paths that pin, each its own number of times. Site 0 pins every granule; site n of the others pins n of
 * 100,000, spread evenly. Pins are freed KEEP granules later, so that the last KEEP granules are retained at the end.
 * See paths.h for what is printed.
 *
 * usage: thousand [closes=N]
 */
#include "paths.h"

enum { SITES = 1000, KEEP = 1000, TURN = 100000 };

static struct truth t;
static u64 granule, objects;
static struct site { u64 allocated, live, due; } of[SITES];
/* Which site each object is of; and per granule its first object, and its truth. */
static u16 *site_of;
static u64 *first;
static struct gen **gens;

FRAME static void make(u16 site) {
    path_alloc(granule, ++objects, 64); /* mark: thousand_made */
    site_of[objects] = site;
    of[site].allocated++, of[site].live++;
    truth_alloc(&t, gens[granule], 64);
}

#define TEN(X, a, b) X(a, b, 0) X(a, b, 1) X(a, b, 2) X(a, b, 3) X(a, b, 4) X(a, b, 5) X(a, b, 6) X(a, b, 7) X(a, b, 8) X(a, b, 9)
#define HUNDRED(X, a) TEN(X, a, 0) TEN(X, a, 1) TEN(X, a, 2) TEN(X, a, 3) TEN(X, a, 4) TEN(X, a, 5) TEN(X, a, 6) TEN(X, a, 7) TEN(X, a, 8) TEN(X, a, 9)
#define THOUSAND(X) HUNDRED(X, 0) HUNDRED(X, 1) HUNDRED(X, 2) HUNDRED(X, 3) HUNDRED(X, 4) HUNDRED(X, 5) HUNDRED(X, 6) HUNDRED(X, 7) HUNDRED(X, 8) HUNDRED(X, 9)
#define FUNCTION(a, b, c) FRAME static void site_##a##b##c(void) { make(a * 100 + b * 10 + c); FOLLOWED; }
#define NAME(a, b, c) site_##a##b##c,
THOUSAND(FUNCTION) /* mark: thousand_sites */
static void (*const sites[SITES])(void) = {THOUSAND(NAME)};

static void free_granule(u64 number) {
    for (u64 object = first[number]; object < first[number + 1]; object++) {
        path_free(object);
        truth_free(&t, gens[number], 64);
        of[site_of[object]].live--;
    }
}

static void print(void) {
    printf(",\"paths\":[");
    for (u64 n = 0; n < SITES; n++) {
        printf("%s{\"name\":\"%03d\",\"chain\":\"make@thousand_made < site_%03d@thousand_sites < main@thousand_calls < * < _start\","
               "\"site\":{", n ? "," : "", (int)n, (int)n);
        truth_first = true;
        KEY("allocated", of[n].allocated);
        KEY("objects", of[n].allocated);
        KEY("bytes", of[n].allocated * 64);
        KEY("live", of[n].live);
        KEY("objects_live", of[n].live);
        KEY("granules_pinned", of[n].allocated); /* once per granule each */
        KEY("granules_retained", of[n].live);
        printf(",\"path_end\":\"start\"}}");
    }
    printf("]");
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 closes = option("closes", 100000);
    first = calloc(closes + 2, sizeof *first);
    gens = calloc(closes + 2, sizeof *gens);
    site_of = calloc(closes * 8 + SITES, sizeof *site_of);
    /* Where in its turn each site begins; over a turn it comes up as often as its number says. */
    for (u64 n = 0; n < SITES; n++) of[n].due = random_below(TURN);
    ready();
    for (granule = 1; granule <= closes; granule++) {
        path_open(granule, PATHS_BYTES); /* mark: thousand_opens */
        gens[granule] = truth_open(&t, NULL, PATHS_BYTES);
        first[granule] = objects + 1;
        for (u64 n = 0; n < SITES; n++) {
            of[n].due += n ? n : TURN;
            if (of[n].due < TURN) continue;
            of[n].due -= TURN;
            sites[n](); /* mark: thousand_calls */
        }
        path_close(granule);
        truth_close(&t, gens[granule]);
        first[granule + 1] = objects + 1;
        if (granule > KEEP) free_granule(granule - KEEP);
    }
    truth_more = print;
    truth_print_single(&t);
    return 0;
}
