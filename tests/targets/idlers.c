/* Processes that do nothing: `children` of them, all with the heap that their parent had: objects of 16 to 515 bytes, of which
 * every second one was freed. Prints what glibc says of that, then READY, and ends with its input.
 */
#include "truth.h"
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    static char buffer[1 << 12];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    u64 children = option("children", 10), objects = option("objects", 2000);
    static void *all[100000];
    if (objects > 100000) return 2;
    for (u64 i = 0; i < objects; i++) {
        size_t size = 16 + i * 37 % 500;
        all[i] = memset(malloc(size), 1, size);
    }
    for (u64 i = 0; i < objects; i += 2) free(all[i]);
    struct mallinfo2 info = mallinfo2();
    printf("IDLERS {\"in_use\":%zu,\"free\":%zu,\"mapped\":%zu}\n", info.uordblks, info.fordblks, info.hblkhd);
    fflush(stdout);
    for (u64 i = 0; i < children; i++) {
        pid_t child = fork();
        if (child < 0) return 3;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
    }
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
