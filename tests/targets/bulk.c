/* Kind `bulk`: a close frees the members. Requests inside a connection, resets (those of empty pools are
 * filtered by the profile), parents, labels, and `overdue` pools that are never closed.
 */
#include "truth.h"

struct pool {
    u64 used;            /* offset 0: objects since the last reset */
    struct pool *parent; /* offset 8 */
    char name[16];       /* offset 16 */
    struct gen *gen;
};

PROBED struct pool *pool_make(struct pool *parent, const char *name) {
    struct pool *p = calloc(1, sizeof *p);
    p->parent = parent;
    snprintf(p->name, sizeof p->name, "%s", name);
    return p;
}
PROBED void pool_kill(struct pool *p) { __asm__ volatile("" : : "r"(p) : "memory"); }
PROBED void pool_reset(struct pool *p) { p->used = 0; }
PROBED void *pool_take(struct pool *p, u64 size) {
    p->used++;
    return malloc(size);
}
PROBED void pool_give(struct pool *p, void *object) {
    p->used--;
    free(object);
}

static struct truth t = {.kind = BULK};

static struct pool *make(struct pool *parent, const char *name) {
    struct pool *p = pool_make(parent, name);
    p->gen = truth_open(&t, NULL, 0);
    return p;
}
static void *take(struct pool *p, u64 size) {
    void *object = pool_take(p, size);
    truth_alloc(&t, p->gen, size);
    return object;
}
static void end(struct pool *p) {
    pool_kill(p);
    truth_close(&t, p->gen); /* the memory is kept: each address has one life */
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 connections = option("connections", 50), overdue = option("overdue", 3);
    ready();
    for (u64 c = 0; c < connections; c++) {
        struct pool *connection = make(NULL, "connection");
        take(connection, 100);
        u64 requests = random_below(6);
        for (u64 r = 0; r < requests; r++) {
            struct pool *request = make(connection, "request");
            u64 objects = random_below(10);
            void *last = NULL;
            for (u64 i = 0; i < objects; i++) last = take(request, 64);
            if (last && chance(3000)) {
                pool_give(request, last);
                truth_free(&t, request->gen, 64);
            }
            if (chance(5000)) {
                if (request->used) truth_reset(&t, request->gen);
                pool_reset(request);
                pool_reset(request); /* empty already: filtered by the profile */
                for (u64 i = random_below(3); i > 0; i--) take(request, 32);
            }
            end(request);
        }
        if (c >= overdue) end(connection);
    }
    truth_print_single(&t);
    return 0;
}
