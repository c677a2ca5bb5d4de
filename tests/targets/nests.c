/* Contexts in one another, each a granule: freeing or clearing one ends all that is nested in it, inside one call and
 * without calling anything that could be probed. A context can be moved under another one and be named after it was
 * made; and it can be given up, so that what was allocated in it lives on by itself.
 *
 * Memory is used again at once, last out first in: contexts and objects get the addresses of those that went. With
 * `first_out=1` contexts get thousands of addresses in turn, so that hardly any is seen again soon. After every `pause=N`
 * steps it waits to be told to go on.
 * `depth=N` bounds how deep contexts are nested. With `moves=1` contexts get other addresses, too; there are no objects
 * then, and none is given up.
 */
#include "truth.h"

enum { CONTEXTS = 512, ADDRESSES = 16384, OBJECTS = 4096, LABEL = 24 };

struct context {
    struct context *parent;
    u64 cleared;
    char name[LABEL];
};
struct object {
    u64 size;
};

/* ---- the allocator: it keeps no books, the driver tells it what goes ---- */

static struct context contexts[ADDRESSES];
static struct object objects[OBJECTS];
static struct context *free_contexts[ADDRESSES];
static struct object *free_objects[OBJECTS];
static size_t contexts_free, contexts_taken, objects_free;
static bool first_out; /* the address that has been free longest is taken, not the last one */

static struct context *take_context(void) {
    if (first_out) return free_contexts[contexts_taken++ % ADDRESSES];
    return free_contexts[--contexts_free];
}
/* Compilers cannot turn what calls it into one function. */
static void put_context(struct context *c) {
    *(struct context *volatile *)&free_contexts[contexts_free++ % ADDRESSES] = c;
}

PROBED struct context *context_new(struct context *parent, const char *name) {
    struct context *made = take_context();
    made->parent = parent;
    made->cleared = 0;
    snprintf(made->name, LABEL, "%s", name);
    return made;
}
PROBED void context_free(struct context *c) { put_context(c); }
PROBED void context_clear(struct context *c) { c->cleared++; }
PROBED void context_move(struct context *c, struct context *parent) { c->parent = parent; }
PROBED void context_name(struct context *c, const char *name) { snprintf(c->name, LABEL, "%s", name); }
PROBED void context_give_up(struct context *c) { put_context(c); }
PROBED struct object *object_new(struct context *c, u64 size) {
    struct object *made = free_objects[--objects_free];
    made->size = size + (c->cleared & 0);
    return made;
}
PROBED void object_free(struct object *o) { free_objects[objects_free++] = o; }

/* Its memory is elsewhere afterwards; the old place is used again at once. */
PROBED struct context *context_grow(struct context *c) {
    struct context *made = take_context();
    *made = *c;
    put_context(c);
    return made;
}

/* What goes with a context; compilers cannot turn these into the functions above. */
static void context_gone(struct context *c) { put_context(c); }
static void object_gone(struct object *o) { *(struct object *volatile *)&free_objects[objects_free++] = o; }

/* ---- the driver, with books of its own ---- */

struct node {
    struct context *context; /* NULL: the entry is not used */
    struct gen *gen;
    int parent; /* -1: none */
    int depth;
    char name[LABEL];
};
struct item {
    struct object *object; /* NULL: the entry is not used */
    struct gen *gen;
    int owner; /* -1: its context was given up */
    u64 size;
};

static struct truth truth = {.kind = BULK, .omit = NO_PEAK, .nests = true};
static struct node nodes[CONTEXTS];
static struct item items[OBJECTS];
static u64 names;
static bool moves;

static bool is_within(int node, int other) {
    for (; node >= 0; node = nodes[node].parent)
        if (node == other) return true;
    return false;
}

static void members_gone(int owner) {
    for (int i = 0; i < OBJECTS; i++)
        if (items[i].object && items[i].owner == owner) {
            object_gone(items[i].object);
            items[i].object = NULL;
        }
}

/* Everything that is nested in it. */
static void nested_gone(int parent) {
    for (int n = 0; n < CONTEXTS; n++)
        if (nodes[n].context && nodes[n].parent == parent) {
            nested_gone(n);
            members_gone(n);
            truth_drop_members(&truth, nodes[n].gen);
            truth.ended_with_parent++;
            truth.open_now--;
            context_gone(nodes[n].context);
            nodes[n].context = NULL;
        }
}

/* Its depth is its parent's and one more, and so on down. */
static int height(int node) {
    int most = 0;
    for (int n = 0; n < CONTEXTS; n++)
        if (nodes[n].context && nodes[n].parent == node) {
            int below = height(n);
            if (below > most) most = below;
        }
    return most + 1;
}
static void set_depth(int node, int depth) {
    nodes[node].depth = depth;
    for (int n = 0; n < CONTEXTS; n++)
        if (nodes[n].context && nodes[n].parent == node) set_depth(n, depth + 1);
}

static int any_node(void) {
    int start = (int)random_below(CONTEXTS);
    for (int i = 0; i < CONTEXTS; i++) {
        int n = (start + i) % CONTEXTS;
        if (nodes[n].context) return n;
    }
    return -1;
}

static void make(int most_deep) {
    int at = 0;
    while (at < CONTEXTS && nodes[at].context) at++;
    if (at >= CONTEXTS / 2) return;
    int parent = random_below(8) == 0 ? -1 : any_node();
    if (parent >= 0 && nodes[parent].depth + 1 >= most_deep) return;
    struct node *n = &nodes[at];
    snprintf(n->name, LABEL, "context %llu", (unsigned long long)names++);
    n->context = context_new(parent < 0 ? NULL : nodes[parent].context, n->name);
    n->parent = parent;
    n->depth = parent < 0 ? 0 : nodes[parent].depth + 1;
    n->gen = truth_open(&truth, NULL, 0);
}

static void step(int most_deep) {
    u64 what = random_below(100);
    int n = any_node();
    if (n < 0 || what < 30) {
        make(most_deep);
    } else if (moves && what < 55) {
        nodes[n].context = context_grow(nodes[n].context);
        for (int c = 0; c < CONTEXTS; c++)
            if (nodes[c].context && nodes[c].parent == n) nodes[c].context->parent = nodes[n].context;
    } else if (what < 55) {
        int at = 0;
        while (at < OBJECTS && items[at].object) at++;
        if (at >= OBJECTS / 2) return;
        u64 size = 1 + random_below(100);
        items[at] = (struct item){object_new(nodes[n].context, size), nodes[n].gen, n, size};
        truth_alloc(&truth, nodes[n].gen, size);
    } else if (what < 70) {
        int start = (int)random_below(OBJECTS);
        for (int i = 0; i < OBJECTS; i++) {
            struct item *it = &items[(start + i) % OBJECTS];
            if (!it->object) continue;
            object_free(it->object);
            truth_free(&truth, it->gen, it->size);
            it->object = NULL;
            break;
        }
    } else if (what < 78) {
        snprintf(nodes[n].name, LABEL, "named %llu", (unsigned long long)names++);
        context_name(nodes[n].context, nodes[n].name);
    } else if (what < 88) {
        int to = random_below(4) == 0 ? -1 : any_node();
        if (to >= 0 && (is_within(to, n) || nodes[to].depth + 1 + height(n) > most_deep)) return;
        context_move(nodes[n].context, to < 0 ? NULL : nodes[to].context);
        nodes[n].parent = to;
        set_depth(n, to < 0 ? 0 : nodes[to].depth + 1);
    } else if (what < 92) {
        /* Only what holds nothing else: what would become of it is not for this program to say. */
        if (moves || height(n) > 1) return;
        for (int i = 0; i < OBJECTS; i++)
            if (items[i].object && items[i].owner == n) items[i].owner = -1;
        truth.migrated++;
        truth.migrated_objects += nodes[n].gen->live;
        truth.open_now--;
        context_give_up(nodes[n].context);
        nodes[n].context = NULL;
    } else if (what < 96) {
        nested_gone(n);
        members_gone(n);
        context_clear(nodes[n].context);
        truth_reset(&truth, nodes[n].gen);
    } else {
        nested_gone(n);
        members_gone(n);
        context_free(nodes[n].context);
        truth_close(&truth, nodes[n].gen);
        nodes[n].context = NULL;
    }
}

/* What is open at the end, with its name and parent. */
static void print_open(void) {
    const char *comma = "";
    printf(",\"open\":[");
    for (int n = 0; n < CONTEXTS; n++)
        if (nodes[n].context) {
            int parent = nodes[n].parent;
            printf("%s{\"id\":\"%p\",\"label\":\"%s\",\"parent\":", comma, (void *)nodes[n].context, nodes[n].name);
            if (parent < 0)
                printf("null}");
            else
                printf("\"%p\"}", (void *)nodes[parent].context);
            comma = ",";
        }
    printf("]");
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 steps = option("steps", 20000);
    u64 pause = option("pause", steps + 1);
    int most_deep = (int)option("depth", 12);
    moves = option("moves", 0);
    if (moves) truth.omit |= NO_OBJECTS;
    first_out = option("first_out", 0);
    for (size_t i = 0; i < (first_out ? ADDRESSES : CONTEXTS); i++) free_contexts[contexts_free++] = &contexts[i];
    for (size_t i = 0; i < OBJECTS; i++) free_objects[objects_free++] = &objects[i];
    ready();
    for (u64 i = 0; i < steps; i++) {
        step(most_deep);
        if (i == steps / 2) stop_at("half");
        if (i % pause == pause - 1) {
            printf("AT pause\n");
            fflush(stdout);
            wait_for_line();
        }
    }
    truth_more = print_open;
    truth_print_single(&truth);
    return 0;
}
