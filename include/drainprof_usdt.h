/* Probes that tell drainprof of granules and objects: a program that has them needs no profile. They cost some nops while
 * nobody observes. x86-64, gcc or clang. Arguments: docs/usdt.md. SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef DRAINPROF_USDT_H
#define DRAINPROF_USDT_H
#include <stdint.h>
#define DRAINPROF_UNCOUNTED UINT64_MAX /* `live` of an allocator that does not count its objects */
#define drainprof_granule_open(allocator, granule, bytes, label) DRAINPROF_PROBE(granule_open, allocator, granule, bytes, label)
#define drainprof_granule_close(allocator, granule, live) DRAINPROF_PROBE(granule_close, allocator, granule, live, 0)
#define drainprof_granule_alloc(allocator, granule, object, size) DRAINPROF_PROBE(granule_alloc, allocator, granule, object, size)
#define drainprof_granule_free(allocator, object) DRAINPROF_PROBE(granule_free, allocator, object, 0, 0)
/* A nop of one byte, which every kernel emulates; one of ten, which newer ones replace by a call that leaves the stack's red
 * zone alone (none of five: docs/usdt.md); and the note that names them. */
#define DRAINPROF_PROBE(name, a, b, c, d) __asm__ volatile( \
    "990: nop\n .byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0\n .pushsection .note.stapsdt, \"\", \"note\"\n .balign 4\n" \
    " .4byte 992f-991f, 994f-993f, 3\n 991: .asciz \"stapsdt\"\n 992: .balign 4\n 993: .8byte 990b, _.stapsdt.base, 0\n" \
    " .asciz \"drainprof\"\n .asciz \"" #name "\"\n .asciz \"8@%0 8@%1 8@%2 8@%3\"\n 994: .balign 4\n .popsection\n" \
    " .ifndef _.stapsdt.base\n .pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n" \
    " .weak _.stapsdt.base\n .hidden _.stapsdt.base\n _.stapsdt.base: .space 1\n .size _.stapsdt.base, 1\n .popsection\n .endif\n" \
    : : "nr"((uint64_t)(a)), "nr"((uint64_t)(b)), "nr"((uint64_t)(c)), "nr"((uint64_t)(d)) : "memory")
#endif
