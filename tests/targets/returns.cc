// Functions that are judged at their returns and begin with an instruction that is expensive to probe, in assembly so that
// they are what they are. Within their calls are recursion, tail calls, longjmp, signals whose handlers make such calls,
// and exceptions.
#include "truth.h"
#include <csetjmp>
#include <csignal>

#define SHAPE(name, body) \
    __asm__(".globl " name "\n.type " name ",@function\n.p2align 4\n" name ":\n" body ".size " name ",.-" name "\n")
// Aligned as calls want it.
#define NEXT "\tpush %rbx\n\tcall returns_next\n\tpop %rbx\n\tret\n"

extern "C" {
typedef u64 shape(u64 pool, u64 size, u64 depth);
shape return_framed, return_early, return_tail, return_recursive, return_busy, return_spoilt, return_moved, return_loop;
u64 return_open(void);
void return_close(u64 pool);
u64 return_free(u64 id, u64 done);
u64 returns_next(void);
void returns_inside(void);
}

// The object's id is what they return, 0 for none.
SHAPE("return_framed", "\tendbr64\n" NEXT);
// None for size 0.
SHAPE("return_early", "\tendbr64\n\txor %eax,%eax\n\ttest %rsi,%rsi\n\tje 1f\n" NEXT "1:\tret\n");
// One return serves both.
SHAPE("return_tail", "\tendbr64\n\tjmp return_framed\n");
SHAPE("return_recursive",
      "\tendbr64\n\ttest %rdx,%rdx\n\tje 1f\n\tpush %rbx\n\tdec %rdx\n\tcall return_recursive\n\tpop %rbx\n\tret\n1:" NEXT);
// Something happens in the middle of it.
SHAPE("return_busy", "\tendbr64\n\tpush %rbx\n\tcall returns_inside\n\tcall returns_next\n\tpop %rbx\n\tret\n");
// The pool has left its register before anything is cheap.
SHAPE("return_spoilt", "\tendbr64\n\tmov %rdi,%rax\n\txor %edi,%edi\n" NEXT);
// The stack pointer has moved before anything is cheap.
SHAPE("return_moved", "\tsub $8,%rsp\n\ttest %rdi,%rdi\n\tje 1f\n\tcall returns_next\n1:\tadd $8,%rsp\n\tret\n");
// Jumps back to its second instruction.
SHAPE("return_loop", "\tmov $3,%ecx\n1:\tnop\n\tdec %ecx\n\tjnz 1b\n" NEXT);
SHAPE("return_open", "\tendbr64\n" NEXT);
SHAPE("return_close", "\tendbr64\n\ttest %rdi,%rdi\n\tje 1f\n\tpush %rbx\n\tpop %rbx\n1:\tret\n");
// Refused where `done` is 0.
SHAPE("return_free", "\tendbr64\n\tmov %rsi,%rax\n\tpush %rbx\n\tpop %rbx\n\tret\n");

static struct truth t = {};
static u64 last;
static jmp_buf out;
static enum { NOTHING, JUMP, SIGNAL, THROW } inside;

u64 returns_next(void) { return ++last; }

// One function, so that all calls have one stack pointer.
static __attribute__((noinline, noipa)) u64 call(shape *f, u64 pool, u64 size, u64 depth) {
    u64 id = f(pool, size, depth);
    __asm__ volatile("" : "+r"(id) : : "memory");
    return id;
}

static void handle(int) {
    u64 pool = return_open();
    struct gen *g = truth_open(&t, NULL, 0);
    return_close(pool);
    truth_close(&t, g);
}

void returns_inside(void) {
    switch (inside) {
    case JUMP: longjmp(out, 1);
    case SIGNAL: raise(SIGUSR1); break;
    case THROW:
        try {
            throw 1;
        } catch (int) {
        }
        break;
    default: break;
    }
}

int main(int argc, char **argv) {
    static shape *const shapes[] = {return_framed, return_early, return_tail,  return_recursive,
                                    return_busy,   return_moved, return_spoilt, return_loop};
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    truth_begin(argc, argv);
    u64 times = option("times", 200);
    signal(SIGUSR1, handle);
    ready();
    for (volatile u64 n = 0; n < times; n++) {
        u64 pool = return_open();
        struct gen *g = truth_open(&t, NULL, 0);
        u64 ids[SHAPES], sizes[SHAPES];
        for (u64 at = 0; at < SHAPES; at++) {
            inside = chance(5000) ? SIGNAL : THROW;
            sizes[at] = 1 + random_below(400);
            ids[at] = call(shapes[at], pool, sizes[at], random_below(5));
            truth_alloc(&t, g, sizes[at]);
        }
        call(return_early, pool, 0, 0);
        if (n % 4 == 0) {
            inside = JUMP;
            if (setjmp(out) == 0) call(return_busy, pool, 10, 0);
            truth_losses.call_abandoned++;
        }
        bool pin = chance(3000);
        for (u64 at = pin; at < SHAPES; at++) {
            if (chance(2000)) return_free(ids[at], 0);
            return_free(ids[at], 1);
            truth_free(&t, g, sizes[at]);
        }
        return_close(pool);
        truth_close(&t, g);
        if (pin && chance(5000)) {
            return_free(ids[0], 1);
            truth_free(&t, g, sizes[0]);
        }
    }
    call(return_early, 1, 0, 0); // the last call that was left shows
    truth_print_single(&t);
    return 0;
}
