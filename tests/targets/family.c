/* Processes that make processes. `mode`:
 *   plain        no child
 *   fork         the child goes on allocating in its copy of the memory, and frees what the parent allocated
 *   vfork        the child calls exec (into `plain`) at once
 *   exec         prints its truth, then calls exec into `plain` in the same process
 *   exec_inside  as exec, but from the middle of an alloc
 *   exec_thread  as exec, but from a second thread
 * Each incarnation prints its own truth; `role` tells them apart.
 */
#include "arena.h"
#include <pthread.h>
#include <sys/wait.h>

static struct arena arena;
static struct truth t;

static void work(u64 first, u64 closes, u64 p) {
    for (u64 n = first; n < first + closes; n++) {
        struct gen *g = do_open(&t, &arena, n, 4096, NULL);
        struct object *o = do_alloc(&t, &arena, n, g, 100);
        if (!chance(p)) do_free(&t, &arena, o);
        do_close(&t, &arena, n, g);
    }
}

static void exec_plain(void) {
    setenv("DRAINPROF_GO", "1", 1);
    char *const args[] = {truth_argv[0], "mode=plain", "role=after", "closes=70", "p=5000", NULL};
    execv("/proc/self/exe", args);
    _exit(8);
}

static void *exec_in_thread(void *unused) {
    exec_plain();
    return unused;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    const char *mode = option_text("mode", "plain");
    u64 closes = option("closes", 300), p = option("p", 3000);
    truth_role = option_text("role", "main");
    t.instance = &arena;
    ready();
    work(0, closes, p);
    if (!strcmp(mode, "fork")) {
        struct gen *g = do_open(&t, &arena, 100000, 4096, NULL);
        struct object *shared = do_alloc(&t, &arena, 100000, g, 64);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            truth_role = "child";
            memset(&t, 0, sizeof t);
            t.instance = &arena;
            truth_random_state ^= 77;
            arena_free(&arena, shared); /* to the child, an object from before its time */
            truth_losses.unmatched_frees++;
            work(200000, closes / 2, p);
            truth_print_single(&t);
            _exit(0);
        }
        work(300000, closes, p);
        if (waitpid(child, NULL, 0) != child) return 7;
        do_close(&t, &arena, 100000, g); /* pinned here: the child's free was the child's */
    } else if (!strcmp(mode, "vfork")) {
        fflush(stdout);
        pid_t child = vfork();
        if (child == 0) exec_plain();
        if (waitpid(child, NULL, 0) != child) return 7;
        work(300000, closes, p);
    } else if (!strncmp(mode, "exec", 4)) {
        if (!strcmp(mode, "exec_inside")) truth_losses.calls_cut_by_exec++;
        truth_print_single(&t);
        if (!strcmp(mode, "exec_inside")) {
            arena.inside = exec_plain;
            arena_alloc(&arena, closes - 1, 10);
        }
        if (!strcmp(mode, "exec_thread")) {
            pthread_t thread;
            pthread_create(&thread, NULL, exec_in_thread, NULL);
            pthread_join(thread, NULL);
        }
        exec_plain();
    }
    truth_print_single(&t);
    return 0;
}
