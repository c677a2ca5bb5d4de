/* How the threads of a target are scheduled, so that they preempt one another wherever they can.
 *
 * `policy`: `other` (all threads are alike) or `mixed` (threads are pinned to CPUs, and in turn are of SCHED_IDLE,
 * SCHED_FIFO, SCHED_OTHER with other nice values, and SCHED_BATCH, so that each CPU has several of them). Where the
 * machine does not let it, the target fails.
 *
 * Some threads take naps: those of SCHED_FIFO or, of `other`, every second one. They run for a few steps and sleep for
 * longer, so that they wake up, and preempt, at any instruction of another thread, and starve none.
 */
#ifndef POLICIES_H
#define POLICIES_H

#include "truth.h"
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

enum { MOST_CPUS = 1024, STEPS_AWAKE = 4, LONGEST_EXTRA_NS = 1 << 17 };

static bool policies_mixed;
static int policies_cpus[MOST_CPUS];
static u64 policies_cpu_count, policies_nap_factor;
static __thread bool policy_naps;
static __thread u64 policy_woke_ns;

static inline void policy_must(bool done, const char *what) {
    if (done) return;
    perror(what);
    _exit(9);
}

/* Reads the option; `threads` is how many there will be. */
static inline void policies_begin(u64 threads) {
    const char *policy = option_text("policy", "other");
    policies_mixed = !strcmp(policy, "mixed");
    if (!policies_mixed && strcmp(policy, "other")) {
        fprintf(stderr, "target: there is no policy %s\n", policy);
        _exit(9);
    }
    cpu_set_t allowed;
    policy_must(!sched_getaffinity(0, sizeof allowed, &allowed), "sched_getaffinity");
    for (int cpu = 0; cpu < MOST_CPUS; cpu++)
        if (CPU_ISSET(cpu, &allowed)) policies_cpus[policies_cpu_count++] = cpu;
    /* Those that nap on one CPU take less than half of it. */
    policies_nap_factor = 2 * (1 + threads / (policies_mixed ? 4 : 2) / policies_cpu_count);
}

/* The calling thread, which is this one of all, takes its policy. */
static inline void policy_take(u64 number) {
    policy_naps = number % (policies_mixed ? 4 : 2) == 1;
    if (!policies_mixed) return;
    static const int policies[] = {SCHED_IDLE, SCHED_FIFO, SCHED_OTHER, SCHED_BATCH};
    int policy = policies[number % 4];
    struct sched_param priority = {.sched_priority = policy == SCHED_FIFO ? 1 + (int)(number / 4 % 8) : 0};
    policy_must(!sched_setscheduler(0, policy, &priority), "sched_setscheduler");
    if (policy == SCHED_OTHER) {
        int nice = number % 8 < 4 ? 10 : -5;
        policy_must(!setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice), "setpriority");
    }
    cpu_set_t own;
    CPU_ZERO(&own);
    /* Pairs stand on one CPU, and pairs of one kind on all of them. */
    CPU_SET(policies_cpus[(number / 2 + number / (2 * policies_cpu_count)) % policies_cpu_count], &own);
    policy_must(!sched_setaffinity(0, sizeof own, &own), "sched_setaffinity");
}

static inline u64 policy_ran_ns(void) {
    struct timespec ran;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
    return (u64)ran.tv_sec * 1000000000 + (u64)ran.tv_nsec;
}

/* After each step: the thread may take a nap. */
static inline void policy_rest(u64 step, u64 random) {
    if (!policy_naps || step % STEPS_AWAKE) return;
    u64 length = (policy_ran_ns() - policy_woke_ns) * policies_nap_factor + random % LONGEST_EXTRA_NS;
    struct timespec nap = {(time_t)(length / 1000000000), (long)(length % 1000000000)};
    nanosleep(&nap, NULL);
    policy_woke_ns = policy_ran_ns();
}

/* ---- a lock of many readers or one writer ---- */

/* The C library's has moments in which it spins until another thread goes on: one of SCHED_FIFO that waits so for one of
 * SCHED_IDLE waits for ever. Writers come first.
 */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    u64 readers, waiting; /* `waiting`: writers */
    bool writes;
};

static inline void gate_init(struct gate *g) {
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
}

static inline void gate_enter(struct gate *g, bool writes) {
    pthread_mutex_lock(&g->lock);
    g->waiting += writes;
    while (g->writes || (writes ? g->readers : g->waiting)) pthread_cond_wait(&g->changed, &g->lock);
    g->waiting -= writes;
    g->writes = writes;
    g->readers += !writes;
    pthread_mutex_unlock(&g->lock);
}

static inline void gate_leave(struct gate *g) {
    pthread_mutex_lock(&g->lock);
    if (g->writes) g->writes = false;
    else g->readers--;
    if (!g->readers) pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

#endif
