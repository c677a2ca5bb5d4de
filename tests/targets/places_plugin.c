/* A library that `places` loads, opens granules from, and unloads. */
#include <stdint.h>

__attribute__((noinline)) static void plugin_opens(uint64_t (*open)(uint64_t), void (*close)(uint64_t)) {
    uint64_t id = open(5000); /* mark: plugin */
    close(id);
    __asm__ volatile("" : : : "memory");
}

void plugin_serve(uint64_t (*open)(uint64_t), void (*close)(uint64_t)) {
    plugin_opens(open, close);
    __asm__ volatile("" : : : "memory");
}
