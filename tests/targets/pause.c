/* How long a program is stopped while it is attached to: a thread reads the clock as fast as it can and remembers the
 * longest time between two readings in which nobody else was given its CPU (a preemption is the machine's affair).
 *
 * Says `READY <pid>`. On stdin: `reset` makes the thread look, with no pause seen yet, and is answered with `RESET`;
 * `read` makes it sleep and is answered with `PAUSE <ns>`. It ends with its stdin. Ten functions for a profile to probe
 * stand beside the loop; nobody calls them, so that what is measured is the attaching and not the hits.
 */
#include "truth.h"
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#define FUNCTION(n) PROBED u64 ten_##n(u64 granule, u64 object) { __asm__ volatile("# " #n); return granule + object + n; }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3) FUNCTION(4)
FUNCTION(5) FUNCTION(6) FUNCTION(7) FUNCTION(8) FUNCTION(9)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool looking; /* written under the lock */
static bool asleep = true;
static u64 longest;

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static long preemptions(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

static u64 look(void) {
    u64 most = 0, last = now_ns();
    long before = preemptions();
    bool disturbed = true;
    while (__atomic_load_n(&looking, __ATOMIC_ACQUIRE)) {
        u64 now = now_ns();
        long preempted = preemptions();
        /* A preemption between the two readings above is time of the next round. */
        bool was_disturbed = disturbed;
        disturbed = preempted != before;
        if (!disturbed && !was_disturbed && now - last > most) most = now - last;
        last = now, before = preempted;
    }
    return most;
}

static void *run(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!looking) pthread_cond_wait(&changed, &lock);
        asleep = false;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        u64 most = look();
        pthread_mutex_lock(&lock);
        longest = most;
        asleep = true;
        pthread_cond_broadcast(&changed);
    }
    return unused;
}

/* Sets the thread going, or stops it, and waits until it has noticed. */
static void set(bool on) {
    pthread_mutex_lock(&lock);
    __atomic_store_n(&looking, on, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&changed);
    while (asleep == on) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL)) return 3;
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        bool on = !strcmp(line, "reset\n");
        set(on);
        if (on) printf("RESET\n");
        else printf("PAUSE %llu\n", (unsigned long long)longest);
        fflush(stdout);
    }
    return 0;
}
