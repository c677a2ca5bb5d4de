// Every way to allocate that C and C++ have, `rounds` times over: the same objects whichever malloc serves them.
// Prints how many were made and how many bytes are live at the end. With `wait` it says READY first, and begins when
// it is told to.
//
// What the libraries allocate of their own accord is the same with any number of rounds; the test subtracts it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <new>
#include <unistd.h>

static uint64_t made, gone, live_bytes;

static void *kept(void *object, uint64_t size) {
    made++;
    live_bytes += size;
    __asm__ volatile("" : : "r"(object) : "memory");
    return object;
}

static void freed(uint64_t size) {
    gone++;
    live_bytes -= size;
}

struct alignas(128) wide {
    char bytes[128];
};

static void round_of(uint64_t n) {
    void *p = kept(malloc(40), 40);
    if (n % 2) free(p), freed(40);
    p = kept(calloc(3, 50), 150);
    if (n % 3) free(p), freed(150);
    // From nothing, to more, to less, to more than a page, and back.
    p = kept(realloc(nullptr, 30), 30);
    uint64_t size = 30;
    static const uint64_t sizes[] = {300, 100, 9000, 60};
    for (uint64_t next : sizes) {
        void *moved = realloc(p, next);
        live_bytes += next - size;
        size = next;
        p = moved;
    }
    if (n % 4) free(p), freed(60);
    void *q = nullptr;
    if (posix_memalign(&q, 64, 100)) abort();
    kept(q, 100);
    if (n % 2) free(q), freed(100);
    p = kept(aligned_alloc(256, 512), 512);
    free(p), freed(512);
    p = kept(memalign(32, 70), 70);
    free(p), freed(70);
    p = kept(valloc(200), 200);
    free(p), freed(200);
    p = kept(operator new(24), 24);
    operator delete(p), freed(24);
    p = kept(operator new[](80), 80);
    operator delete[](p), freed(80);
    p = kept(operator new(90, std::nothrow), 90);
    operator delete(p, std::nothrow), freed(90);
    p = kept(operator new(48), 48);
    operator delete(p, (std::size_t)48), freed(48);
    p = kept(operator new[](56), 56);
    operator delete[](p, (std::size_t)56), freed(56);
    auto *w = new wide;
    kept(w, 128);
    if (n % 2) delete w, freed(128);
    p = kept(operator new(256, std::align_val_t(128)), 256);
    operator delete(p, std::align_val_t(128)), freed(256);
    p = kept(operator new(192, std::align_val_t(64), std::nothrow), 192);
    operator delete(p, std::align_val_t(64), std::nothrow), freed(192);
    // Texts whose ends lie differently in words.
    char text[400];
    memset(text, 'x', sizeof text);
    size = n * 7 % sizeof text;
    text[size++] = 0;
    p = kept(strdup(text), size);
    if (n % 2) free(p), freed(size);
    p = kept(strndup("eight by eight", 8), 9);
    if (n % 3) free(p), freed(9);
    p = kept(reallocarray(nullptr, 3, 16), 48);
    if (n % 2) free(p), freed(48);
    free(nullptr);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], nullptr, 0) : 0;
    char line[100];
    if (argc > 2 && !strcmp(argv[2], "wait")) {
        int length = snprintf(line, sizeof line, "READY %d\n", (int)getpid());
        if (write(1, line, length) != length || read(0, line, 1) != 1) _exit(1);
    }
    for (uint64_t n = 0; n < rounds; n++) round_of(n);
    int length = snprintf(line, sizeof line, "MADE %lu FREED %lu LIVE %lu\n", made, gone, live_bytes);
    // Nothing is cleaned up: what is live stays so.
    _exit(write(1, line, length) == length ? 0 : 1);
}
