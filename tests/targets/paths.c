/* cflags: -fomit-frame-pointer -rdynamic -ldl */
/* Allocates through call paths of every shape, without frame pointers. What each path did, and the functions and
 * lines that it went through, is printed at the end (paths.h).
 *
 * usage: paths [rounds=N] [warm=N: rounds before it is ready] [fork=1: a child does the same]
 *              [plugin=FILE: also from a library that calls back, and is unloaded at the end]
 *              [jit=1: also from generated code, which has a perf map until the end]
 *              [vdso=1: also, once, from a signal handler that interrupts the vDSO]
 *              [stops=1: it stops at `done` (all rounds) and `unloaded` (with what they used gone)]
 *              [deep=N: also from a recursion so deep] [alt=1: also from a signal handler with a stack of its own]
 *              [large=1: also over frames of 20 KB] [kind=drain|bulk|slab]
 */
#include "paths.h"
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

#define DRIVEN(mark) " < drive@" mark " < main@driving < * < _start"
#define PATH(id, through) static struct path id = {.name = #id, .chain = through}

/* Two paths under the common helper, one of them longer. */
PATH(a, "make_object@made < path_a@a" DRIVEN("drive_a"));
FRAME static void path_a(void) {
    make_object(&a); /* mark: a */
    FOLLOWED;
}
PATH(b, "make_object@made < path_b_inner@b_inner < path_b@b" DRIVEN("drive_b"));
FRAME static void path_b_inner(void) {
    make_object(&b); /* mark: b_inner */
    FOLLOWED;
}
/* Exported: it keeps its name where the others lose theirs. */
PROBED void path_b(void) {
    path_b_inner(); /* mark: b */
    FOLLOWED;
}

/* Two calls in one function: two sites. */
PATH(first, "make_object@made < path_twice@first" DRIVEN("drive_twice"));
PATH(second, "make_object@made < path_twice@second" DRIVEN("drive_twice"));
FRAME static void path_twice(void) {
    make_object(&first); /* mark: first */
    FOLLOWED;
    make_object(&second); /* mark: second */
    FOLLOWED;
}

/* A callback of a library. */
PATH(sorting, "make_object@made < compare@sorting < * < path_sort@sort" DRIVEN("drive_sort"));
FRAME static int compare(const void *left, const void *right) {
    make_object(&sorting); /* mark: sorting */
    FOLLOWED;
    return *(const int *)left - *(const int *)right;
}
FRAME static void path_sort(void) {
    int two[2] = {2, 1};
    qsort(two, 2, sizeof two[0], compare); /* mark: sort */
    FOLLOWED;
}

/* A signal handler, entered from a system call of the C library. */
PATH(signalled, "make_object@made < on_signal@on_signal < __restore_rt < * < path_signal@signal" DRIVEN("drive_signal"));
FRAME static void on_signal(int number) {
    (void)number;
    make_object(&signalled); /* mark: on_signal */
    FOLLOWED;
}
FRAME static void path_signal(void) {
    raise(SIGUSR1); /* mark: signal */
    FOLLOWED;
}

/* A signal handler that interrupts an instruction which is no call. What stands before it is on another line. */
PATH(faulted, "make_object@made < on_fault@on_fault < __restore_rt < path_fault@fault" DRIVEN("drive_fault"));
FRAME static void on_fault(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    make_object(&faulted); /* mark: on_fault */
    FOLLOWED;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}
FRAME static void path_fault(void) {
    __asm__ volatile("nop");
    __asm__ volatile("ud2" : : : "memory"); /* mark: fault */
    __asm__ volatile("nop");
}

/* The same on a stack of the handler's own (`alt=1`). */
PATH(alternate, "make_object@made < on_alternate@on_alternate < * < path_alternate@alternate" DRIVEN("drive_alternate"));
FRAME static void on_alternate(int number) {
    (void)number;
    make_object(&alternate); /* mark: on_alternate */
    FOLLOWED;
}
FRAME static void path_alternate(void) {
    raise(SIGUSR2); /* mark: alternate */
    FOLLOWED;
}

/* A frame that is aligned and sized at run time, of a function with arguments on the stack: where the caller's frame
 * begins stands in memory. */
PATH(aligned, "make_object@made < path_aligned@aligned" DRIVEN("drive_aligned"));
FRAME static u64 path_aligned(u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, u64 i, u64 j) {
    char line[64] __attribute__((aligned(64)));
    char *more = alloca(j);
    __asm__ volatile("" : : "r"(line), "r"(more) : "memory");
    make_object(&aligned); /* mark: aligned */
    __asm__ volatile("" : : "r"(line), "r"(more) : "memory");
    return c + d + e + f + g + h + i + j;
}

/* A frame of a size that is known at run time only: a frame pointer is set up. */
PATH(sized, "make_object@made < path_sized@sized" DRIVEN("drive_sized"));
FRAME static void path_sized(u64 size) {
    char *line = alloca(size);
    __asm__ volatile("" : : "r"(line) : "memory");
    make_object(&sized); /* mark: sized */
    __asm__ volatile("" : : "r"(line) : "memory");
}

/* The frame pointer's register holds something else, here and in what calls it. */
PATH(busy, "make_object@made < path_busy_inner@busy_inner < path_busy@busy" DRIVEN("drive_busy"));
FRAME static void path_busy_inner(void) {
    __asm__ volatile("mov $0x1234, %%rbp" : : : "rbp", "rbx", "r12");
    make_object(&busy); /* mark: busy_inner */
    __asm__ volatile("" : : : "rbp");
}
FRAME static void path_busy(void) {
    __asm__ volatile("xor %%ebp, %%ebp" : : : "rbp", "r13");
    path_busy_inner(); /* mark: busy */
    __asm__ volatile("" : : : "rbp");
}

/* Arguments on the stack: the frame changes in the midst of the function. */
PATH(pushed, "make_object@made < many_arguments@many < path_pushed@pushed" DRIVEN("drive_pushed"));
FRAME static u64 many_arguments(u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, u64 i, u64 j, u64 k) {
    make_object(&pushed); /* mark: many */
    FOLLOWED;
    return c + d + e + f + g + h + i + j + k;
}
FRAME static u64 path_pushed(u64 x) {
    u64 sum = many_arguments(x, 2, 3, 4, 5, 6, x, 8, 9); /* mark: pushed */
    FOLLOWED;
    return sum;
}

/* A tail call leaves no frame. */
PATH(tail, "make_object@made" DRIVEN("drive_tail"));
FRAME static void path_tail(void) { make_object(&tail); }

/* Recursion: each round is a frame. */
PATH(recursive, "make_object@made < recurse@bottom < recurse@recurse < recurse@recurse < recurse@recurse"
                " < recurse@recurse" DRIVEN("drive_recursive"));
static struct path deep = {.name = "deep", .chain = "make_object@made < recurse@bottom < recurse@recurse…", .end = "too_deep"};
FRAME static void recurse(struct path *path, u64 more) {
    if (more) recurse(path, more - 1); /* mark: recurse */
    else make_object(path);            /* mark: bottom */
    FOLLOWED;
}

/* Frames of 20 KB (`large=1`). */
PATH(large, "make_object@made < path_large_inner@large_inner < path_large@large" DRIVEN("drive_large"));
FRAME static void path_large_inner(void) {
    char room[20000];
    __asm__ volatile("" : : "r"(room) : "memory");
    make_object(&large); /* mark: large_inner */
    __asm__ volatile("" : : "r"(room) : "memory");
}
FRAME static void path_large(void) {
    char room[20000];
    __asm__ volatile("" : : "r"(room) : "memory");
    path_large_inner(); /* mark: large */
    __asm__ volatile("" : : "r"(room) : "memory");
}

/* A thread begins at its own start. */
PATH(threaded, "make_object@made < worker@worker < *");
FRAME static void *worker(void *argument) {
    pthread_setname_np(pthread_self(), "paths-worker");
    make_object(&threaded); /* mark: worker */
    FOLLOWED;
    return argument;
}
FRAME static void path_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker, NULL)) _exit(8);
    pthread_join(thread, NULL);
}

/* Through a function that is an alloc itself. */
PATH(wrapped, "path_wrap@wrapping < path_wrapped@wrapped" DRIVEN("drive_wrapped"));
FRAME static void path_wrapped(void) {
    struct thing *t = paths_thing(&wrapped, paths_now);
    path_wrap(t->batch->id, t->id, t->size); /* mark: wrapped */
    paths_made(t);
}

/* Through a function that opens a granule and is judged at its return: its return address is not there either. */
PATH(created, "make_object@made < path_create@creating < create@create" DRIVEN("drive_create"));
FRAME static void create(void) {
    struct batch *outer = paths_now, *b = paths_opened(++paths_next_batch);
    paths_now = b;
    path_create(b->id, PATHS_BYTES, &created); /* mark: create */
    paths_close(b);
    paths_now = outer;
}

/* Through a library that calls back: places_plugin.c. */
PATH(plugged, "make_object@made < called_back@called_back < plugin_opens@plugin < plugin_serve < path_plugin@plugged"
              DRIVEN("drive_plugin"));
static void *library;
static void (*plugin_serve)(u64 (*)(u64), void (*)(u64));
FRAME static u64 called_back(u64 number) {
    make_object(&plugged); /* mark: called_back */
    FOLLOWED;
    return number;
}
FRAME static void nothing(u64 number) { __asm__ volatile("" : : "r"(number)); }
FRAME static void path_plugin(void) {
    plugin_serve(called_back, nothing); /* mark: plugged */
    FOLLOWED;
}

/* Through code that is made while it runs, with a frame pointer (`jit=1`). */
PATH(generated, "make_object@made < from_jit@from_jit < made while it runs < path_jit@jit" DRIVEN("drive_jit"));
static u8 *code;
static char code_map[64];
FRAME static void from_jit(void) {
    make_object(&generated); /* mark: from_jit */
    FOLLOWED;
}
FRAME static void path_jit(void) {
    ((void (*)(void (*)(void)))(uintptr_t)code)(from_jit); /* mark: jit */
    FOLLOWED;
}
static void make_code(void) {
    /* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
    static const u8 bytes[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) _exit(8);
    memcpy(code, bytes, sizeof bytes);
    snprintf(code_map, sizeof code_map, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(code_map, "w");
    if (!map) _exit(9);
    fprintf(map, "%llx %llx made while it runs\n", (unsigned long long)(uintptr_t)code, (unsigned long long)sizeof bytes);
    fclose(map);
}

/* A signal handler that interrupts the vDSO, wherever in it (`vdso=1`). */
PATH(timed, "make_object@made < on_tick@on_tick < __restore_rt < * < path_vdso@vdso" DRIVEN("drive_vdso"));
static volatile bool ticked;
FRAME static void on_tick(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    u64 at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP], vdso = getauxval(AT_SYSINFO_EHDR);
    if (ticked || at - vdso >= 8192) return;
    ticked = true;
    make_object(&timed); /* mark: on_tick */
    FOLLOWED;
}
FRAME static void path_vdso(void) {
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    struct timespec now;
    setitimer(ITIMER_REAL, &often, NULL);
    while (!ticked) clock_gettime(CLOCK_MONOTONIC, &now); /* mark: vdso */
    setitimer(ITIMER_REAL, &never, NULL);
}

static u64 depth;
static bool alternates, larges, interrupts;

FRAME static void drive(u64 times) {
    for (u64 i = 0; i < times; i++) path_a(); /* mark: drive_a */
    path_b();                                 /* mark: drive_b */
    path_twice();                             /* mark: drive_twice */
    path_sort();                              /* mark: drive_sort */
    path_signal();                            /* mark: drive_signal */
    path_fault();                             /* mark: drive_fault */
    path_aligned(1, 2, 3, 4, 5, 6, 7, times); /* mark: drive_aligned */
    path_sized(100 * times);                  /* mark: drive_sized */
    path_busy();                              /* mark: drive_busy */
    path_pushed(times);                       /* mark: drive_pushed */
    path_tail();                              /* mark: drive_tail */
    recurse(&recursive, 4);                   /* mark: drive_recursive */
    path_thread();
    path_wrapped();                   /* mark: drive_wrapped */
    create();                         /* mark: drive_create */
    if (library) path_plugin();       /* mark: drive_plugin */
    if (depth) recurse(&deep, depth);
    if (alternates) path_alternate(); /* mark: drive_alternate */
    if (larges) path_large();         /* mark: drive_large */
    if (code) path_jit();             /* mark: drive_jit */
    if (interrupts && !ticked && !paths_warming)
        path_vdso(); /* mark: drive_vdso */
    FOLLOWED;
}

static void handle(int number, void (*handler)(int), void (*informed)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_flags = flags};
    if (informed) action.sa_sigaction = informed;
    else action.sa_handler = handler;
    if (sigaction(number, &action, NULL)) _exit(8);
}

static void handlers(void) {
    static char other[65536];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    if (sigaltstack(&stack, NULL)) _exit(8);
    handle(SIGUSR1, on_signal, NULL, 0);
    handle(SIGUSR2, on_alternate, NULL, SA_ONSTACK);
    handle(SIGILL, NULL, on_fault, SA_SIGINFO);
    handle(SIGALRM, NULL, on_tick, SA_SIGINFO | SA_RESTART);
}

static void load(const char *file) {
    library = dlopen(file, RTLD_NOW);
    plugin_serve = library ? (void (*)(u64 (*)(u64), void (*)(u64)))dlsym(library, "plugin_serve") : NULL;
    if (!plugin_serve) {
        fprintf(stderr, "target: %s\n", dlerror());
        _exit(9);
    }
}

static void know_paths(void) {
    struct path *const always[] = {&a,     &b,      &first, &second, &sorting,   &signalled, &faulted, &aligned,
                                   &sized, &busy,   &pushed, &tail,  &recursive, &threaded,  &wrapped, &created};
    for (u64 i = 0; i < sizeof always / sizeof *always; i++) paths_know(always[i]);
    if (library) paths_know(&plugged);
    if (depth) paths_know(&deep);
    if (alternates) paths_know(&alternate);
    if (larges) paths_know(&large);
    if (code) paths_know(&generated);
    if (interrupts) paths_know(&timed);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 rounds = option("rounds", 100), warm = option("warm", 0);
    const char *file = option_text("plugin", NULL);
    depth = option("deep", 0), alternates = option("alt", 0), larges = option("large", 0);
    interrupts = option("vdso", 0);
    const char *kind = option_text("kind", "drain");
    paths_truth.kind = !strcmp(kind, "bulk") ? BULK : !strcmp(kind, "slab") ? SLAB_HEAP : DRAIN;
    if (file) load(file);
    if (option("jit", 0)) make_code();
    handlers();
    know_paths();
    paths_warming = true;
    for (u64 n = 0; n < warm + rounds; n++) {
        if (n == warm) {
            paths_warmed();
            ready();
            if (option("fork", 0) && fork() == 0) truth_role = "child";
        }
        paths_begin_round();
        drive(2); /* mark: driving */
        paths_end_round();
    }
    stop_at("done");
    if (library) dlclose(library);
    if (code && (munmap(code, 4096) || unlink(code_map))) _exit(9);
    stop_at("unloaded");
    /* A line at a time: what the child has printed is whole. */
    while (wait(NULL) > 0) {}
    paths_finish();
    return 0;
}
