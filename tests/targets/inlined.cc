// An arena whose fast path is inlined into every caller, while a copy of the function stays in the program, as with
// templates that are instantiated explicitly: a probe on it never fires.
#include "truth.h"

namespace pool {

struct Arena {
    u64 used = 0;
    __attribute__((noinline, noipa)) void open() { __asm__ volatile("" : : : "memory"); }
    __attribute__((noinline, noipa)) void close() { __asm__ volatile("" : : : "memory"); }
    __attribute__((always_inline, used)) inline u64 take(u64 size) { return used += size; }
};

} // namespace pool

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    pool::Arena arena;
    ready();
    u64 opened = option("opens", 100);
    for (u64 n = 0; n < opened; n++) {
        arena.open();
        arena.take(16);
        arena.take(32);
        arena.close();
    }
    printf("{\"truth\":1,\"opened\":%llu,\"taken\":%llu}\n", (unsigned long long)opened,
           (unsigned long long)arena.used);
    return 0;
}
