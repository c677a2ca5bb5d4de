/* Memory contexts with the names and the memory layout of PostgreSQL's (`VERSION`: 15, 16 or 17), for what is not
 * installed: which functions there are, what stands before a chunk, in a block and in a context, and how a context's
 * children go with it. How memory is found is not PostgreSQL's: blocks are filled from their beginning, and given back
 * with the context.
 */
#include "truth.h"

#ifndef VERSION
#define VERSION 16
#endif

enum { ASET = 3, GENERATION = 4, SLAB = 5, ALIGNED = 6, BUMP = 7, METHODS = 8 };
enum { BLOCK = 8192, KEPT = 1024, LARGE = 2000, NO_OOM = 2, TOO_MUCH = 1 << 30 };

struct context {
    u32 type;
    u8 is_reset, in_critical_section;
    u64 mem_allocated;
    const void *methods;
    struct context *parent, *firstchild, *prevchild, *nextchild;
    const char *name, *ident;
    void *callbacks;
    /* What follows is each type's own, and here our own. */
    u32 method;
    struct part *parts;
    char *next, *end; /* of the newest block */
};
struct part {
    struct part *before;
    u64 size;
    char *block;
};

struct context *CurrentMemoryContext;
static const u64 header[METHODS] = {[ASET] = 40, [GENERATION] = 56, [SLAB] = 48, [BUMP] = 32};

/* ---- the allocator: it keeps no books for us ---- */

static char *take_block(struct context *c, u64 size) {
    struct part *part = calloc(1, sizeof *part);
    *part = (struct part){c->parts, size, calloc(1, size)};
    c->parts = part;
    c->mem_allocated += size;
#if VERSION >= 16
    if (c->method != BUMP) *(struct context **)(part->block + (c->method == GENERATION ? 16 : 0)) = c;
#endif
    return part->block;
}

static void give_back(struct context *c) {
    while (c->parts) {
        struct part *part = c->parts;
        c->parts = part->before;
        free(part->block);
        free(part);
    }
    c->mem_allocated = KEPT;
    c->next = c->end = NULL;
}

#if VERSION >= 16
enum { METHOD_BITS = VERSION == 16 ? 3 : 4 };
static u64 packed(u64 distance, u64 value, u64 method) {
    return distance << 34 | value << (METHOD_BITS + 1) | method;
}
#endif

static void *take(struct context *c, u64 size, int flags) {
    if (size >= TOO_MUCH) {
        if (flags & NO_OOM) return NULL;
        abort();
    }
    c->is_reset = 0;
    size = (size + 7) & ~7ull;
#if VERSION == 15
    u64 before = 16;
#else
    u64 before = c->method == BUMP ? 0 : 8;
#endif
    bool alone = size > LARGE && c->method != SLAB;
    char *block = c->parts ? c->parts->block : NULL, *chunk;
    if (alone) {
        block = take_block(c, header[c->method] + before + size);
        chunk = block + header[c->method];
        c->next = c->end = NULL;
    } else {
        if ((u64)(c->end - c->next) < before + size) {
            block = take_block(c, BLOCK);
            c->next = block + header[c->method];
            c->end = block + BLOCK;
        }
        chunk = c->next;
        c->next += before + size;
    }
#if VERSION == 15
    ((u64 *)chunk)[0] = size;
    ((struct context **)chunk)[1] = c;
#else
    /* An AllocSet notes the size's class there, the others the size. */
    u64 value = c->method == ASET ? size >> 4 : size;
    if (c->method == BUMP)
        ;
    else if (alone)
        *(u64 *)chunk = (0xb1a8db858eb6efbaull >> (METHOD_BITS + 1) << (METHOD_BITS + 1)) | 1ull << METHOD_BITS | c->method;
    else
        *(u64 *)chunk = packed((u64)(chunk - block), value, c->method);
#endif
    return chunk + before;
}

PROBED void MemoryContextCreate(struct context *node, u32 tag, u32 method, struct context *parent, const char *name) {
    node->type = tag;
    node->is_reset = 1;
    node->in_critical_section = 0;
    node->mem_allocated = 0;
    node->method = method;
    node->parent = parent;
    node->firstchild = node->prevchild = NULL;
    node->nextchild = parent ? parent->firstchild : NULL;
    if (node->nextchild) node->nextchild->prevchild = node;
    if (parent) parent->firstchild = node;
    node->name = name;
}

PROBED void MemoryContextSetParent(struct context *c, struct context *parent) {
    if (c->parent == parent) return;
    if (c->parent) {
        if (c->prevchild)
            c->prevchild->nextchild = c->nextchild;
        else
            c->parent->firstchild = c->nextchild;
        if (c->nextchild) c->nextchild->prevchild = c->prevchild;
    }
    c->parent = parent;
    c->prevchild = NULL;
    c->nextchild = parent ? parent->firstchild : NULL;
    if (c->nextchild) c->nextchild->prevchild = c;
    if (parent) parent->firstchild = c;
}

/* Contexts that went are kept for reuse, last out first in. */
static struct context *kept;
static void gone(struct context *c) {
    give_back(c);
    c->nextchild = kept;
    kept = c;
}
#if VERSION == 15
PROBED bool MemoryContextContains(struct context *c, void *chunk) { return ((struct context **)chunk)[-1] == c; }
static void delete_by_method(struct context *c) { gone(c); }
#else
PROBED void AllocSetDelete(struct context *c) { gone(c); }
PROBED void GenerationDelete(struct context *c) { gone(c); __asm__ volatile("nop"); }
PROBED void SlabDelete(struct context *c) { gone(c); __asm__ volatile("nop; nop"); }
#if VERSION >= 17
PROBED void BumpDelete(struct context *c) { gone(c); __asm__ volatile("nop; nop; nop"); }
#endif
#ifdef CHECKED
/* Which builds for developers have, whose chunks look otherwise. */
PROBED void AllocSetCheck(struct context *c) { (void)c; }
#endif
static void delete_by_method(struct context *c) {
    static void (*const by[METHODS])(struct context *) = {
        [ASET] = AllocSetDelete, [GENERATION] = GenerationDelete, [SLAB] = SlabDelete,
#if VERSION >= 17
        [BUMP] = BumpDelete,
#endif
    };
    by[c->method](c);
}
#endif

PROBED u64 MemoryContextMemAllocated(struct context *c, bool recurse) {
    u64 total = c->mem_allocated;
    for (struct context *child = c->firstchild; recurse && child; child = child->nextchild)
        total += MemoryContextMemAllocated(child, true);
    return total;
}

static void delete_only(struct context *c) {
    MemoryContextSetParent(c, NULL);
    delete_by_method(c);
}

PROBED void MemoryContextDelete(struct context *c) {
#if VERSION >= 17
    /* From the bottom up, without calling itself. */
    for (struct context *at = c;;) {
        while (at->firstchild) at = at->firstchild;
        struct context *parent = at->parent;
        delete_only(at);
        if (at == c) break;
        at = parent;
    }
#else
    while (c->firstchild) MemoryContextDelete(c->firstchild);
    delete_only(c);
#endif
}

PROBED void MemoryContextReset(struct context *c) {
    while (c->firstchild) MemoryContextDelete(c->firstchild);
    if (c->is_reset) return;
    give_back(c);
    c->is_reset = 1;
}

PROBED void *palloc(u64 size) { return take(CurrentMemoryContext, size, 0); }
PROBED void *palloc0(u64 size) { return memset(take(CurrentMemoryContext, size, 0), 0, size); }
PROBED void *palloc_extended(u64 size, int flags) { return take(CurrentMemoryContext, size, flags); }
PROBED void *MemoryContextAlloc(struct context *c, u64 size) { return take(c, size, 0); }
PROBED void *MemoryContextAllocZero(struct context *c, u64 size) { return memset(take(c, size, 0), 0, size); }
PROBED void *MemoryContextAllocExtended(struct context *c, u64 size, int flags) { return take(c, size, flags); }
PROBED void *MemoryContextAllocHuge(struct context *c, u64 size) { return take(c, size, 0); }
#if VERSION <= 16
PROBED void *MemoryContextAllocZeroAligned(struct context *c, u64 size) { return memset(take(c, size, 0), 0, size); }
#endif

#if VERSION >= 16
/* In front of it stands where the chunk begins that it is in. */
PROBED void *MemoryContextAllocAligned(struct context *c, u64 size, u64 to, int flags) {
    char *chunk = MemoryContextAllocExtended(c, size + to + 8, flags);
    if (!chunk || c->method == BUMP) return chunk;
    char *aligned = (char *)(((uintptr_t)chunk + 8 + to - 1) & ~(to - 1));
    ((u64 *)aligned)[-1] = packed((u64)(aligned - 8 - chunk), to, ALIGNED);
    return aligned;
}
#endif

PROBED void pfree(void *chunk) {
    u64 word = ((u64 *)chunk)[-1];
#if VERSION >= 16
    if ((word & 7) == ALIGNED) pfree((char *)chunk - 8 - (word >> 34 & 0x3ffffffe));
#endif
    *(volatile u8 *)chunk = (u8)word;
}

/* ---- the driver, with books of its own ---- */

enum { CONTEXTS = 256, CHUNKS = 4096 };
struct node {
    struct context *context; /* NULL: the entry is not used */
    struct gen *gen;
    int parent; /* -1: none */
    bool used;  /* since it was made or reset */
    char name[24];
};
struct item {
    char *chunk; /* NULL: the entry is not used */
    int owner;
};
static struct truth truth = {.kind = BULK, .omit = NO_PEAK | NO_BYTES};
static struct node nodes[CONTEXTS];
static struct item items[CHUNKS];
static u64 names, moved, refused, aligned, given_back;

static int any_node(void) {
    int start = (int)random_below(CONTEXTS);
    for (int i = 0; i < CONTEXTS; i++)
        if (nodes[(start + i) % CONTEXTS].context) return (start + i) % CONTEXTS;
    return -1;
}

static void members_gone(int owner) {
    for (int i = 0; i < CHUNKS; i++)
        if (items[i].chunk && items[i].owner == owner) items[i].chunk = NULL;
}

static void node_gone(int n) {
    for (int child = 0; child < CONTEXTS; child++)
        if (nodes[child].context && nodes[child].parent == n) node_gone(child);
    members_gone(n);
    given_back += nodes[n].context->mem_allocated;
    truth_close(&truth, nodes[n].gen);
    nodes[n].context = NULL;
}

static void make(void) {
    static const u32 methods[] = {ASET, ASET, GENERATION, SLAB, VERSION >= 17 ? BUMP : ASET};
    int n = 0;
    while (n < CONTEXTS && nodes[n].context) n++;
    if (n == CONTEXTS) return;
    struct node *node = &nodes[n];
    node->parent = random_below(8) == 0 ? -1 : any_node();
    node->used = false;
    snprintf(node->name, sizeof node->name, "context %llu", (unsigned long long)names++);
    struct context *made = kept;
    if (made)
        kept = made->nextchild;
    else
        made = calloc(1, sizeof *made);
    u32 method = methods[random_below(5)];
    struct context *parent = node->parent < 0 ? NULL : nodes[node->parent].context;
    MemoryContextCreate(made, 470 + method, method, parent, node->name);
    made->mem_allocated = KEPT; /* the first block, in which the context itself is */
    node->context = made;
    node->gen = truth_open(&truth, NULL, 0);
}

static void *allocate(struct context *c, u64 size) {
    CurrentMemoryContext = c;
    switch (random_below(9)) {
    case 0: return palloc(size);
    case 1: return palloc0(size);
    case 2: return palloc_extended(size, NO_OOM);
    case 3: return MemoryContextAlloc(c, size);
    case 4: return MemoryContextAllocZero(c, size);
    case 5: return MemoryContextAllocExtended(c, size, 0);
    case 6: return MemoryContextAllocHuge(c, size);
#if VERSION <= 16
    case 7: return MemoryContextAllocZeroAligned(c, size);
#endif
#if VERSION >= 16
    case 8: aligned++; return MemoryContextAllocAligned(c, size, 64, 0);
#endif
    default: return palloc(size);
    }
}

static bool is_within(int node, int other) {
    for (; node >= 0; node = nodes[node].parent)
        if (node == other) return true;
    return false;
}

static void step(void) {
    u64 what = random_below(100);
    int n = any_node();
    if (n < 0 || what < 15) {
        make();
    } else if (what < 60) {
        if (random_below(50) == 0) {
            CurrentMemoryContext = nodes[n].context;
            if (palloc_extended(TOO_MUCH, NO_OOM)) abort();
            refused++;
        }
        int at = 0;
        while (at < CHUNKS && items[at].chunk) at++;
        if (at == CHUNKS) return;
        u64 size = 1 + random_below(random_below(10) == 0 ? 20000 : 300);
        if (nodes[n].context->method == SLAB) size = 120;
        items[at] = (struct item){allocate(nodes[n].context, size), n};
        nodes[n].used = true;
        truth_alloc(&truth, nodes[n].gen, 0);
    } else if (what < 85) {
        int start = (int)random_below(CHUNKS);
        for (int i = 0; i < CHUNKS; i++) {
            struct item *it = &items[(start + i) % CHUNKS];
            /* What a bump context has handed out cannot be freed. */
            if (!it->chunk || nodes[it->owner].context->method == BUMP) continue;
            pfree(it->chunk);
            truth_free(&truth, nodes[it->owner].gen, 0);
            it->chunk = NULL;
            break;
        }
    } else if (what < 92) {
        int to = random_below(4) == 0 ? -1 : any_node();
        if (to >= 0 && is_within(to, n)) return;
        MemoryContextSetParent(nodes[n].context, to < 0 ? NULL : nodes[to].context);
        nodes[n].parent = to;
        moved++;
    } else if (what < 97) {
        for (int child = 0; child < CONTEXTS; child++)
            if (nodes[child].context && nodes[child].parent == n) node_gone(child);
        members_gone(n);
        if (nodes[n].used) truth_reset(&truth, nodes[n].gen);
        nodes[n].used = false;
        MemoryContextReset(nodes[n].context);
    } else {
        struct context *context = nodes[n].context;
        node_gone(n);
        MemoryContextDelete(context);
    }
}

/* What is open at the end, and what the test wants to know of the way there. */
static void print_more(void) {
    const char *comma = "";
    printf(",\"moved\":%llu,\"refused\":%llu,\"aligned\":%llu,\"given_back\":%llu,\"open\":[", (unsigned long long)moved,
           (unsigned long long)refused, (unsigned long long)aligned, (unsigned long long)given_back);
    for (int n = 0; n < CONTEXTS; n++)
        if (nodes[n].context) {
            printf("%s{\"id\":\"%p\",\"label\":\"%s\",\"parent\":", comma, (void *)nodes[n].context, nodes[n].name);
            if (nodes[n].parent < 0)
                printf("null}");
            else
                printf("\"%p\"}", (void *)nodes[nodes[n].parent].context);
            comma = ",";
        }
    printf("]");
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 steps = option("steps", 20000);
    ready();
    for (u64 i = 0; i < steps; i++) step();
    if (MemoryContextMemAllocated(nodes[any_node()].context, true) >= TOO_MUCH) abort();
    truth_more = print_more;
    truth_print_single(&truth);
    return 0;
}
