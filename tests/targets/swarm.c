/* A process that makes many. `mode`:
 *   hold    `children` children at once; each waits until the parent's next line
 *   brief   `children` children, one after the other; each has `closes` closes and ends
 *   exec    executes itself `children` times; the last one waits, and has `closes` closes
 *   storm   waits, then executes `with` (this program in another file) and itself in turn, `children` times in all; the
 *           last one waits
 * The parent has `closes` closes. The truth is its own, or that of the program that was executed last.
 */
#include "arena.h"
#include <sys/wait.h>

static struct arena arena;
static struct truth t;

static void work(u64 closes) {
    for (u64 n = 0; n < closes; n++) {
        struct gen *g = do_open(&t, &arena, 0x1000 * (n + 1), 4096, NULL);
        struct object *o = do_alloc(&t, &arena, 0x1000 * (n + 1), g, 100);
        do_free(&t, &arena, o);
        do_close(&t, &arena, 0x1000 * (n + 1), g);
    }
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    const char *mode = option_text("mode", "hold");
    u64 children = option("children", 100), closes = option("closes", 20);
    t.instance = &arena;
    if (!strcmp(mode, "exec") && children) {
        char rest[32], own[32];
        snprintf(rest, sizeof rest, "children=%llu", (unsigned long long)children - 1);
        snprintf(own, sizeof own, "closes=%llu", (unsigned long long)closes);
        char *const args[] = {argv[0], "mode=exec", rest, own, NULL};
        work(closes);
        execv("/proc/self/exe", args);
        return 8;
    }
    if (!strcmp(mode, "storm")) {
        static char own[4096];
        static char rest[32], with[4200], count[32];
        if (readlink("/proc/self/exe", own, sizeof own - 1) < 0) return 8;
        u64 begun = option("begun", 0);
        if (!begun) ready();
        if (begun < children) {
            snprintf(rest, sizeof rest, "begun=%llu", (unsigned long long)begun + 1);
            snprintf(count, sizeof count, "children=%llu", (unsigned long long)children);
            snprintf(with, sizeof with, "with=%s", own);
            char *const args[] = {argv[0], "mode=storm", rest, count, with, "stops=1", NULL};
            execv(option_text("with", own), args);
            return 8;
        }
        work(closes);
        stop_at("last");
        truth_print_single(&t);
        return 0;
    }
    ready();
    int hold[2];
    if (pipe(hold)) return 7;
    bool brief = !strcmp(mode, "brief");
    for (u64 i = 0; strcmp(mode, "exec") && i < children; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) return 6;
        if (child == 0) {
            close(hold[1]);
            if (brief) work(closes);
            char c;
            if (!brief && read(hold[0], &c, 1) != 0) _exit(5);
            _exit(0);
        }
        if (brief && waitpid(child, NULL, 0) != child) return 7;
    }
    work(closes);
    stop_at("made");
    close(hold[1]);
    while (waitpid(-1, NULL, 0) > 0) {}
    stop_at("end");
    truth_print_single(&t);
    return 0;
}
