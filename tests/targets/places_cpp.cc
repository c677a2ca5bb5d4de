// Granules opened from C++: a method of a class template in a namespace.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

extern "C" __attribute__((noinline, noipa, used)) uint64_t place_open(uint64_t id) {
    __asm__ volatile("" : : "r"(id) : "memory");
    return id;
}
extern "C" __attribute__((noinline, noipa, used)) void place_close(uint64_t id) {
    __asm__ volatile("" : : "r"(id) : "memory");
}

namespace shop {
template <typename T> struct Cart {
    T last;
    __attribute__((noinline)) void fill(T id) {
        last = place_open(id); /* mark: cart */
        place_close(last);
        __asm__ volatile("" : : : "memory");
    }
};
}

int main() {
    shop::Cart<unsigned long> cart{};
    if (!getenv("DRAINPROF_GO")) {
        printf("READY %d\n", static_cast<int>(getpid()));
        fflush(stdout);
        while (getchar() != '\n') {}
    }
    for (int i = 0; i < 2; i++) cart.fill(100 + i);
    printf("{\"truth\":1,\"role\":\"main\",\"pid\":%d,\"allocators\":[]}\n", static_cast<int>(getpid()));
    return 0;
}
