/* A child that loads a library which its parent does not have, and allocates from it `count` times: `plugin=FILE`. */
#include "cells.h"
#include <dlfcn.h>
#include <sys/wait.h>

#define FRAME __attribute__((noinline, noipa, used))

static struct heap heap;
static struct cell cells[1 << 10], *made;
static u64 next_cell;

FRAME static u64 make(u64 size) {
    u64 done = heap_alloc(&heap, 1, size % MOST, &cells[next_cell++], &made);
    FOLLOWED;
    return done;
}

FRAME static void take_back(u64 object) { __asm__ volatile("" : : "r"(object) : "memory"); }

FRAME static void child(u64 count) {
    void *library = dlopen(option_text("plugin", ""), RTLD_NOW);
    void (*serve)(u64 (*)(u64), void (*)(u64)) =
        library ? (void (*)(u64 (*)(u64), void (*)(u64)))dlsym(library, "plugin_serve") : NULL;
    if (!serve) _exit(7);
    for (u64 i = 0; i < count; i++) serve(make, take_back);
    stop_at("served");
    FOLLOWED;
}

FRAME static void parent(void) {
    make(1);
    FOLLOWED;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    ready();
    heap_open(&heap, 1, 4096);
    parent();
    if (fork() == 0) {
        child(option("count", 200));
        _exit(0);
    }
    int status;
    return wait(&status) < 0 || status != 0;
}
