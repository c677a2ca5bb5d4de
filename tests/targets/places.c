/* cflags: -rdynamic -ldl */
/* Granules opened at places whose names, files and lines the test knows: lines that it looks for have a mark.
 *
 * Every place opens another number of granules, so that a report's places can be told apart by their counts.
 * `plugin=FILE` opens granules from a library that is unloaded again; `jit=1` from code that is made while it runs.
 */
#include "truth.h"
#include <dlfcn.h>
#include <sys/mman.h>

PROBED u64 place_open(u64 id) {
    __asm__ volatile("" : : "r"(id) : "memory");
    return id;
}
PROBED void place_close(u64 id) { __asm__ volatile("" : : "r"(id) : "memory"); }

static u64 next;

/* Exported: a stripped program still has its name. */
PROBED void exported_caller(void) {
    place_close(place_open(++next)); /* mark: exported */
}

/* Of this file alone: a stripped program has no name for it. */
__attribute__((noinline, noipa, used)) static void hidden_caller(void) {
    u64 id = place_open(++next); /* mark: hidden */
    place_close(id);
}

static inline __attribute__((always_inline)) u64 inlined_opener(void) {
    u64 id = place_open(++next); /* mark: inlined */
    __asm__ volatile("" : : : "memory");
    return id;
}
PROBED void caller_of_inlined(void) {
    place_close(inlined_opener()); /* mark: around */
}

static void plugin(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    void (*serve)(u64 (*)(u64), void (*)(u64)) =
        library ? (void (*)(u64 (*)(u64), void (*)(u64)))dlsym(library, "plugin_serve") : NULL;
    if (!serve) {
        fprintf(stderr, "target: %s\n", dlerror());
        _exit(9);
    }
    for (int i = 0; i < 5; i++) serve(place_open, place_close);
    stop_at("loaded");
    dlclose(library);
    stop_at("unloaded");
}

#ifdef __x86_64__
/* sub rsp,8; mov rdi,ID; mov rax,place_open; call rax; add rsp,8; ret */
static void jit(void) {
    u8 *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    u64 id = 7000, open = (u64)(uintptr_t)place_open;
    u8 *at = code;
    memcpy(at, "\x48\x83\xec\x08\x48\xbf", 6), at += 6;
    memcpy(at, &id, 8), at += 8;
    memcpy(at, "\x48\xb8", 2), at += 2;
    memcpy(at, &open, 8), at += 8;
    memcpy(at, "\xff\xd0\x48\x83\xc4\x08\xc3", 7), at += 7;
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    if (!map) _exit(9);
    fprintf(map, "%llx %llx made while it runs\n", (unsigned long long)(uintptr_t)code, (unsigned long long)(at - code));
    fclose(map);
    for (int i = 0; i < 6; i++) {
        ((void (*)(void))(uintptr_t)code)();
        place_close(id);
    }
    stop_at("made");
    unlink(path);
}
#else
static void jit(void) { _exit(9); }
#endif

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    ready();
    for (int i = 0; i < 2; i++) exported_caller();
    for (int i = 0; i < 3; i++) hidden_caller();
    for (int i = 0; i < 4; i++) caller_of_inlined();
    const char *path = option_text("plugin", NULL);
    if (path) plugin(path);
    if (option("jit", 0)) jit();
    stop_at("end");
    printf("{\"truth\":1,\"role\":\"main\",\"pid\":%d,\"allocators\":[]}\n", (int)getpid());
    return 0;
}
