/* cflags: -static -pthread */
/* Processes that the kernel waits for while it holds a lock of theirs: nobody who asks about them gets an answer.
 *
 * The first process is the server of a FUSE file system in a namespace of its own, as any user may have it. `count`
 * children use its file, and from then on it answers nothing. With `mode=exec` a child executes a program while the
 * file is open: the kernel closes it in the middle, and waits. With `mode=replace` a child maps another page over one
 * of the file that it has written to: the kernel writes that one back, and waits. With `mode=fault` it reads a page of the
 * file that the server refuses once: the second time the kernel waits with the lock held for reading, and nobody who reads
 * likewise notices. With `mode=fork` it does the same as with `replace`, while another thread of it forks. With `map` it has
 * mapped that file for execution. The end of stdin ends the server, and so do `seconds` without a line from there; with it
 * ends all that waits.
 *
 * Prints `SILENT <pid>` for each child that hangs, and then `READY <pid>`. No truths.
 */
#include "truth.h"

#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

enum { FILE_NODE = 2, MAX_REQUEST = 256 << 10, PAGE = 4096, MAX_CHILDREN = 256 };

static int fuse = -1;
static char device[4096]; /* open to all users, as udev makes it */
static unsigned unanswered; /* requests of the kind that hangs */
static bool refuses_reads;

static void fail(const char *what) {
    fprintf(stderr, "silent: %s: %s\n", what, strerror(errno));
    _exit(9);
}

static void write_file(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    if (file < 0 || write(file, text, strlen(text)) < 0) fail(path);
    close(file);
}

static void make_device(const char *beside) {
    snprintf(device, sizeof device, "%s.fuse", beside);
    unlink(device);
    if (mknod(device, S_IFCHR, makedev(10, 229)) || chmod(device, 0666)) fail(device);
}

/* A user without rights, with a namespace in which it may mount. */
static void become_user(unsigned user) {
    if (geteuid() == 0 && (setgid(user) || setuid(user))) fail("setuid");
    prctl(PR_SET_DUMPABLE, 1);
    unsigned own = geteuid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) fail("unshare");
    char map[64];
    write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", own, own);
    write_file("/proc/self/uid_map", map);
    write_file("/proc/self/gid_map", map);
}

static void mount_at(const char *place) {
    fuse = open(device, O_RDWR | O_CLOEXEC);
    if (fuse < 0) fail(device);
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", fuse, geteuid(), getegid());
    if (mount("silent", place, "fuse", MS_NOSUID | MS_NODEV, options)) fail("mount");
}

static struct fuse_attr attributes(u64 node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .uid = geteuid(), .gid = getegid(), .blksize = PAGE};
    attr.mode = node >= FILE_NODE ? 0100666 : 040755;
    attr.size = node >= FILE_NODE ? PAGE : 0;
    return attr;
}

static void reply(const struct fuse_in_header *to, int error, const void *answer, size_t length) {
    struct { struct fuse_out_header head; char body[PAGE]; } out = {
        .head = {.len = sizeof out.head + length, .error = error, .unique = to->unique}};
    memcpy(out.body, answer, length);
    if (write(fuse, &out, out.head.len) < 0 && errno != ENOENT) fail("an answer");
}

/* Answers one request, but not those that the kernel sends while it holds a lock. */
static void answer(const struct fuse_in_header *in) {
    static const char zeros[PAGE];
    switch (in->opcode) {
    case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT: return;
    case FUSE_FLUSH: case FUSE_WRITE: case FUSE_FSYNC:
        unanswered++;
        return;
    case FUSE_INIT: {
        struct fuse_init_out out = {.major = 7, .minor = 31, .max_write = 65536, .max_background = 64,
                                    .congestion_threshold = 48, .time_gran = 1};
        return reply(in, 0, &out, sizeof out);
    }
    case FUSE_LOOKUP: {
        u64 node = FILE_NODE + strtoul((const char *)(in + 1), NULL, 10); /* each child has a file of its own */
        struct fuse_entry_out out = {.nodeid = node, .attr_valid = 3600, .entry_valid = 3600};
        out.attr = attributes(node);
        return reply(in, 0, &out, sizeof out);
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 3600, .attr = attributes(in->nodeid)};
        return reply(in, 0, &out, sizeof out);
    }
    case FUSE_OPEN: case FUSE_OPENDIR: {
        struct fuse_open_out out = {.fh = 1};
        return reply(in, 0, &out, sizeof out);
    }
    case FUSE_READ: {
        static unsigned reads[MAX_CHILDREN];
        if (!refuses_reads) return reply(in, 0, zeros, PAGE);
        if (++reads[(in->nodeid - FILE_NODE) % MAX_CHILDREN] == 1) return reply(in, -EIO, zeros, 0);
        unanswered++;
        return;
    }
    case FUSE_RELEASE: case FUSE_SETATTR: return reply(in, 0, zeros, 0);
    default: return reply(in, -ENOSYS, zeros, 0);
    }
}

static void map_whole(const char *path) {
    struct stat found;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &found)) fail(path);
    if (mmap(NULL, found.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) fail(path);
    close(file);
}

static bool has_forked;

static void *forks(void *none) {
    for (;;) {
        /* Its children's ends must not close the file, which would hang. */
        pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
        if (child == 0) _exit(0);
        if (child > 0) waitpid(child, NULL, 0);
        __atomic_store_n(&has_forked, true, __ATOMIC_SEQ_CST);
    }
    return none;
}

static void child(const char *mode, const char *path) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(fuse);
    if (*option_text("map", "")) map_whole(option_text("map", ""));
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) fail(path);
    if (!strcmp(mode, "exec")) {
        char *arguments[] = {"silent", "mode=idle", NULL};
        execv("/proc/self/exe", arguments);
        fail("exec");
    }
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) fail("mmap");
    if (!strcmp(mode, "fault")) _exit(*(volatile char *)page);
    page[0] = 1;
    pthread_t thread;
    if (!strcmp(mode, "fork")) {
        if (madvise(page, PAGE, MADV_DONTFORK)) fail("madvise");
        if (pthread_create(&thread, NULL, forks, NULL)) fail("a thread");
        /* Its own memory is there then: else it would wait for the lock with that, and not fork at all. */
        while (!__atomic_load_n(&has_forked, __ATOMIC_SEQ_CST)) sched_yield();
    }
    mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    pause();
    _exit(0);
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    const char *mode = option_text("mode", "exec");
    if (!strcmp(mode, "idle")) return pause();
    refuses_reads = !strcmp(mode, "fault");
    alarm(option("seconds", option("at_most", 120))); /* nobody may be left that hangs */
    unsigned count = option("count", 1);
    const char *place = option_text("at", "/mnt");
    make_device(place);
    become_user(option("user", 65534));
    mount_at(place);
    char path[4096];
    pid_t children[MAX_CHILDREN];
    if (count > MAX_CHILDREN) count = MAX_CHILDREN;
    for (unsigned i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%u", place, i);
        children[i] = fork();
        if (children[i] < 0) fail("fork");
        if (children[i] == 0) child(mode, path);
    }
    static char request[MAX_REQUEST];
    struct pollfd ready[] = {{.fd = fuse, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    for (bool is_told = false;;) {
        if (poll(ready, 2, -1) < 0 && errno != EINTR) fail("poll");
        if (ready[1].revents) {
            char line[64];
            if (read(0, line, sizeof line) <= 0) return 0;
            alarm(option("seconds", option("at_most", 120)));
        }
        if (ready[0].revents) {
            ssize_t length = read(fuse, request, sizeof request);
            if (length < 0 && errno == ENODEV) return 0;
            if (length >= (ssize_t)sizeof(struct fuse_in_header)) answer((struct fuse_in_header *)request);
        }
        if (!is_told && unanswered >= count) {
            is_told = true;
            for (unsigned i = 0; i < count; i++) printf("SILENT %d\n", (int)children[i]);
            printf("READY %d\n", (int)getpid());
            fflush(stdout);
        }
    }
}
