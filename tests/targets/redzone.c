/* USDT probes with a nop of five bytes behind the one of one byte, as newer headers make them: in a leaf function that keeps
 * words below its stack pointer, which a call in the nop's place would overwrite, and in one that calls others.
 */
#include "truth.h"
#include "usdt.h"

#define WORDS "8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128"
#define NOP5 ".byte 0x0f,0x1f,0x44,0,0\n"
#define FUNCTION(name, body) \
    __asm__(".globl " name "\n.type " name ",@function\n.p2align 4\n" name ":\n" body "\tret\n.size " name ",.-" name "\n")

/* Returns how many of its words were overwritten. */
FUNCTION("zone_open", ".irp at," WORDS "\n\tmov %rdi,-\\at(%rsp)\n.endr\n" USDT_NOTE("zone", "open", "0", "8@%rdi") NOP5
         "\txor %eax,%eax\n.irp at," WORDS "\n\tcmp %rdi,-\\at(%rsp)\n\tsetne %dl\n\tmovzbl %dl,%edx\n\tadd %edx,%eax\n.endr\n");
FUNCTION("zone_nothing", "");
FUNCTION("zone_close", "\tpush %rbx\n" USDT_NOTE("zone", "close", "0", "8@%rdi") NOP5 "\tcall zone_nothing\n\tpop %rbx\n");

int zone_open(u64 id);
void zone_close(u64 id);

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 times = option("times", 20000), wrong = 0;
    struct truth t = {.kind = BULK, .omit = NO_OBJECTS};
    ready();
    for (u64 id = 1; id <= times; id++) {
        wrong += zone_open(id);
        struct gen *g = truth_open(&t, NULL, 0);
        zone_close(id);
        truth_close(&t, g);
    }
    truth_print_single(&t);
    if (wrong) fprintf(stderr, "%llu words below the stack pointer were overwritten\n", (unsigned long long)wrong);
    return wrong != 0;
}
