// Memory resources of the standard library: monotonic ones, with buffers of their own and with one of the program's,
// and pools. What they take from upstream is counted there, which tells when a monotonic one has memory.
#include "truth.h"
#include <array>
#include <cstddef>
#include <memory_resource>
#include <vector>

static struct truth t = {};

// Upstream of one resource.
class Upstream : public std::pmr::memory_resource {
  public:
    gen *life = nullptr;
    u64 blocks = 0;
    bool monotonic;
    explicit Upstream(bool monotonic) : monotonic(monotonic) {}

  private:
    void *do_allocate(size_t bytes, size_t alignment) override {
        if (monotonic && blocks++ == 0) life = truth_open(&t, nullptr, bytes);
        if (monotonic) truth_alloc(&t, life, bytes);
        return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void *at, size_t bytes, size_t alignment) override {
        if (monotonic && --blocks == 0) truth_close(&t, life);
        std::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
    }
    bool do_is_equal(const memory_resource &other) const noexcept override { return this == &other; }
};

static void take(std::pmr::memory_resource &resource, u64 count) {
    for (u64 i = 0; i < count; i++) (void)resource.allocate(100 + i);
}

static void monotonic(u64 n) {
    Upstream upstream(true);
    alignas(std::max_align_t) std::array<std::byte, 4096> own;
    if (n % 4 == 0) {
        // What it is given is enough: it never takes anything.
        std::pmr::monotonic_buffer_resource resource(own.data(), own.size(), &upstream);
        take(resource, 10);
    } else {
        std::pmr::monotonic_buffer_resource resource(&upstream);
        take(resource, 10 * n % 97);
        resource.release();
        // Empty: nothing to give back.
        resource.release();
        take(resource, n % 3);
    }
}

template <typename Pool> static void pool(u64 n) {
    Upstream upstream(false);
    Pool pool(&upstream);
    gen *life = truth_open(&t, nullptr, 0);
    void *objects[20];
    u64 count = n % 20;
    for (u64 i = 0; i < count; i++) {
        objects[i] = pool.allocate(8 * (i + 1));
        truth_alloc(&t, life, 8 * (i + 1));
    }
    for (u64 i = n % 3; i < count; i++) {
        pool.deallocate(objects[i], 8 * (i + 1));
        truth_free(&t, life, 8 * (i + 1));
    }
    if (n % 5 == 0) {
        pool.release();
        truth_reset(&t, life);
    }
    // The destructor releases, too.
    truth_reset(&t, life);
    truth_close(&t, life);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    t.kind = BULK;
    ready();
    for (u64 n = 0; n < option("rounds", 300); n++) {
        monotonic(n);
        pool<std::pmr::unsynchronized_pool_resource>(n);
        pool<std::pmr::synchronized_pool_resource>(n);
    }
    // Two that are never released.
    static Upstream upstream(true), other(false);
    auto *growing = new std::pmr::monotonic_buffer_resource(&upstream);
    take(*growing, 1000);
    auto *kept = new std::pmr::unsynchronized_pool_resource(&other);
    gen *life = truth_open(&t, nullptr, 0);
    (void)kept->allocate(16);
    truth_alloc(&t, life, 16);
    t.omit = NO_PEAK; /* a destructor closes the pool before it gives memory back */
    truth_print_single(&t);
    return 0;
}
