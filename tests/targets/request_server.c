/* cflags: -fno-omit-frame-pointer */
/* A request server with an arena allocator of its own, for the demo.
 *
 * Each request takes its memory from an arena of its own, one granule of 64 KiB. Some requests log in,
 * which makes a session that lives for thousands of requests. `routing=request` takes the session from the
 * arena of the request that made it: a structural leak, since every object is freed in the end, yet one
 * session of 512 bytes pins a whole granule meanwhile. `routing=session`, the fixed twin, takes sessions
 * from arenas of their own. Everything else is the same. Requests are made up inside, at a bounded rate.
 *
 * usage: request_server [routing=request|session] [requests=N] [rate=N per second, 0 for no bound]
 *                       [session=N requests that a session lives, at most 3000]
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define GRANULE ((size_t)65536)
#define BUFFERS 10
#define BUFFER_BYTES 4096
#define LOGIN_EVERY 4
#define SESSION_REQUESTS 3000
#define SESSION_BYTES 512
#define SESSIONS (SESSION_REQUESTS / LOGIN_EVERY + 1)
#define EXPORTED __attribute__((noipa, visibility("default")))

/* The first bytes of a granule; the profile reads `live`, so it stays first. */
struct arena {
    uint64_t live;      /* objects allocated and not yet freed */
    uint64_t used;      /* bytes handed out, this header included */
    uint64_t slot;      /* size of a slot that can be used again; 0: nothing is */
    uint64_t closed;
    void *free_slots;
    struct arena *next; /* for whoever keeps a list of arenas */
};

static uint64_t allocated, freed;
static uint64_t session_requests = SESSION_REQUESTS;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Opens an arena: one granule, aligned to its size. `slot`: objects of that size, used again when freed. */
EXPORTED struct arena *arena_open(size_t slot)
{
    char *twice = mmap(NULL, 2 * GRANULE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (twice == MAP_FAILED)
        die("mmap");
    char *start = (char *)(((uintptr_t)twice + GRANULE - 1) & ~(GRANULE - 1));
    if (start > twice)
        munmap(twice, (size_t)(start - twice));
    munmap(start + GRANULE, (size_t)(twice + GRANULE - start));
    struct arena *arena = (struct arena *)start;
    arena->used = sizeof *arena;
    arena->slot = slot;
    return arena;
}

static void give_back(struct arena *arena)
{
    if (munmap(arena, GRANULE) != 0)
        die("munmap");
}

/* Closes an arena: nothing is allocated from it again, and its granule goes back once it is empty. */
EXPORTED void arena_close(struct arena *arena)
{
    arena->closed = 1;
    if (arena->live == 0)
        give_back(arena);
}

/* Allocates, or returns NULL where the granule is full. */
EXPORTED void *arena_alloc(struct arena *arena, size_t size)
{
    void *object;
    if (arena->free_slots != NULL && size <= arena->slot) {
        object = arena->free_slots;
        memcpy(&arena->free_slots, object, sizeof(void *));
    } else {
        size = ((arena->slot ? arena->slot : size) + 15) & ~(size_t)15;
        if (arena->used + size > GRANULE)
            return NULL;
        object = (char *)arena + arena->used;
        arena->used += size;
    }
    arena->live++;
    allocated++;
    return object;
}

/* Frees an object; the last one of a closed arena gives the granule back. */
EXPORTED void arena_free(void *object)
{
    struct arena *arena = (struct arena *)((uintptr_t)object & ~(GRANULE - 1));
    freed++;
    if (arena->slot) {
        memcpy(object, &arena->free_slots, sizeof(void *));
        arena->free_slots = object;
    }
    if (--arena->live == 0 && arena->closed)
        give_back(arena);
}

struct session {
    uint64_t ends;
    char state[SESSION_BYTES - sizeof(uint64_t)];
};

static struct session *sessions[SESSIONS];
static struct arena *session_arenas;

/* The fixed routing: sessions share arenas that stay open. */
static struct session *session_from_own_arena(void)
{
    for (struct arena *arena = session_arenas; arena != NULL; arena = arena->next) {
        struct session *session = arena_alloc(arena, sizeof *session);
        if (session != NULL)
            return session;
    }
    struct arena *arena = arena_open(sizeof(struct session));
    arena->next = session_arenas;
    session_arenas = arena;
    return arena_alloc(arena, sizeof(struct session));
}

static void end_sessions(uint64_t now)
{
    for (size_t i = 0; i < SESSIONS; i++) {
        if (sessions[i] != NULL && sessions[i]->ends <= now) {
            arena_free(sessions[i]);
            sessions[i] = NULL;
        }
    }
}

static void log_in(struct arena *request, uint64_t now, int fixed)
{
    struct session *session = fixed ? session_from_own_arena() : arena_alloc(request, sizeof *session);
    if (session == NULL)
        die("allocate a session");
    memset(session, 'S', sizeof *session);
    session->ends = now + session_requests;
    for (size_t i = 0; i < SESSIONS; i++) {
        if (sessions[i] == NULL) {
            sessions[i] = session;
            return;
        }
    }
    fprintf(stderr, "more sessions than places\n");
    exit(1);
}

static void handle_request(uint64_t now, int fixed)
{
    struct arena *request = arena_open(0);
    void *buffers[BUFFERS];
    for (size_t i = 0; i < BUFFERS; i++) {
        buffers[i] = arena_alloc(request, BUFFER_BYTES);
        if (buffers[i] == NULL)
            die("allocate a buffer");
        memset(buffers[i], 'B', BUFFER_BYTES);
    }
    if (now % LOGIN_EVERY == 0)
        log_in(request, now, fixed);
    for (size_t i = 0; i < BUFFERS; i++)
        arena_free(buffers[i]);
    arena_close(request);
}

/* A size in KiB out of /proc/self/status. */
static long status_kib(const char *field)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    if (status == NULL)
        die("/proc/self/status");
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, field, strlen(field)) == 0)
            kib = strtol(line + strlen(field), NULL, 10);
    fclose(status);
    return kib;
}

/* Waits for the moment at which a request is due. */
static void pace(struct timespec *due, uint64_t rate)
{
    due->tv_nsec += (long)(1000000000 / rate);
    if (due->tv_nsec >= 1000000000) {
        due->tv_nsec -= 1000000000;
        due->tv_sec++;
    }
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, due, NULL);
}

int main(int argc, char **argv)
{
    uint64_t requests = 10000, rate = 1500;
    int fixed = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "requests=", 9) == 0)
            requests = strtoull(argv[i] + 9, NULL, 10);
        else if (strncmp(argv[i], "rate=", 5) == 0)
            rate = strtoull(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "session=", 8) == 0 && strtoull(argv[i] + 8, NULL, 10) <= SESSION_REQUESTS)
            session_requests = strtoull(argv[i] + 8, NULL, 10);
        else if (strcmp(argv[i], "routing=session") == 0)
            fixed = 1;
        else if (strcmp(argv[i], "routing=request") != 0) {
            fprintf(stderr, "usage: %s [routing=request|session] [requests=N] [rate=N] [session=N]\n", argv[0]);
            return 2;
        }
    }
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    for (uint64_t now = 0; now < requests; now++) {
        end_sessions(now);
        handle_request(now, fixed);
        if (rate != 0)
            pace(&due, rate);
    }
    long resident = status_kib("VmRSS:");
    end_sessions(UINT64_MAX);
    while (session_arenas != NULL) {
        struct arena *arena = session_arenas;
        session_arenas = arena->next;
        arena_close(arena);
    }
    printf("requests %llu\n", (unsigned long long)requests);
    printf("allocated %llu, freed %llu\n", (unsigned long long)allocated, (unsigned long long)freed);
    printf("rss_kib %ld at the last request, %ld at the end\n", resident, status_kib("VmRSS:"));
    printf("peak_rss_kib %ld\n", status_kib("VmHWM:"));
    return allocated == freed ? 0 : 1;
}
