/* USDT probes: by <sys/sdt.h> where it is installed, else by notes of our own; and notes whose arguments are
 * worded by hand, for operands that a compiler rarely chooses.
 */
#ifndef USDT_H
#define USDT_H

/* A nop with its note, as text for `asm`. `semaphore` is a symbol or 0. */
#define USDT_NOTE(provider, name, semaphore, arguments)                                            \
    "990: nop\n"                                                                                   \
    ".pushsection .note.stapsdt,\"\",\"note\"\n"                                                   \
    ".balign 4\n"                                                                                  \
    ".4byte 992f-991f, 994f-993f, 3\n"                                                             \
    "991: .asciz \"stapsdt\"\n"                                                                    \
    "992: .balign 4\n"                                                                             \
    "993: .8byte 990b\n"                                                                           \
    ".8byte _.stapsdt.base\n"                                                                      \
    ".8byte " semaphore "\n"                                                                       \
    ".asciz \"" provider "\"\n"                                                                    \
    ".asciz \"" name "\"\n"                                                                        \
    ".asciz \"" arguments "\"\n"                                                                   \
    "994: .balign 4\n"                                                                             \
    ".popsection\n"                                                                                \
    ".ifndef _.stapsdt.base\n"                                                                     \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                        \
    ".weak _.stapsdt.base\n"                                                                       \
    ".hidden _.stapsdt.base\n"                                                                     \
    "_.stapsdt.base: .space 1\n"                                                                   \
    ".size _.stapsdt.base, 1\n"                                                                    \
    ".popsection\n"                                                                                \
    ".endif\n"

#ifdef USDT_SEMAPHORES
#define _SDT_HAS_SEMAPHORES 1
#define USDT_SEMAPHORE(provider, name)                                                             \
    unsigned short provider##_##name##_semaphore __attribute__((section(".probes"), used))
#define USDT_ENABLED(provider, name)                                                               \
    __builtin_expect(*(volatile unsigned short *)&provider##_##name##_semaphore, 0)
#define USDT_SEMAPHORE_OF(provider, name) #provider "_" #name "_semaphore"
#else
#define USDT_SEMAPHORE(provider, name) extern int usdt_no_semaphore
#define USDT_ENABLED(provider, name) 1
#define USDT_SEMAPHORE_OF(provider, name) "0"
#endif

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#else
/* As there: an argument's size in bytes, negative for what has a sign. */
#define USDT_SIZE(a) "n"((__typeof__(a))-1 < (__typeof__(a))1 ? -(int)sizeof(a) : (int)sizeof(a))
#define DTRACE_PROBE1(provider, name, a)                                                           \
    __asm__ volatile(USDT_NOTE(#provider, #name, USDT_SEMAPHORE_OF(provider, name), "%c1@%0")      \
                     : : "nor"(a), USDT_SIZE(a))
#define DTRACE_PROBE2(provider, name, a, b)                                                        \
    __asm__ volatile(USDT_NOTE(#provider, #name, USDT_SEMAPHORE_OF(provider, name),                \
                               "%c2@%0 %c3@%1")                                                    \
                     : : "nor"(a), "nor"(b), USDT_SIZE(a), USDT_SIZE(b))
#define DTRACE_PROBE3(provider, name, a, b, c)                                                     \
    __asm__ volatile(USDT_NOTE(#provider, #name, USDT_SEMAPHORE_OF(provider, name),                \
                               "%c3@%0 %c4@%1 %c5@%2")                                             \
                     : : "nor"(a), "nor"(b), "nor"(c), USDT_SIZE(a), USDT_SIZE(b), USDT_SIZE(c))
#endif

#endif
