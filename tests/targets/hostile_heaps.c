/* Heaps that are made to cost whoever reads them: `kind=extents`: 140 MB of jemalloc's descriptions of extents, all of
 * which a tree lists, each of a slab of its own. `kind=chain`: a heap of glibc of 3 MB whose chain is broken, and in which
 * each place seems to lead to one far away. `kind=none`: neither. It prints READY, and ends with its input. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define DESCRIPTION 128ul
#define EXTENTS ((140ul << 20) / DESCRIPTION)

/* The first level of the tree, in data, and its parts. */
static uint64_t root[1 << 18];

static void *mapped(size_t bytes, int flags)
{
	void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	if (at == MAP_FAILED)
		exit(1);
	return at;
}

static void extents(void)
{
	unsigned char *slabs = mapped(EXTENTS * PAGE, MAP_NORESERVE);
	unsigned char *all = mapped(EXTENTS * DESCRIPTION, 0);
	memset(slabs, 1, PAGE);
	for (size_t at = 0; at < EXTENTS; at++) {
		uint64_t *one = (uint64_t *)(all + at * DESCRIPTION);
		uint64_t page = (uint64_t)slabs + at * PAGE;
		/* A slab of 64 objects of 64 bytes, none of them free. */
		one[0] = 1ul << 12 | 4ul << 20;
		one[1] = page;
		one[2] = PAGE;
		uint64_t *part = (uint64_t *)root[page >> 30];
		if (!part) {
			part = mapped(8ul << 18, MAP_NORESERVE);
			root[page >> 30] = (uint64_t)part;
		}
		part[page >> 12 & 0x3ffff] = (uint64_t)one | 4ul << 48 | 1;
	}
}

static void chain(void)
{
	size_t bytes = 3ul << 20, strips = 7, strip = bytes / strips / PAGE * PAGE;
	mallopt(M_MMAP_THRESHOLD, 16 << 20);
	/* What is written is for others to read. */
	volatile uint64_t *all = malloc(bytes);
	if (!all || !malloc(100))
		exit(1);
	for (size_t at = 0; at + 16 <= strip * strips; at += 16)
		all[at / 8 + 1] = (at / strip + 1 < strips ? strip : 0) | 1;
	/* The size of the object itself. */
	((volatile uint64_t *)((uintptr_t)all - 8))[0] = 0x12346;
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "kind=none";
	/* Before malloc cannot be called any more. */
	static char buffer[256];
	setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
	if (!strcmp(kind, "kind=extents"))
		extents();
	if (!strcmp(kind, "kind=chain"))
		chain();
	printf("READY %d\n", getpid());
	fflush(stdout);
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	_exit(0);
}
