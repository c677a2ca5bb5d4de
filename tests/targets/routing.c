/* cflags: -fno-omit-frame-pointer -fno-optimize-sibling-calls */
/* A service whose routing of long-lived objects goes wrong when it is told so: SIGUSR1 switches the bug on, SIGUSR2
 * off. Each request has a granule of its own; with the bug on, every second one keeps its session in it. Sessions end
 * `life` requests later. Runs at `rate` requests per second until a line comes on stdin, after which all that is left
 * is freed and the truth is printed.
 */
#include "arena.h"
#include <poll.h>
#include <signal.h>
#include <time.h>

enum { SESSIONS = 2048 };

static struct arena arena;
static struct truth t = {.omit = NO_PEAK};
static struct object *sessions[SESSIONS];
static u64 life;
static volatile sig_atomic_t wrong;

static void on(int signal) { wrong = signal == SIGUSR1; }

#define FRAME __attribute__((noinline, noipa, used))

FRAME struct object *make_session(u64 id, struct gen *g) {
    struct object *o = do_alloc(&t, &arena, id, g, 512);
    __asm__ volatile("" : : "r"(o) : "memory");
    return o;
}

FRAME void handle_request(u64 n) {
    u64 id = 0x1000 * (n + 1);
    struct gen *g = do_open(&t, &arena, id, 4096, NULL);
    struct object *buffer = do_alloc(&t, &arena, id, g, 100);
    if (sessions[n % SESSIONS]) {
        do_free(&t, &arena, sessions[n % SESSIONS]);
        sessions[n % SESSIONS] = NULL;
    }
    if (wrong && n % 2) sessions[(n + life) % SESSIONS] = make_session(id, g);
    do_free(&t, &arena, buffer);
    do_close(&t, &arena, id, g);
    __asm__ volatile("" : : : "memory");
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 rate = option("rate", 1000);
    life = option("life", 2000);
    if (life >= SESSIONS) return 2;
    t.instance = &arena;
    signal(SIGUSR1, on);
    signal(SIGUSR2, on);
    ready();
    struct pollfd in = {.fd = 0, .events = POLLIN};
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    u64 n = 0;
    while (poll(&in, 1, 1) <= 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long passed = (now.tv_sec - start.tv_sec) * 1000LL + (now.tv_nsec - start.tv_nsec) / 1000000;
        for (u64 due = (u64)passed * rate / 1000; n < due; n++) handle_request(n);
    }
    for (u64 i = 0; i < SESSIONS; i++)
        if (sessions[i]) do_free(&t, &arena, sessions[i]);
    truth_print_single(&t);
    return 0;
}
