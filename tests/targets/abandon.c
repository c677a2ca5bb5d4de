/* Calls that never return: `mode=longjmp` leaves an alloc by longjmp, `mode=thread_exit` ends the thread
 * in the middle of an alloc by the bare system call, `mode=thread_unwind` by pthread_exit, which unwinds,
 * `mode=process_exit` ends the process there. The objects that were never
 * handed out do not count; what comes before and after does.
 */
#include "arena.h"
#include <pthread.h>
#include <setjmp.h>
#include <sys/syscall.h>

static struct arena arena;
static struct truth t = {.instance = &arena};
static jmp_buf out;

static void jump(void) { longjmp(out, 1); }
static void leave_thread(void) { syscall(SYS_exit, 0); }
static void unwind_thread(void) { pthread_exit(NULL); }
static bool unwind;
static void leave_process(void) { _exit(0); }

/* Inlined, so that its calls stand in the same frame as an abandoned one: a call is known to be abandoned
 * once its thread calls again from there. */
static inline __attribute__((always_inline)) void one_good(u64 id, bool pin) {
    struct gen *g = do_open(&t, &arena, id, 4096, NULL);
    struct object *o = do_alloc(&t, &arena, id, g, 50);
    if (!pin) do_free(&t, &arena, o);
    do_close(&t, &arena, id, g);
}

static void *thread(void *argument) {
    u64 id = (u64)(uintptr_t)argument;
    one_good(id, true);
    arena.inside = unwind ? unwind_thread : leave_thread;
    arena_alloc(&arena, id, 20);
    return NULL;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    const char *mode = option_text("mode", "longjmp");
    volatile u64 n = 0;
    u64 times = option("times", 100);
    ready();
    for (n = 0; n < times; n++) {
        one_good(2 * n, n % 3 == 0);
        if (!strcmp(mode, "longjmp")) {
            arena.inside = jump;
            if (setjmp(out) == 0) arena_alloc(&arena, 2 * n, 20);
            truth_losses.call_abandoned++;
        } else if (!strncmp(mode, "thread_", 7)) {
            unwind = !strcmp(mode, "thread_unwind");
            pthread_t id;
            pthread_create(&id, NULL, thread, (void *)(uintptr_t)(2 * n + 1));
            pthread_join(id, NULL);
            truth_losses.call_abandoned++;
        }
        arena.inside = NULL;
    }
    arena_alloc(&arena, 0, 5000); /* fails, from where the abandoned one was called */
    one_good(1000000, false); /* the last abandoned call shows once its thread calls again */
    if (!strcmp(mode, "process_exit")) {
        truth_print_single(&t);
        arena.inside = leave_process;
        arena_alloc(&arena, 0, 20);
    }
    truth_print_single(&t);
    return 0;
}
