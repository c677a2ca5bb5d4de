/* Functions that begin with nops, as compilers make them for tracers, one that has a nop of ten bytes while it keeps words
 * below its stack pointer, and children that are forked meanwhile and call them all: each child has to end well.
 */
#include <sys/wait.h>

#include "truth.h"

#define NOP5 "\t.byte 0x0f,0x1f,0x44,0,0\n"
#define NOP10 "\t.byte 0x66,0x2e,0x0f,0x1f,0x84,0,0,0,0,0\n"
#define WORDS "8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128"
/* Aligned, so that no nop lies in two pages. */
#define FUNCTION(name, body) \
    __asm__(".globl " #name "\n.type " #name ",@function\n.p2align 8\n" #name ":\n" body "\tret\n.size " #name ",.-" #name "\n"); \
    u64 name(u64 id)
#define BODY "\txor %eax,%eax\n\tpush %rbx\n\tpop %rbx\n"

FUNCTION(nops_open_one, "\tnop\n" BODY);
FUNCTION(nops_open_five, NOP5 BODY);
FUNCTION(nops_open_ten, NOP10 BODY);
FUNCTION(nops_open_twice_five, NOP5 NOP5 BODY);
FUNCTION(nops_open_marked, "\tendbr64\n" NOP5 BODY);
/* Returns how many of its words were overwritten. */
FUNCTION(nops_open_words, ".irp at," WORDS "\n\tmov %rdi,-\\at(%rsp)\n.endr\n" NOP10 "\txor %eax,%eax\n"
         ".irp at," WORDS "\n\tcmp %rdi,-\\at(%rsp)\n\tsetne %dl\n\tmovzbl %dl,%edx\n\tadd %edx,%eax\n.endr\n");
FUNCTION(nops_close, NOP10 BODY);

static u64 (*const opens[])(u64) = {
    nops_open_one, nops_open_five, nops_open_ten, nops_open_twice_five, nops_open_marked, nops_open_words,
};
enum { OPENS = sizeof opens / sizeof *opens };

/* Whether a child that calls all functions ends well. */
static bool child_ends_well(void) {
    pid_t child = fork();
    if (child == 0) {
        u64 wrong = 0;
        for (u64 i = 0; i < OPENS; i++) wrong += opens[i](i);
        _exit(wrong + nops_close(0) != 0);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 times = option("times", 12000), wrong = 0, ended = 0;
    struct truth t = {.kind = BULK, .omit = NO_OBJECTS};
    ready();
    for (u64 id = 1; id <= times; id++) {
        wrong += opens[id % OPENS](id);
        struct gen *g = truth_open(&t, NULL, 0);
        nops_close(id);
        truth_close(&t, g);
        if (id % 1000 == 0) ended += !child_ends_well();
    }
    truth_print_single(&t);
    if (wrong) fprintf(stderr, "%llu words below the stack pointer were overwritten\n", (unsigned long long)wrong);
    if (ended) fprintf(stderr, "%llu children did not end well\n", (unsigned long long)ended);
    return wrong || ended;
}
