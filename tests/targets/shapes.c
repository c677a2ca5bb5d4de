/* cflags: -fcf-protection=full -mno-red-zone */
/* Functions whose first instructions are awkward to probe, written in assembly so that they are what they
 * are: arguments that are moved, pushed and stored before anything cheap comes; an early exit; loops at
 * the top; jumps back behind the first instruction; a table of jumps; a second way in; recursion.
 * Each call is one event with the ids that it was called with; registers are spoilt on purpose.
 */
#include "truth.h"

#define SHAPE(name, body) \
    __asm__(".globl " name "\n.type " name ",@function\n.p2align 4\n" name ":\n" body ".size " name ",.-" name "\n")

/* All take (pool, size, id) and return nothing. `spoil` makes the argument registers useless. */
#define SPOIL "\txor %edi,%edi\n\txor %esi,%esi\n\tmov $77,%edx\n"

/* Id and size move to other registers before the first push; the pool moves away and comes back. */
SHAPE("shape_moved", "\tendbr64\n\tmov %rdx,%r11\n\tmov %rsi,%r10\n\tmov %rdi,%rax\n" SPOIL "\tmov %rax,%rdi\n\tpush %rbx\n\tpop %rbx\n\tret\n");
/* The id and the pool go to the stack before the first push. */
SHAPE("shape_pushed", "\tsub $24,%rsp\n\tmov %rdx,8(%rsp)\n\tmov %rdi,(%rsp)\n\tmov %rsi,16(%rsp)\n" SPOIL "\tpush %rbp\n\tpop %rbp\n\tadd $24,%rsp\n\tret\n");
/* As compilers begin: a mark for indirect jumps, a frame. */
SHAPE("shape_framed", "\tendbr64\n\tpush %rbp\n\tmov %rsp,%rbp\n" SPOIL "\tpop %rbp\n\tret\n");
/* Stores relative to a copy of the stack pointer, then something cheap. */
SHAPE("shape_stored", "\tlea -32(%rsp),%rsp\n\tmov %rsp,%r10\n\tmov %rdi,8(%r10)\n\tmov %rsi,16(%r10)\n\tmov %rdx,24(%r10)\n" SPOIL "\tpush %rax\n\tpop %rax\n\tlea 32(%rsp),%rsp\n\tret\n");
/* Leaves at once where the id is odd. */
SHAPE("shape_early_exit", "\ttest $1,%dl\n\tjne 1f\n\tpush %rbx\n" SPOIL "\tpop %rbx\n1:\tret\n");
/* A loop whose head is the second instruction, and ends with a cheap one. */
SHAPE("shape_loop", "\tmov $3,%ecx\n1:\tdec %ecx\n\tjnz 1b\n\tret\n");
/* Jumps back to its second instruction, which is cheap. */
SHAPE("shape_jump_back", "\tmov $3,%ecx\n1:\tnop\n\tdec %ecx\n\tjz 2f\n\tjmp 1b\n2:\tret\n");
/* Jumps through a table, to its second instruction among others, which is cheap. */
SHAPE("shape_table", "\tmov $3,%ecx\n1:\tnop\n\tdec %ecx\n\tjz 2f\n\tlea shape_targets(%rip),%rax\n\tmov (%rax),%rax\n\tjmp *%rax\n2:\tret\n"
      ".pushsection .data.rel.local,\"aw\"\nshape_targets:\t.quad 1b\n.popsection\n");
/* Is called at its second instruction as well, by another function, which is no call of this one. */
SHAPE("shape_two_ways", "\tmov %rdx,%rax\nshape_side_door:\tpush %rbx\n\tpop %rbx\n\tret\n");
SHAPE("shape_other_way", "\tmov $1,%edx\n\tcall shape_side_door\n\tret\n");
/* Calls itself with an id one less until that is divisible by 4. */
SHAPE("shape_recursive", "\tendbr64\n\ttest $3,%dl\n\tje 1f\n\tsub $8,%rsp\n\tdec %rdx\n\tcall shape_recursive\n\tadd $8,%rsp\n1:\tret\n");
/* (pool): endbr64 and a push, and it calls, so that the return address lies deeper. */
SHAPE("shape_open", "\tendbr64\n\tmov %rdi,%rax\n\txor %edi,%edi\n\tpush %rbx\n\tpush %r12\n\tpop %r12\n\tpop %rbx\n\tret\n");
SHAPE("shape_close", "\ttest %rdi,%rdi\n\tje 1f\n\tpush %rbx\n\tpop %rbx\n1:\tret\n");
/* (id): nothing for 0, as free. */
SHAPE("shape_free", "\ttest %rdi,%rdi\n\tje 1f\n\tmov %rdi,%rax\n\txor %edi,%edi\n1:\tret\n");

typedef void shape(u64 pool, u64 size, u64 id);
shape shape_moved, shape_pushed, shape_framed, shape_stored, shape_early_exit, shape_loop, shape_jump_back, shape_table,
    shape_two_ways, shape_recursive;
void shape_other_way(void);
void shape_open(u64 pool);
void shape_close(u64 pool);
void shape_free(u64 id);

/* The shapes spoil all registers that they may. */
static __attribute__((noinline)) void call(shape *f, u64 pool, u64 size, u64 id) {
    __asm__ volatile("call *%3" : "+D"(pool), "+S"(size), "+d"(id) : "r"(f)
                     : "rax", "rcx", "r8", "r9", "r10", "r11", "memory", "cc");
}

static struct truth t;

int main(int argc, char **argv) {
    static shape *const shapes[] = {shape_moved, shape_pushed, shape_framed, shape_early_exit, shape_loop,
                                    shape_jump_back, shape_table, shape_two_ways, shape_stored, shape_recursive};
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    truth_begin(argc, argv);
    u64 times = option("times", 200);
    ready();
    u64 id = 1000;
    for (u64 pool = 1; pool <= times; pool++) {
        shape_open(pool);
        struct gen *g = truth_open(&t, NULL, 0);
        u64 ids[64], sizes[64], live = 0;
        for (u64 n = 0; n < SHAPES; n++) {
            u64 size = 1 + random_below(400);
            id += 1 + random_below(3);
            if (shapes[n] != shape_recursive) {
                call(shapes[n], pool, size, id);
                ids[live] = id, sizes[live++] = size;
                truth_alloc(&t, g, size);
                continue;
            }
            id += 8; /* as many calls as the id is above the next multiple of 4 */
            call(shapes[n], pool, size, id);
            for (u64 inner = id;; inner--) {
                ids[live] = inner, sizes[live++] = size;
                truth_alloc(&t, g, size);
                if (inner % 4 == 0) break;
            }
        }
        shape_other_way();
        bool pin = chance(3000);
        shape_free(0);
        for (u64 n = pin; n < live; n++) {
            shape_free(ids[n]);
            truth_free(&t, g, sizes[n]);
        }
        shape_close(pool);
        truth_close(&t, g);
        if (pin && chance(5000)) {
            shape_free(ids[0]);
            truth_free(&t, g, sizes[0]);
        }
    }
    truth_print_single(&t);
    return 0;
}
