/* cflags: -mno-red-zone -fcf-protection=none */
/* Arguments of USDT probes in every kind of place: registers of all widths, memory by every form of address, constants.
 *
 * Each form is a place of the probes `forms:alloc` and `forms:free`, whose other arguments are plain. An object's id goes
 * into the form with all bits of a random word; what the form yields of it is computed here, and freed (or allocated) through a
 * plain place. So an id that is read wrongly is an unmatched free, and an object that is live for ever.
 */
#include "truth.h"
#include "usdt.h"

static struct truth t;
static struct gen *granule;
u64 forms_word[4] __attribute__((visibility("hidden"), used));

#define ALLOC(form) USDT_NOTE("forms", "alloc", "0", "2@$-7 " form " 4@$48")
#define FREE(form) USDT_NOTE("forms", "free", "0", form)

/* Plain places. */
static __attribute__((noinline)) void plain_alloc(u64 id) {
    __asm__ volatile(ALLOC("8@%%rax") : : "a"(id) : "memory");
}
static __attribute__((noinline)) void plain_free(u64 id) {
    __asm__ volatile(FREE("8@%%rax") : : "a"(id) : "memory");
}

static u64 low(u64 word, unsigned bits, bool is_signed) {
    if (bits == 64) return word;
    word &= ((u64)1 << bits) - 1;
    return is_signed && word >> (bits - 1) ? word | ~(u64)0 << bits : word;
}

/* One round of a form: `seen` is what it yields. */
static void allocated(u64 seen) {
    truth_alloc(&t, granule, 48);
    plain_free(seen);
    truth_free(&t, granule, 48);
}
static void to_free(u64 seen) {
    plain_alloc(seen);
    truth_alloc(&t, granule, 48);
}

/* `before` puts the word (in rax) into place, `after` restores what the compiler does not know of. */
#define FORM(before, form, after, seen)                                                            \
    do {                                                                                           \
        u64 word = random_u64();                                                                   \
        __asm__ volatile("movq %0, %%rax\n" before ALLOC(form) after                               \
                         : : "r"(word) : CLOBBERED);                                               \
        allocated(seen);                                                                           \
        to_free(seen);                                                                             \
        __asm__ volatile("movq %0, %%rax\n" before FREE(form) after : : "r"(word) : CLOBBERED);    \
        truth_free(&t, granule, 48);                                                               \
    } while (0)
#define CLOBBERED                                                                                  \
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",       \
        "r15", "memory", "cc"

/* Through a register, or a part of it. */
#define REGISTER(whole, size, part, bits, sign)                                                    \
    FORM("movq %%rax, %%" whole "\n", size "@%%" part, "", low(word, bits, sign))
/* Through memory below the stack pointer's frame; the address is made in other registers. */
#define MEMORY(address, size, form, bits, sign)                                                    \
    FORM("subq $256, %%rsp\n movq %%rax, 64(%%rsp)\n" address, size "@" form,                      \
         "addq $256, %%rsp\n", low(word, bits, sign))
/* Through a variable. */
#define VARIABLE(size, form, bits, sign)                                                           \
    FORM("leaq forms_word(%%rip), %%rcx\n movq %%rax, 8(%%rcx)\n movq $1, %%rdx\n", size "@" form, \
         "", low(word, bits, sign))

static __attribute__((noinline)) void round_of_forms(void) {
    REGISTER("rax", "8", "rax", 64, false);
    REGISTER("rbx", "-4", "ebx", 32, true);
    REGISTER("rcx", "2", "cx", 16, false);
    REGISTER("rdx", "-1", "dl", 8, true);
    REGISTER("rsi", "4", "esi", 32, false);
    REGISTER("rdi", "1", "dil", 8, false);
    REGISTER("r8", "-8", "r8", 64, true);
    REGISTER("r9", "-2", "r9w", 16, true);
    REGISTER("r12", "4", "r12d", 32, false);
    REGISTER("r13", "-1", "r13b", 8, true);
    REGISTER("r15", "-4", "r15d", 32, true);
    FORM("movq %%rax, %%rbx\n", "-1@%%bh", "", low(word >> 8, 8, true));
    FORM("pushq %%rbp\n movq %%rax, %%rbp\n", "2@%%bp", "popq %%rbp\n", low(word, 16, false));
    MEMORY("", "-4", "64(%%rsp)", 32, true);
    MEMORY("leaq 64(%%rsp), %%r14\n", "8", "(%%r14)", 64, false);
    MEMORY("leaq 100(%%rsp), %%rdi\n", "-2", "-36(%%rdi)", 16, true);
    MEMORY("movq %%rsp, %%rbx\n movq $15, %%r11\n", "4", "4(%%rbx,%%r11,4)", 32, false);
    MEMORY("leaq 72(%%rsp), %%r10\n movq $-8, %%rsi\n", "-1", "(%%r10,%%rsi)", 8, true);
    MEMORY("movq %%rsp, %%r9\n shrq $3, %%r9\n", "1", "64(,%%r9,8)", 8, false);
    VARIABLE("-4", "8+forms_word(%%rip)", 32, true);
    VARIABLE("8", "forms_word+8(%%rip)", 64, false);
    VARIABLE("2", "forms_word(,%%rdx,8)", 16, false);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    ready();
    __asm__ volatile(USDT_NOTE("forms", "open", "0", "2@$-7") : : : "memory");
    granule = truth_open(&t, NULL, 0);
    for (u64 n = 0; n < option("rounds", 50); n++) round_of_forms();
    __asm__ volatile(USDT_NOTE("forms", "close", "0", "8@$65529") : : : "memory");
    truth_close(&t, granule);
    truth_print_single(&t);
    return 0;
}
