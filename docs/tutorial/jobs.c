/* The program of the tutorial: each job opens a bag, works in it, and closes it. Every tenth job remembers its
 * title, and the title pins the bag.
 */
#include "bag.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *volatile remembered;

static void job(struct bag *all, unsigned long number) {
    struct bag *bag = bag_open(all, "job");
    void *parts[8];
    for (int i = 0; i < 8; i++) parts[i] = bag_alloc(bag, 64);
    char *title = bag_strdup(bag, "a title");
    for (int i = 0; i < 8; i++) bag_free(bag, parts[i]);
    if (number % 10 == 0)
        remembered = title;
    else
        bag_free(bag, title);
    bag_close(bag);
}

int main(int argc, char **argv) {
    struct bag *all = bag_open(NULL, "program");
    unsigned long jobs = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    for (unsigned long number = 1; number <= jobs; number++) job(all, number);
    if (jobs) {
        printf("%lu jobs done, %lu closed bags are still in use\n", jobs, bags_held);
        return 0;
    }
    /* No number: a thousand jobs a second, for a minute or until somebody ends it. */
    struct timespec pause = {.tv_nsec = 1000000};
    for (unsigned long number = 1; number <= 60000; number++) {
        job(all, number);
        nanosleep(&pause, NULL);
    }
    return 0;
}
