//! A census of a process: its mappings, its memory, and which of its pages are present.

use std::time::Instant;

use drainprof_process::{
    MappedMemory, Process, ProcessError, mapped_memory, read_memory, read_memory_at,
};

use crate::{
    contexts::{self, Contexts},
    cpython,
    files::Files,
    found::{Taken, Walker},
    freeze::while_frozen,
    glibc, go,
    granules::cells,
    jemalloc, mimalloc,
    model::{Census, Heap, SCHEMA},
    musl,
    pagemap::Pagemap,
    parts::parts,
    pools,
    present::Present,
    ruby,
    space::{Memory, PAGE, Range, RangeKind, Space},
    steps::steps,
    tcmalloc,
};

/// What PostgreSQL's server calls the root of its memory contexts.
const TOP_CONTEXT: &str = "TopMemoryContext";
/// Bytes of a thread's stack, at most.
const MAX_STACK: u64 = 64 << 20;

/// How a census is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A process with more bytes of writable anonymous memory, resident or not, is refused: what a census needs itself
    /// grows with them, to about a hundredth. `None`: no limit.
    pub largest_bytes: Option<u64>,
    /// Whether all threads of the process stand still while it is read.
    pub freeze: bool,
    /// How much of PostgreSQL's memory contexts and of servers' pools is read.
    pub contexts: ContextDetail,
    /// Whether heaps have maps of their granules.
    pub map: bool,
}

/// How much of PostgreSQL's memory contexts and of servers' pools is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextDetail {
    /// Nothing: they lie in a heap whose census has counted them.
    #[default]
    None,
    /// All but their idents.
    Names,
    /// Their idents too, which can be SQL text.
    Idents,
}

/// Why there is no census.
#[derive(Debug, thiserror::Error)]
pub enum CensusError {
    /// The process cannot be inspected: it does not exist, has ended, or may not be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It is larger than [`Options::largest_bytes`].
    #[error(
        "process {pid} has {bytes} bytes of writable anonymous memory, and the limit is {largest}"
    )]
    TooLarge {
        /// The process.
        pid: u32,
        /// Its writable anonymous memory, resident or not.
        bytes: u64,
        /// The limit.
        largest: u64,
    },
    /// It cannot be frozen, because another process traces it.
    #[error(
        "process {pid} cannot be frozen: process {tracer} traces it already, as a debugger or strace does"
    )]
    Traced {
        /// The process.
        pid: u32,
        /// Who traces it.
        tracer: u32,
    },
    /// Its threads did not stop.
    #[error(
        "process {pid} cannot be frozen: a thread waits in the kernel and does not stop; it runs on"
    )]
    NotFrozen {
        /// The process.
        pid: u32,
    },
}

/// Takes a census of process `pid`.
///
/// # Errors
/// The process cannot be inspected, is too large, or cannot be frozen.
pub fn take(pid: u32, options: &Options) -> Result<Census, CensusError> {
    let process = Process::open(pid)?;
    if !options.freeze {
        return read(&process, options);
    }
    let (census, seconds) = while_frozen(&process, || read(&process, options))?;
    Ok(Census { frozen_seconds: Some(seconds), ..census })
}

fn read(process: &Process, options: &Options) -> Result<Census, CensusError> {
    let (began, pid) = (Instant::now(), process.pid);
    let mut ranges: Vec<Range> = mapped_memory(pid)?.iter().map(range).collect();
    check_size(pid, &ranges, options)?;
    let stacks = mark_stacks(pid, process, &mut ranges);
    let memory = Target::open(process)?;
    let mut space = Space::new(ranges, &memory);
    space.wants_map = options.map;
    let mut census = Census {
        schema: SCHEMA.to_owned(),
        pid,
        comm: process.comm.clone(),
        rss_bytes: space.ranges.iter().map(|range| range.rss).sum(),
        swap_bytes: space.ranges.iter().map(|range| range.swap).sum(),
        page_table_bytes: page_tables(pid).unwrap_or_default(),
        ..Census::default()
    };
    let heaps = heaps(&mut space, &stacks, &mut census.notes);
    census.notes.extend(space.note());
    census.parts = parts(&space, &heaps);
    census.heaps = heaps.into_iter().map(|(heap, _)| heap).collect();
    census.next = steps(&census);
    let wants_contexts = options.contexts != ContextDetail::None;
    if let Some(Contexts { contexts, notes }) =
        wants_contexts.then(|| views(&space, &memory.files, options.contexts)).flatten()
    {
        census.contexts = contexts;
        census.notes.extend(notes);
    }
    census.read_bytes = space.read_bytes();
    census.seconds = began.elapsed().as_secs_f64();
    if !process.is_alive() {
        return Err(ProcessError::Ended { pid }.into());
    }
    Ok(census)
}

/// What the program divides its heap into, where it exports the root of that.
fn views(space: &Space<'_>, files: &Files, detail: ContextDetail) -> Option<Contexts> {
    if let Some(top) = files.exported(TOP_CONTEXT) {
        return Some(contexts::read(space, top, detail == ContextDetail::Idents));
    }
    [pools::NGINX, pools::APR].into_iter().find_map(|(root, read)| {
        let top = files.exported(root)?;
        Some(read(space, top))
    })
}

fn check_size(pid: u32, ranges: &[Range], options: &Options) -> Result<(), CensusError> {
    let heaps = [RangeKind::Heap, RangeKind::Anonymous];
    let of_heaps = ranges.iter().filter(|range| range.writable && heaps.contains(&range.kind));
    let bytes =
        of_heaps.fold(0u64, |sum, range| sum.saturating_add(range.end.saturating_sub(range.start)));
    match options.largest_bytes {
        Some(largest) if bytes > largest => Err(CensusError::TooLarge { pid, bytes, largest }),
        _ => Ok(()),
    }
}

/// The walkers, the surest first: a chunk of glibc may look like anything, a pool does not.
const WALKERS: [Walker; 8] = [
    cpython::find,
    ruby::find,
    go::find,
    mimalloc::find,
    jemalloc::find,
    tcmalloc::find,
    musl::find,
    glibc::find,
];

/// The heaps, each with the resident bytes of its granules that are held. What seems to be a thread's stack is searched
/// as other memory is, and a stack where no heap has it: goroutines' stacks lie in the heap, for example.
pub(crate) fn heaps(
    space: &mut Space<'_>,
    stacks: &[u64],
    notes: &mut Vec<String>,
) -> Vec<(Heap, u64)> {
    space.mark(stacks, RangeKind::Anonymous, &Taken::default());
    let (mut heaps, mut taken) = (Vec::new(), Taken::default());
    for walker in WALKERS {
        if let Some(mut found) = walker(space, &taken) {
            notes.append(&mut found.notes);
            if found.heap.mapped_bytes == 0 {
                continue;
            }
            taken.add(found.taken);
            let heap = &mut found.heap;
            heap.map = cells(std::mem::take(&mut heap.map));
            let used = heap.live_bytes.saturating_add(heap.unknown_bytes);
            heap.compaction_bytes = heap.resident_bytes.saturating_sub(used) / PAGE * PAGE;
            heaps.push((found.heap, found.held_bytes));
        }
    }
    space.mark(stacks, RangeKind::Stack, &taken);
    if heaps.is_empty() {
        notes.push(
            "no heap was found whose structures are known: glibc, musl, CPython, Ruby, Go, jemalloc 5.1 to 5.3, \
             tcmalloc, mimalloc 2.0"
                .to_owned(),
        );
    }
    heaps
}

/// A process's memory.
struct Target {
    pid: u32,
    pagemap: Pagemap,
    files: Files,
}

impl Target {
    fn open(process: &Process) -> Result<Self, ProcessError> {
        let pid = process.pid;
        let path = format!("/proc/{pid}/pagemap");
        let pagemap = Pagemap::open(&path).map_err(|error| {
            ProcessError::from_io(pid, "read which pages are present", path.into(), error)
        })?;
        Ok(Self { pid, pagemap, files: Files::of(process) })
    }
}

impl Memory for Target {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        read_memory(self.pid, address, bytes) == Ok(bytes.len())
    }

    fn read_each(&self, addresses: &[u64], bytes: &mut [u8]) -> usize {
        let each = bytes.len() / addresses.len().max(1);
        let read = read_memory_at(self.pid, addresses, bytes).unwrap_or_default();
        read.checked_div(each).unwrap_or_default()
    }

    fn read_file(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.files.read(address, bytes)
    }

    fn vtable(&self, address: u64) -> Option<String> {
        self.files.vtable(address)
    }

    fn present(&self, start: u64, end: u64) -> Present {
        self.pagemap.present(start, end)
    }

    fn skips_holes(&self) -> bool {
        self.pagemap.skips_holes()
    }
}

/// Memory of a process for who walks its structures: pages that are not present are not read.
pub struct Reader(Target);

impl Reader {
    /// Opens it.
    ///
    /// # Errors
    /// The process cannot be inspected.
    pub fn open(process: &Process) -> Result<Self, ProcessError> {
        Target::open(process).map(Self)
    }

    /// Fills `bytes` from `address` on; whether all of them are present and could be read.
    #[must_use]
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Some(end) = address.checked_add(bytes.len() as u64) else { return false };
        let Some(last) = end.checked_next_multiple_of(PAGE) else { return false };
        let first = address / PAGE * PAGE;
        let is_present = self.0.present(first, last).bytes(first, last) == last - first;
        is_present && self.0.read(address, bytes)
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reader").field(&self.0.pid).finish()
    }
}

/// What a mapping is to a census.
fn range(memory: &MappedMemory) -> Range {
    let name = memory.name.as_str();
    let is_shared = ["/dev/zero", "/memfd:", "/SYSV"].iter().any(|prefix| name.starts_with(prefix));
    let kind = match name {
        "[heap]" => RangeKind::Heap,
        "[stack]" => RangeKind::Stack,
        _ if is_shared => RangeKind::Shared,
        _ if memory.inode != 0 => RangeKind::File,
        _ if memory.shared => RangeKind::Shared,
        _ => RangeKind::Anonymous,
    };
    Range {
        start: memory.mapping.start,
        end: memory.mapping.end,
        kind,
        writable: memory.mapping.writable,
        rss: memory.rss_bytes,
        swap: memory.swap_bytes,
    }
}

/// Marks what seems to be threads' stacks, and has their first addresses: what their stack pointers lie in, behind a guard
/// that cannot be written, and no larger than a stack is.
fn mark_stacks(pid: u32, process: &Process, ranges: &mut [Range]) -> Vec<u64> {
    let mut stacks = Vec::new();
    for thread in process.threads().unwrap_or_default() {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")) else {
            continue;
        };
        // "running", or numbers that end with the stack pointer and the instruction pointer.
        let Some(pointer) = text.split_whitespace().rev().nth(1) else { continue };
        let Some(pointer) =
            pointer.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok())
        else {
            continue;
        };
        let next = ranges.partition_point(|range| range.start <= pointer);
        let [.., guard, stack] = &mut ranges[..next] else { continue };
        let has_guard = guard.end == stack.start && !guard.writable;
        let is_stack = pointer < stack.end && stack.end - stack.start <= MAX_STACK && has_guard;
        if is_stack && stack.kind == RangeKind::Anonymous {
            stack.kind = RangeKind::Stack;
            stacks.push(stack.start);
        }
    }
    stacks
}

/// Bytes of page tables.
fn page_tables(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
        time::Duration,
    };

    use drainprof_process::testing::cc;

    use super::*;
    use crate::testing::processor_time;

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

    /// A reservation costs a census what is present of it.
    #[test]
    fn reservations() {
        let directory = tempfile::tempdir().unwrap();
        let program = cc(directory.path(), "reserves", RESERVES, &[]);
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let began = processor_time();
        let census = take(child.id(), &Options::default());
        let took = processor_time().saturating_sub(began);
        drop(child.stdin.take());
        child.wait().unwrap();
        let census = census.unwrap();
        let [heap] = census.heaps.as_slice() else { panic!("{census:?}") };
        // Linux before 6.7 cannot find the pages in time: that is noted.
        let is_fast = Pagemap::open("/proc/self/pagemap").unwrap().skips_holes();
        assert_eq!(census.notes.len(), 1, "{:?}", census.notes);
        assert_eq!(heap.unknown_bytes, if is_fast { 5 * PAGE } else { 0 });
        assert_eq!(heap.mapped_alone_bytes, 0);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
