/* Granules whose names nobody may read from outside: with `mode=missing` they stand in a page that a pager of this
 * process (userfaultfd) never delivers, so that whoever reads it waits for ever. The other granules have plain names.
 *
 * With `mode=code`, the code that has called all this stands in such a page from then on.
 *
 * A last granule stays open with each kind of name, so that a report wants to know both.
 */
#include "truth.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

enum { PAGE = 4096 };

struct granule { u64 id; struct gen *gen; };

PROBED void hung_open(struct granule *g, const char *name) { __asm__ volatile("" : : "r"(g), "r"(name) : "memory"); }
PROBED void hung_close(struct granule *g, u64 live) { __asm__ volatile("" : : "r"(g), "r"(live) : "memory"); }
PROBED void *hung_alloc(struct granule *g, u64 size) {
    __asm__ volatile("" : : "r"(g) : "memory");
    return malloc(size);
}
PROBED void hung_free(void *object) { free(object); }

static struct truth t = {.kind = DRAIN};

static void *missing_page(int protection, int *to) {
    int pager = *to = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {.start = (u64)page, .len = PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (pager < 0 || page == MAP_FAILED || ioctl(pager, UFFDIO_API, &api) || ioctl(pager, UFFDIO_REGISTER, &range)) {
        fprintf(stderr, "hung_labels: no pager: %s\n", strerror(errno));
        _exit(9);
    }
    return page;
}

static void open_granule(struct granule *g, const char *name) {
    hung_open(g, name);
    g->gen = truth_open(&t, NULL, 0);
}

static void one(const char *name, bool stays) {
    struct granule *g = calloc(1, sizeof *g);
    open_granule(g, name);
    void *object = hung_alloc(g, 64);
    truth_alloc(&t, g->gen, 64);
    if (stays) return;
    hung_free(object);
    truth_free(&t, g->gen, 64);
    hung_close(g, 0);
    truth_close(&t, g->gen);
}

static const char *name = "plain name";
static void *code;

static void all(void) {
    if (code) madvise(code, PAGE, MADV_DONTNEED);
    u64 granules = option("granules", 100);
    for (u64 i = 0; i < granules; i++) one(name, i == 0);
    stop_at("counted");
    truth_print_single(&t);
    fflush(stdout);
    _exit(0);
}

/* A function of a JIT compiler, without unwind information, which calls its argument. */
static void call_from_elsewhere(void) {
    /* push %rbp; mov %rsp, %rbp; call *%rdi; pop %rbp; ret */
    static const u8 bytes[PAGE] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    int pager = -1;
    code = missing_page(PROT_EXEC, &pager);
    struct uffdio_copy give = {.dst = (u64)code, .src = (u64)bytes, .len = PAGE};
    if (ioctl(pager, UFFDIO_COPY, &give)) _exit(9);
    ready();
    ((void (*)(void (*)(void)))code)(all);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    const char *mode = option_text("mode", "plain");
    if (!strcmp(mode, "code")) call_from_elsewhere();
    int pager;
    if (!strcmp(mode, "missing")) name = (char *)missing_page(0, &pager) + 64;
    ready();
    all();
}
