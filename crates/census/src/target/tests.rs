use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use drainprof_process::{Mapping, testing::cc};

use super::*;
use crate::{model::PartKind, testing::processor_time};

/// Reserves 160 GiB, with what looks like two large objects of glibc in them, of two pages and of three, of which three
/// are present. glibc does not count them.
const RESERVES: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    int main(void) {
        size_t bytes = 160ul << 30;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        char *all = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (all == MAP_FAILED || madvise(all, bytes, MADV_NOHUGEPAGE))
            return 1;
        *(size_t *)(all + 8) = 2 * 4096 | 2;
        *(size_t *)(all + bytes / 2 + 8) = 3 * 4096 | 2;
        all[bytes / 2 + 4096] = 1;
        puts(malloc(100) ? "ready" : "");
        fflush(stdout);
        return getchar() == 'x';
    }
"#;

/// Starts threads that each use 256 KiB of their stacks, and a mapping of 1 MiB for each.
const THREADS: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>
    static pthread_barrier_t all;
    static void *work(void *unused) {
        volatile char used[256 << 10];
        for (int i = 0; i < 256 << 10; i += 512)
            used[i] = 1;
        pthread_barrier_wait(&all);
        for (;;)
            pause();
        return unused;
    }
    int main(void) {
        pthread_barrier_init(&all, 0, 5);
        for (int i = 0; i < 4; i++) {
            pthread_t thread;
            void *other = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (other == MAP_FAILED || pthread_create(&thread, 0, work, 0))
                return 1;
            memset(other, 1, 1 << 20);
        }
        pthread_barrier_wait(&all);
        puts("ready");
        fflush(stdout);
        return getchar() == 'x';
    }
"#;

/// Starts a program, and waits until it is ready.
fn started(name: &str, source: &str, flags: &[&str]) -> (tempfile::TempDir, Child) {
    let directory = tempfile::tempdir().unwrap();
    let program = cc(directory.path(), name, source, flags);
    let mut command = Command::new(program);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (directory, child)
}

/// Threads' stacks are as large as what is used of them, and mappings beside them are none.
#[test]
fn threads() {
    let (_directory, mut child) = started("threads", THREADS, &["-pthread"]);
    // A thread that has not come to rest has no stack pointer yet.
    let stacks = |census: &Census| {
        let found = census.parts.iter().filter(|part| part.kind == PartKind::Stack);
        found.map(|part| part.bytes).sum::<u64>()
    };
    let of = || take(child.id(), &Options::default()).unwrap();
    let mut census = of();
    for _ in 0..100 {
        if stacks(&census) >= 1 << 20 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        census = of();
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(((1 << 20)..(1 << 20) + (256 << 10)).contains(&stacks(&census)), "{census:?}");
    let others = census.unknown.iter().find(|one| one.allocator.is_none());
    assert!(others.is_some_and(|one| one.bytes >= 4 << 20), "{census:?}");
    let unknown: u64 = census.unknown.iter().map(|one| one.bytes).sum();
    assert_eq!(census.validated_bytes + unknown, census.rss_bytes);
}

/// Anonymous memory in huge pages of hugetlbfs is anonymous, and resident, though it has a name and a file's number. What
/// is shared is a file's.
#[test]
fn hugetlb() {
    let memory = |name: &str, shared: bool| MappedMemory {
        mapping: Mapping {
            start: 2 << 20,
            end: 6 << 20,
            file_offset: 0,
            writable: true,
            executable: false,
        },
        inode: 7,
        shared,
        name: name.to_owned(),
        rss_bytes: 0,
        swap_bytes: 0,
        huge_bytes: 0,
        hugetlb_bytes: 2 << 20,
    };
    let own = range(&memory("/anon_hugepage (deleted)", false));
    assert_eq!((own.kind, own.rss, own.hugetlb), (RangeKind::Anonymous, 2 << 20, 2 << 20));
    for (name, shared) in [("/anon_hugepage (deleted)", true), ("/dev/hugepages/pool", false)] {
        let other = range(&memory(name, shared));
        assert_eq!((other.kind, other.rss, other.hugetlb), (RangeKind::File, 0, 0));
    }
}

/// A reservation costs a census what is present of it.
#[test]
fn reservations() {
    let (_directory, mut child) = started("reserves", RESERVES, &[]);
    let began = processor_time();
    let census = take(child.id(), &Options::default());
    let took = processor_time().saturating_sub(began);
    drop(child.stdin.take());
    child.wait().unwrap();
    let census = census.unwrap();
    let [heap] = census.heaps.as_slice() else { panic!("{census:?}") };
    // Linux before 6.7 cannot find the pages in time: that is noted.
    let is_fast = Pagemap::open(std::process::id(), "/proc/self/pagemap").unwrap().skips_holes();
    assert_eq!(census.notes.len(), 1, "{:?}", census.notes);
    assert_eq!(heap.unknown_bytes, if is_fast { 5 * PAGE } else { 0 });
    assert_eq!(heap.mapped_alone_bytes, 0);
    assert!(took < Duration::from_secs(1), "{took:?}");
}
