/* cflags: -fno-omit-frame-pointer */
/* Implicit granules: pages that no call opens or closes. An object lies in the page that it begins in; larger ones
 * than a page lie in none. Addresses are made up, and never followed.
 *
 * ops=N       so many random allocations, frees and reallocations, all at once or by threads
 * threads=N   so many threads; each has cells of its own in all pages, so that they share every page
 * pages=N     so many pages
 * churn=N     instead: N pages one after the other, each with two objects that come and go
 */
#include "truth.h"

#include <pthread.h>

#define PAGE 4096
#define CELL 64
#define CELLS (PAGE / CELL)
#define BASE ((u64)0x100000000000)
#define FAR ((u64)0x200000000000) /* where what is larger than a page lies */
#define MOST 4096

PROBED void *page_alloc(u64 at, u64 size) {
    __asm__ volatile("" : : "r"(size) : "memory");
    return (void *)at;
}
PROBED void page_free(void *object) { __asm__ volatile("" : : "r"(object) : "memory"); }
PROBED void *page_realloc(void *object, u64 size, u64 to) {
    __asm__ volatile("" : : "r"(object), "r"(size) : "memory");
    return (void *)to;
}

struct page {
    u64 live, bytes;
};

static struct page pages[MOST];
static u64 page_count, thread_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static u64 opened, ended, open_now, open_peak, allocated, freed, allocated_bytes, freed_bytes;
static u64 apart, apart_bytes;

/* ---- the model ---- */

static void enter(u64 at, u64 size) {
    if (size > PAGE) {
        apart++;
        apart_bytes += size;
        return;
    }
    struct page *p = &pages[(at - BASE) / PAGE];
    if (!p->live++) {
        opened++;
        if (++open_now > open_peak) open_peak = open_now;
    }
    p->bytes += size;
}

static void leave(u64 at, u64 size) {
    if (size > PAGE) {
        apart--;
        apart_bytes -= size;
        return;
    }
    struct page *p = &pages[(at - BASE) / PAGE];
    p->bytes -= size;
    if (!--p->live) {
        ended++;
        open_now--;
    }
}

/* ---- the driver ---- */

struct object {
    u64 at, size;
};

struct worker {
    u64 number, ops, random;
    struct object *objects; /* by cell; size 0: free */
    u64 cells;
};

static u64 draw(struct worker *w, u64 limit) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (w->random >> 33) % limit;
}

/* Where a worker's cell is: every worker has its share of each page. */
static u64 place(const struct worker *w, u64 cell) {
    u64 share = CELLS / thread_count;
    return BASE + cell / share * PAGE + (cell % share * thread_count + w->number) * CELL;
}

static u64 size_of(struct worker *w) { return draw(w, 50) ? 1 + draw(w, 200) : PAGE + 1 + draw(w, 9000); }

static void count_alloc(u64 at, u64 size) {
    pthread_mutex_lock(&lock);
    allocated++;
    allocated_bytes += size;
    enter(at, size);
    pthread_mutex_unlock(&lock);
}

static void count_free(u64 at, u64 size) {
    pthread_mutex_lock(&lock);
    freed++;
    freed_bytes += size;
    leave(at, size);
    pthread_mutex_unlock(&lock);
}

static void take(struct worker *w, u64 cell) {
    struct object *o = &w->objects[cell];
    o->at = place(w, cell);
    o->size = size_of(w);
    if (o->size > PAGE) o->at += FAR - BASE;
    page_alloc(o->at, o->size);
    count_alloc(o->at, o->size);
}

static void give(struct worker *w, u64 cell) {
    struct object *o = &w->objects[cell];
    page_free((void *)o->at);
    count_free(o->at, o->size);
    o->size = 0;
}

/* In place, or to a cell that is free. */
static void resize(struct worker *w, u64 cell, u64 to) {
    struct object *o = &w->objects[cell], *n = &w->objects[to];
    bool moves = to != cell && !n->size;
    struct object was = *o;
    struct object is = {was.at, 1 + draw(w, 200)};
    if (!moves && was.size > PAGE) is.size += PAGE;
    if (moves) is.at = place(w, to);
    if (!moves && !draw(w, 8)) is.size = PAGE + 1 + draw(w, 100); /* grows out of its page */
    page_realloc((void *)was.at, is.size, is.at);
    pthread_mutex_lock(&lock);
    bool was_in = was.size <= PAGE, is_in = is.size <= PAGE;
    bool stays = was_in == is_in && (!moves || (was_in && was.at / PAGE == is.at / PAGE));
    if (stays && !moves && is.size > was.size) {
        allocated_bytes += is.size - was.size;
    } else if (stays && !moves) {
        freed_bytes += was.size - is.size;
    } else {
        freed++, allocated++;
        freed_bytes += was.size;
        allocated_bytes += is.size;
    }
    if (stays && was_in) {
        pages[(was.at - BASE) / PAGE].bytes += is.size - was.size;
    } else if (stays) {
        apart_bytes += is.size - was.size;
    } else {
        leave(was.at, was.size);
        enter(is.at, is.size);
    }
    pthread_mutex_unlock(&lock);
    o->size = 0;
    *(moves ? n : o) = is;
}

static void *work(void *arg) {
    struct worker *w = arg;
    for (u64 i = 0; i < w->ops; i++) {
        u64 cell = draw(w, w->cells);
        /* Runs of few objects and of many, so that pages come and go. */
        bool grows = i / 512 % 2;
        if (!w->objects[cell].size) {
            if (grows || !draw(w, 4)) take(w, cell);
        } else if (!draw(w, 4)) {
            resize(w, cell, draw(w, w->cells));
        } else if (!grows || !draw(w, 3)) {
            give(w, cell);
        }
    }
    return NULL;
}

static void churn(u64 count) {
    for (u64 i = 0; i < count; i++) {
        u64 at = BASE + i * PAGE;
        for (u64 n = 0; n < 2; n++) page_alloc(at + n * CELL, 10 + n);
        for (u64 n = 0; n < 2; n++) page_free((void *)(at + n * CELL));
    }
    opened = ended = count;
    open_peak = count != 0;
    allocated = freed = 2 * count;
    allocated_bytes = freed_bytes = 21 * count;
}

static void print(bool alone) {
    u64 live = 0, bytes = 0;
    for (u64 i = 0; i < page_count; i++) live += pages[i].live, bytes += pages[i].bytes;
    u64 needed = (bytes + PAGE - 1) / PAGE, free_pages = open_now > needed ? open_now - needed : 0;
    bool all = truth_from_start;
    printf("{\"truth\":1,\"role\":\"main\",\"pid\":%d,\"allocators\":[{\"kind\":\"slab\",\"granules\":{", (int)getpid());
    /* Which thread was first at a page is chance. */
    if (alone)
        printf("\"opened\":%lu,\"opened_before\":%lu,\"closed\":%lu,\"unknown\":%lu,\"open_peak\":%lu,", all ? opened : 0,
               all ? 0 : opened, ended, all ? 0 : ended, open_peak);
    printf("\"drainable\":0,\"pinned\":0,\"open_now\":%lu},", open_now);
    printf("\"dsr\":null,\"objects\":{\"allocated\":%lu,\"freed\":%lu,\"live\":%lu,\"allocated_bytes\":%lu,\"live_bytes\":%lu},",
           allocated, freed, allocated - freed, allocated_bytes, allocated_bytes - freed_bytes);
    printf("\"census\":{\"granules_open\":%lu,\"drainable_now\":0,\"unknown\":%lu,\"bytes_open\":%lu,", open_now,
           all ? 0 : open_now, open_now * PAGE);
    printf("\"live_objects\":%lu,\"live_bytes\":%lu,", all ? live : 0, all ? bytes : 0);
    printf("\"unknown_live_objects\":%lu,\"unknown_live_bytes\":%lu,", all ? 0 : live, all ? 0 : bytes);
    printf("\"compactable_granules\":%lu,\"compactable_bytes\":%lu,", all ? free_pages : 0, all ? free_pages * PAGE : 0);
    printf("\"apart\":{\"objects\":%lu,\"bytes\":%lu},\"unknown_frees\":%lu}}],", apart, apart_bytes,
           truth_losses.unmatched_frees);
    printf("\"losses\":{\"unmatched_frees\":%lu}}\n", truth_losses.unmatched_frees);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    thread_count = option("threads", 1);
    page_count = option("pages", 64);
    u64 ops = option("ops", 20000), churned = option("churn", 0);
    if (page_count > MOST || CELLS % thread_count) return 2;
    struct worker *workers = calloc(thread_count, sizeof *workers);
    for (u64 i = 0; i < thread_count; i++) {
        u64 cells = page_count * CELLS / thread_count;
        workers[i] = (struct worker){i, ops / thread_count, random_u64(), calloc(cells, sizeof(struct object)), cells};
    }
    /* What is older than an attach, and freed after it. */
    if (!truth_from_start)
        for (u64 i = 0; i < 10; i++) page_alloc(FAR * 2 + i * PAGE, 10);
    ready();
    if (!truth_from_start)
        for (u64 i = 0; i < 10; i++) {
            page_free((void *)(FAR * 2 + i * PAGE));
            truth_losses.unmatched_frees++;
        }
    if (churned) churn(churned);
    pthread_t threads[CELLS];
    for (u64 i = 0; !churned && i < thread_count; i++) pthread_create(&threads[i], NULL, work, &workers[i]);
    for (u64 i = 0; !churned && i < thread_count; i++) pthread_join(threads[i], NULL);
    print(thread_count == 1);
    return 0;
}
