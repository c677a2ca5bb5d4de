/* A child that loads a library which its parent does not have, and allocates from it `count` times: `plugin=FILE`. */
#include "truth.h"
#include <dlfcn.h>
#include <sys/wait.h>

#define FRAME __attribute__((noinline, noipa, used))
#define FOLLOWED __asm__ volatile("" : : : "memory")

static u64 next_object;

PROBED void heap_open(void *heap, u64 id, u64 bytes) { __asm__ volatile("" : : "r"(heap), "r"(id), "r"(bytes) : "memory"); }
PROBED void heap_close(void *heap, u64 id) { __asm__ volatile("" : : "r"(heap), "r"(id) : "memory"); }
PROBED u64 heap_alloc(void *heap, u64 id, u64 size) {
    __asm__ volatile("" : : "r"(heap), "r"(id), "r"(size) : "memory");
    return ++next_object;
}
PROBED bool heap_free(void *heap, u64 object) {
    __asm__ volatile("" : : "r"(heap), "r"(object) : "memory");
    return true;
}
PROBED u64 heap_realloc(void *heap, u64 object, u64 id, u64 size) {
    __asm__ volatile("" : : "r"(heap), "r"(id), "r"(size) : "memory");
    return object;
}

FRAME static u64 make(u64 id) {
    u64 object = heap_alloc(&next_object, 1, id);
    FOLLOWED;
    return object;
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
    heap_open(&next_object, 1, 4096);
    parent();
    if (fork() == 0) {
        child(option("count", 200));
        _exit(0);
    }
    int status;
    return wait(&status) < 0 || status != 0;
}
