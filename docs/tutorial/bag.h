/* Bags: memory of which nothing is given back before the whole bag is. */
#ifndef BAG_H
#define BAG_H
#include <stddef.h>
#include <stdint.h>

#define BAG_BYTES 16384

struct bag {
    struct bag *parent;
    char name[16];
    uint32_t live; /* objects in use */
    uint32_t closed;
    char *next, *end;
};

extern unsigned long bags_held; /* closed, but still in use */

struct bag *bag_open(struct bag *parent, const char *name);
void bag_close(struct bag *bag);
void *bag_alloc(struct bag *bag, size_t size);
char *bag_strdup(struct bag *bag, const char *text);
void bag_free(struct bag *bag, void *object);

#endif
