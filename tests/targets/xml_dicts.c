/* Dictionaries of libxml2, shared as parsers and documents share them.
 *
 * The library is opened by name and used as it is. Each dictionary gets some names; a document takes a
 * reference, the parser gives its own back, and last of all the document is freed: one close. Of every five
 * documents one is kept, and one dictionary in three stands over another. `closed_bytes` is what the library
 * itself said of the dictionaries just before they went.
 */
#include "truth.h"

#include <dlfcn.h>

static void *(*create)(void), *(*create_sub)(void *);
static int (*reference)(void *);
static void (*release)(void *);
static const unsigned char *(*lookup)(void *, const unsigned char *, int);
static size_t (*usage)(void *);

static struct truth t = {.kind = BULK};
static u64 closed_bytes, requests;

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "xml_dicts: there is no %s\n", name);
        _exit(9);
    }
    return found;
}

static void load(void) {
    void *library = dlopen("libxml2.so.2", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "xml_dicts: %s\n", dlerror());
        _exit(9);
    }
#define LOAD(to, name) *(void **)&to = function(library, name)
    LOAD(create, "xmlDictCreate");
    LOAD(create_sub, "xmlDictCreateSub");
    LOAD(reference, "xmlDictReference");
    LOAD(release, "xmlDictFree");
    LOAD(lookup, "xmlDictLookup");
    LOAD(usage, "xmlDictGetUsage");
}

static void fill(void *dict, u64 names) {
    char name[32];
    for (u64 n = 0; n < names; n++) {
        snprintf(name, sizeof name, "name-%llu", (unsigned long long)n);
        lookup(dict, (const unsigned char *)name, -1);
    }
}

static void last_release(void *dict, struct gen *g) {
    closed_bytes += usage(dict);
    release(dict);
    truth_close(&t, g);
}

static void more(void) {
    printf(",\"closed_bytes\":%llu,\"requests\":%llu", (unsigned long long)closed_bytes,
           (unsigned long long)requests);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 documents = option("documents", 50);
    load();
    release(create()); /* the library is at work before anybody looks */
    ready();
    for (u64 n = 0; n < documents; n++) {
        void *under = NULL, *dict;
        struct gen *below = NULL, *g;
        if (n % 3 == 0) {
            under = create();
            below = truth_open(&t, NULL, 0);
            fill(under, 10);
            dict = create_sub(under);
            release(under); /* the one above it has a reference of its own */
            requests++;
        } else {
            dict = create();
        }
        g = truth_open(&t, NULL, 0);
        fill(dict, random_below(2000));
        reference(dict); /* the document's */
        release(dict);   /* the parser's */
        requests++;
        if (n % 5 == 4) continue;
        if (under) {
            closed_bytes += usage(under);
            truth_close(&t, below);
        }
        last_release(dict, g);
    }
    t.omit = NO_OBJECTS;
    truth_more = more;
    truth_print_single(&t);
    return 0;
}
