/* USDT probes with a nop of five or of ten bytes behind the one of one byte, as headers make them: in leaf functions that
 * keep words below their stack pointer, which a call in the nop's place could overwrite, and in functions that call others.
 */
#include "truth.h"
#include "usdt.h"

#define WORDS "8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128"
#define NOP5 ".byte 0x0f,0x1f,0x44,0,0\n"
#define NOP10 ".byte 0x66,0x2e,0x0f,0x1f,0x84,0,0,0,0,0\n"
/* Aligned, so that no nop lies in two pages. */
#define FUNCTION(name, body) \
    __asm__(".globl " name "\n.type " name ",@function\n.p2align 8\n" name ":\n" body "\tret\n.size " name ",.-" name "\n")
/* Returns how many of its words were overwritten. */
#define LEAF(name, nop) FUNCTION(name, ".irp at," WORDS "\n\tmov %rdi,-\\at(%rsp)\n.endr\n" \
    USDT_NOTE("zone", "open", "0", "8@%rdi") nop "\txor %eax,%eax\n" \
    ".irp at," WORDS "\n\tcmp %rdi,-\\at(%rsp)\n\tsetne %dl\n\tmovzbl %dl,%edx\n\tadd %edx,%eax\n.endr\n")
#define CALLER(name, nop) FUNCTION(name, \
    "\tpush %rbx\n" USDT_NOTE("zone", "close", "0", "8@%rdi") nop "\tcall zone_nothing\n\tpop %rbx\n")

LEAF("zone_open", NOP5);
LEAF("zone_open_ten", NOP10);
FUNCTION("zone_nothing", "");
CALLER("zone_close", NOP5);
CALLER("zone_close_ten", NOP10);

int zone_open(u64 id);
int zone_open_ten(u64 id);
void zone_close(u64 id);
void zone_close_ten(u64 id);

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 times = option("times", 20000), wrong = 0;
    struct truth t = {.kind = BULK, .omit = NO_OBJECTS};
    ready();
    for (u64 id = 1; id <= times; id++) {
        wrong += id % 2 ? zone_open(id) : zone_open_ten(id);
        struct gen *g = truth_open(&t, NULL, 0);
        if (id / 2 % 2) zone_close(id);
        else zone_close_ten(id);
        truth_close(&t, g);
    }
    truth_print_single(&t);
    if (wrong) fprintf(stderr, "%llu words below the stack pointer were overwritten\n", (unsigned long long)wrong);
    return wrong != 0;
}
