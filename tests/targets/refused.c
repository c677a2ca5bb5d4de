/* A function with an instruction that no kernel lets be probed: an atomic one. `refused_open` is
 *     +0 mov, +3 push (the cheapest), +4 pop, +5 lock incl, ret
 */
#include "truth.h"

__asm__(".globl refused_open\n.type refused_open,@function\n.p2align 4\nrefused_open:\n"
        "\tmov %rdi,%rax\n\tpush %rbx\n\tpop %rbx\n\tlock incl -8(%rsp)\n\tret\n"
        ".size refused_open,.-refused_open\n");
void refused_open(u64 id);

PROBED void refused_close(u64 id) { __asm__ volatile("" : : "r"(id) : "memory"); }

int main(int argc, char **argv) {
    static struct truth t = {.kind = BULK, .omit = NO_OBJECTS};
    truth_begin(argc, argv);
    ready();
    for (u64 id = 1; id <= 100; id++) {
        refused_open(id);
        struct gen *g = truth_open(&t, NULL, 0);
        refused_close(id);
        truth_close(&t, g);
    }
    truth_print_single(&t);
    return 0;
}
