/* A heap whose pages come and go: whoever finds one present and reads it a moment later may wait for ever.
 *
 * A pager of this process (userfaultfd) has `pages` pages in the middle of the heap. They are taken away and given back in
 * turn, without a word to readers that wait: who has met a page that was away waits on. Prints `AT caught` when the
 * first one does, and goes on until its stdin ends. No truths.
 */
#include "truth.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

enum { PAGE = 4096, BLOCK = 1000 };

static void fail(const char *what) {
    fprintf(stderr, "hung_heap: %s: %s\n", what, strerror(errno));
    _exit(9);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 pages = option("pages", 256), size = pages * PAGE;
    char *first = malloc(BLOCK), *last = first;
    while (last < first + size + 64 * PAGE) last = memset(malloc(BLOCK), 1, BLOCK);
    char *range = (char *)(((u64)first + 32 * PAGE) & ~(u64)(PAGE - 1));
    char *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) fail("mmap");
    memcpy(copy, range, size);
    int pager = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register area = {.range = {.start = (u64)range, .len = size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (pager < 0 || ioctl(pager, UFFDIO_API, &api) || ioctl(pager, UFFDIO_REGISTER, &area)) fail("userfaultfd");
    ready();
    struct pollfd waits[] = {{.fd = 0, .events = POLLIN}, {.fd = pager, .events = POLLIN}};
    for (bool is_caught = false;;) {
        if (madvise(range, size, MADV_DONTNEED)) fail("madvise");
        struct uffdio_copy give = {.dst = (u64)range, .src = (u64)copy, .len = size, .mode = UFFDIO_COPY_MODE_DONTWAKE};
        if (ioctl(pager, UFFDIO_COPY, &give)) fail("UFFDIO_COPY");
        if (poll(waits, 2, 0) < 0) fail("poll");
        if (waits[0].revents) return 0;
        if (!is_caught && waits[1].revents & POLLIN) {
            is_caught = true;
            printf("AT caught\n");
            fflush(stdout);
        }
    }
}
