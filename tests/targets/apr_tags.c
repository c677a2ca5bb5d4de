/* cflags: -ldl */
/* Pools of the installed libapr, named after they were made, some of them twice; some are destroyed, the others left
 * open. The parents that are printed are those that the library tells.
 */
#include <dlfcn.h>

#include "truth.h"

enum { POOLS = 60, LEAVES = POOLS / 2, LABEL = 24 };

static void *library;
static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "apr_tags: there is no %s\n", name);
        exit(9);
    }
    return found;
}

static struct truth truth = {.kind = BULK, .omit = NO_PEAK | NO_OBJECTS};
static void *pools[POOLS];
static struct gen *gens[POOLS];
static char labels[POOLS][LABEL];
static void *(*parent_of)(void *);

static void print_open(void) {
    const char *comma = "";
    printf(",\"open\":[");
    for (int i = 0; i < POOLS; i++) {
        if (!pools[i]) continue;
        printf("%s{\"id\":\"%p\",\"parent\":\"%p\",\"label\":", comma, pools[i], parent_of(pools[i]));
        if (labels[i][0])
            printf("\"%s\"}", labels[i]);
        else
            printf("null}");
        comma = ",";
    }
    printf("]");
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    library = dlopen("libapr-1.so.0", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "apr_tags: %s\n", dlerror());
        return 9;
    }
    int (*initialize)(void) = (int (*)(void))function("apr_initialize");
    int (*create)(void **, void *, void *, void *) = (int (*)(void **, void *, void *, void *))function("apr_pool_create_ex");
    void (*destroy)(void *) = (void (*)(void *))function("apr_pool_destroy");
    void (*tag)(void *, const char *) = (void (*)(void *, const char *))function("apr_pool_tag");
    parent_of = (void *(*)(void *))function("apr_pool_parent_get");
    if (initialize()) return 9;
    ready();
    for (int i = 0; i < POOLS; i++) {
        if (create(&pools[i], i % 4 ? pools[i / 2] : NULL, NULL, NULL)) return 9;
        gens[i] = truth_open(&truth, NULL, 0);
        if (i % 5 == 0) continue;
        snprintf(labels[i], LABEL, "tag %d", i);
        tag(pools[i], labels[i]);
        if (i % 10 != 1) continue;
        /* The library keeps the address; a text there that changes is nobody's event. */
        static char again[POOLS][LABEL];
        snprintf(again[i], LABEL, "again %d", i);
        tag(pools[i], again[i]);
        memcpy(labels[i], again[i], LABEL);
    }
    for (int i = LEAVES + 1; i < POOLS; i += 2) {
        destroy(pools[i]);
        truth_close(&truth, gens[i]);
        pools[i] = NULL;
    }
    truth_more = print_open;
    truth_print_single(&truth);
    /* The pools that are left end with the process, not by a call. */
    fflush(stdout);
    _exit(0);
}
