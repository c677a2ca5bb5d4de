/* Pins that are freed a known time after their granules' closes. Granules live for `life` microseconds; one pin of each
 * is freed `delay` microseconds after the close (never with delay=0). The clock is read around every call, so that the
 * truth of each pin is an interval; the printed percentiles are those of its lower and its upper ends, and a pin whose
 * interval crosses a limit between classes is `unsure`.
 *
 * usage: delays [life=µs] [delay=µs] [pins=N]
 */
#include "paths.h"
#include <time.h>

enum { MOST = 4096 };

struct span { u64 low, high; };

static struct truth t;
static struct span delays[MOST];
static u64 pins, classes[3], unsure, number;

static u64 now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (u64)at.tv_sec * 1000000000 + (u64)at.tv_nsec;
}

static void wait_until(u64 ns) {
    struct timespec at = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) {}
}

/* 0: near miss, 1: moderate, 2: fundamental. */
static int class_of(u64 delay, u64 life) { return delay < life / 10 ? 0 : delay <= life * 10 ? 1 : 2; }

FRAME static void keep(void) {
    path_alloc(number, number, 100); /* mark: delayed */
    FOLLOWED;
}

static void one(u64 life_us, u64 delay_us) {
    number++;
    u64 open = now_ns();
    path_open(number, PATHS_BYTES);
    u64 opened = now_ns();
    struct gen *g = truth_open(&t, NULL, PATHS_BYTES);
    keep(); /* mark: keeps */
    truth_alloc(&t, g, 100);
    wait_until(opened + life_us * 1000);
    u64 close = now_ns();
    path_close(number);
    u64 closed = now_ns();
    truth_close(&t, g);
    if (!delay_us) return;
    wait_until(closed + delay_us * 1000);
    u64 free = now_ns();
    path_free(number);
    u64 freed = now_ns();
    truth_free(&t, g, 100);
    struct span delay = {free - closed, freed - close}, life = {close - opened, closed - open};
    delays[number - 1] = delay;
    int least = class_of(delay.low, life.high), most = class_of(delay.high, life.low);
    if (least == most) classes[least]++;
    else unsure++;
}

static int by_low(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}
static int by_high(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    return (x->high > y->high) - (x->high < y->high);
}

/* The values between which the percentile lies, whichever way ranks are rounded. */
static void print_percentile(const char *name, u64 percent) {
    u64 below = pins * percent / 100 ? pins * percent / 100 - 1 : 0, above = pins * percent / 100;
    if (above >= pins) above = pins - 1;
    qsort(delays, pins, sizeof *delays, by_low);
    u64 low = delays[below].low;
    qsort(delays, pins, sizeof *delays, by_high);
    printf(",\"%s\":[%llu,%llu]", name, (unsigned long long)low, (unsigned long long)delays[above].high);
}

static void print(void) {
    printf(",\"delays\":{\"near_miss\":%llu,\"moderate\":%llu,\"fundamental\":%llu,\"unsure\":%llu",
           (unsigned long long)classes[0], (unsigned long long)classes[1], (unsigned long long)classes[2],
           (unsigned long long)unsure);
    print_percentile("p50", 50);
    print_percentile("p99", 99);
    print_percentile("max", 100);
    printf("}");
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    u64 life = option("life", 1000), delay = option("delay", 1000);
    pins = option("pins", 100);
    if (pins == 0 || pins > MOST) return 2;
    ready();
    for (u64 i = 0; i < pins; i++) one(life, delay); /* mark: delays */
    if (delay) truth_more = print;
    truth_print_single(&t);
    return 0;
}
