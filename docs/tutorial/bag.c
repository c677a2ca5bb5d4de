/* The allocator of the tutorial: see bag.h. */
#include "bag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned long bags_held;

struct bag *bag_open(struct bag *parent, const char *name) {
    struct bag *bag = malloc(BAG_BYTES);
    if (!bag) abort();
    memset(bag, 0, sizeof *bag);
    bag->parent = parent;
    snprintf(bag->name, sizeof bag->name, "%s", name);
    bag->next = (char *)(bag + 1);
    bag->end = (char *)bag + BAG_BYTES;
    return bag;
}

/* A request: the memory goes once nothing in the bag is in use any more. */
void bag_close(struct bag *bag) {
    bag->closed = 1;
    if (bag->live == 0)
        free(bag);
    else
        bags_held++;
}

void *bag_alloc(struct bag *bag, size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (size > (size_t)(bag->end - bag->next)) return NULL;
    void *object = bag->next;
    bag->next += size;
    bag->live++;
    return object;
}

char *bag_strdup(struct bag *bag, const char *text) {
    char *copy = bag_alloc(bag, strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

void bag_free(struct bag *bag, void *object) {
    (void)object;
    if (--bag->live == 0 && bag->closed) {
        bags_held--;
        free(bag);
    }
}
