// Arenas in C++, each found by patterns over demangled names: a class template whose constructor and destructor
// have several symbols, a virtual destructor, a virtual base, `operator new` of a class, a memory resource of the
// standard library that is called virtually, and a namespace without a name.
//
// Each arena is a granule known by its address. Destroying one frees nothing, so that objects pin it.
#include "truth.h"
#include <memory_resource>
#include <new>
#include <vector>

// Kept out of line, with all its arguments; C1 and C2 (D1 and D2) stay as they are.
#define SHOWN __attribute__((noinline, noipa))
// A call that is no tail call, so that it returns here.
#define DONE __asm__ volatile("" : : : "memory")

static struct truth t = {};

// The books, beside the calls.
struct Book {
    gen *life;
    u64 size;
    void *object;
};

namespace pool {

// Two constructors and instances for two types: four functions, one pattern.
template <typename T> class Arena {
    u64 taken = 0;

  public:
    SHOWN Arena() { DONE; }
    SHOWN explicit Arena(u64 before) : taken(before) { DONE; }
    SHOWN ~Arena() { DONE; }
    SHOWN T *take(u64 count) {
        taken++;
        return static_cast<T *>(malloc(count * sizeof(T)));
    }
    SHOWN void give(T *object) {
        taken--;
        free(object);
        DONE;
    }
};

// A virtual destructor has a third symbol, which destroys and deletes: it calls the second.
class Region {
  public:
    SHOWN Region() { DONE; }
    SHOWN virtual ~Region() { DONE; }
};

// `new (region) Node` allocates from the region.
struct Node {
    u64 key, value;
    SHOWN static void *operator new(size_t size, Region &) { return malloc(size); }
    SHOWN static void operator delete(void *object) {
        free(object);
        DONE;
    }
    static void operator delete(void *object, Region &) { free(object); }
};

// The base is constructed by the most derived class alone: C1 and C2 differ.
struct Common {
    u64 shared = 1;
};
class Shared : virtual public Common {
  public:
    SHOWN Shared() { DONE; }
    SHOWN ~Shared() { DONE; }
};
class Derived : public Shared {};

// The buffers come from upstream; what is counted is what containers ask for.
class Counted : public std::pmr::monotonic_buffer_resource {
  public:
    SHOWN Counted() { DONE; }
    SHOWN ~Counted() override { DONE; }

  protected:
    SHOWN void *do_allocate(size_t bytes, size_t alignment) override {
        void *object = std::pmr::monotonic_buffer_resource::do_allocate(bytes, alignment);
        DONE;
        return object;
    }
    SHOWN void do_deallocate(void *, size_t, size_t) override { DONE; }
};

} // namespace pool

namespace {

class Scratch {
  public:
    SHOWN Scratch() { DONE; }
    SHOWN ~Scratch() { DONE; }
};

template <typename T, typename... A> gen *construct(void *at, A... arguments) {
    new (at) T(arguments...);
    return truth_open(&t, nullptr, 0);
}

// An arena of a type: opened, filled, emptied but for what is kept, destroyed.
template <typename T, typename... A> void templated(u64 n, std::vector<Book> &kept, A... arguments) {
    // Never freed: an address has one life.
    auto *arena = static_cast<pool::Arena<T> *>(malloc(sizeof(pool::Arena<T>)));
    gen *life = construct<pool::Arena<T>>(arena, arguments...);
    for (u64 i = 0; i < n % 4; i++) {
        T *object = arena->take(i + 1);
        truth_alloc(&t, life, i + 1);
        if (i == 0 && n % 5 == 0) {
            kept.push_back({life, i + 1, object});
            continue;
        }
        arena->give(object);
        truth_free(&t, life, i + 1);
    }
    arena->~Arena();
    truth_close(&t, life);
}

void deleted(u64 n) {
    auto *region = new pool::Region;
    gen *life = truth_open(&t, nullptr, 0);
    auto *node = new (*region) pool::Node{n, n};
    truth_alloc(&t, life, sizeof(pool::Node));
    if (n % 3) {
        delete node;
        truth_free(&t, life, sizeof(pool::Node));
    }
    // Through the third symbol of the destructor.
    pool::Region *volatile hidden = region;
    delete hidden;
    truth_close(&t, life);
}

void resource() {
    auto *arena = static_cast<pool::Counted *>(malloc(sizeof(pool::Counted)));
    gen *life = construct<pool::Counted>(arena);
    {
        std::pmr::vector<u64> numbers(10, arena);
        truth_alloc(&t, life, 10 * sizeof(u64));
        numbers.resize(11);
        truth_alloc(&t, life, 20 * sizeof(u64));
        truth_free(&t, life, 10 * sizeof(u64));
    }
    truth_free(&t, life, 20 * sizeof(u64));
    arena->~Counted();
    truth_close(&t, life);
}

template <typename T> void empty() {
    auto *arena = static_cast<T *>(malloc(sizeof(T)));
    gen *life = construct<T>(arena);
    arena->~T();
    truth_close(&t, life);
}

} // namespace

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    ready();
    std::vector<Book> kept;
    for (u64 n = 0; n < option("rounds", 500); n++) {
        templated<u64>(n, kept);
        templated<char>(n, kept, n);
        deleted(n);
        resource();
        empty<pool::Shared>();
        empty<pool::Derived>();
        empty<Scratch>();
    }
    truth_print_single(&t);
    return 0;
}
