//! A census of a process: its mappings, its memory, and which of its pages are present.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use drainprof_process::{
    MappedMemory, Process, ProcessError, ask_process, guarded, mapped_memory, read_memory,
    read_memory_at,
};

use crate::{
    budget::{Bounds, Budget},
    contexts::{self, Contexts},
    error::CensusError,
    files::Files,
    freeze::{MAX_FROZEN_TIME, while_frozen},
    heaps::heaps,
    model::{Census, SCHEMA},
    pagemap::Pagemap,
    parts::{name, parts, unknown, validated},
    pools,
    present::Present,
    space::{Memory, PAGE, Range, RangeKind, Space, resident},
    stacks,
    steps::steps,
};

/// What PostgreSQL's server calls the root of its memory contexts.
const TOP_CONTEXT: &str = "TopMemoryContext";

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
    /// Memory of ours that all readers together may take, bytes; never more than a process of this size may take of us.
    /// What does not fit is unknown. `None`: no other limit.
    pub memory: Option<u64>,
    /// After this time, what was not read is unknown. `None`: no limit but that of a process of this size.
    pub deadline: Option<Duration>,
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

/// Takes a census of process `pid`.
///
/// # Errors
/// The process cannot be inspected, is too large, or cannot be frozen.
pub fn take(pid: u32, options: &Options) -> Result<Census, CensusError> {
    let options = *options;
    guarded(move || take_here(pid, &options)).map_err(ProcessError::from)?
}

fn take_here(pid: u32, options: &Options) -> Result<Census, CensusError> {
    let process = Process::open(pid)?;
    if !options.freeze {
        return read(&process, options, None);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let reading = || read(&process, options, Some(Arc::clone(&stop)));
    let (census, seconds) = while_frozen(&process, (MAX_FROZEN_TIME, &stop), reading)?;
    Ok(Census { frozen_seconds: Some(seconds), ..census })
}

/// What a census of these mappings may take.
fn bounds(ranges: &[Range], options: &Options) -> Bounds {
    let mut bounds = Bounds::of(resident(ranges));
    bounds.kept = bounds.kept.min(options.memory.unwrap_or(u64::MAX));
    bounds.time = bounds.time.min(options.deadline.unwrap_or(Duration::MAX));
    bounds
}

fn read(
    process: &Process,
    options: &Options,
    stop: Option<Arc<AtomicBool>>,
) -> Result<Census, CensusError> {
    let (began, pid) = (Instant::now(), process.pid);
    let ranges: Vec<Range> = mapped_memory(pid)?.iter().map(range).collect();
    check_size(pid, &ranges, options)?;
    let pointers = stacks::pointers(process);
    let memory = Target::open(process)?;
    let budget = Budget::new(bounds(&ranges, options), stop);
    let mut space = Space::within(ranges, &memory, budget);
    space.wants_map = options.map;
    let mut census = Census {
        schema: SCHEMA.to_owned(),
        pid,
        comm: process.comm.clone(),
        rss_bytes: space.ranges.iter().map(|range| range.rss).sum(),
        swap_bytes: space.ranges.iter().map(|range| range.swap).sum(),
        huge_bytes: space.ranges.iter().map(|range| range.huge).sum(),
        hugetlb_bytes: space.ranges.iter().map(|range| range.hugetlb).sum(),
        page_table_bytes: page_tables(pid).unwrap_or_default(),
        ..Census::default()
    };
    let mut heaps = heaps(&mut space, &pointers);
    census.parts = parts(&space, &heaps);
    name(&mut census.parts, &mut heaps, || memory.files.unread());
    census.validated_bytes = validated(&census.parts);
    census.unknown = unknown(&census.parts, &heaps);
    census.huge_idle_bytes = heaps.huge_idle_bytes;
    census.heaps = heaps.found.into_iter().map(|(heap, _)| heap).collect();
    census.notes = heaps.notes.into_iter().map(|note| note.text).collect();
    census.next = steps(&census);
    let wants_contexts = options.contexts != ContextDetail::None;
    if let Some(Contexts { contexts, notes }) =
        wants_contexts.then(|| views(&space, &memory.files, options.contexts)).flatten()
    {
        census.contexts = contexts;
        census.notes.extend(notes);
    }
    census.ran_out = space.budget.ran_out();
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
    let heaps = ranges.iter().filter(|range| range.is_heap());
    let bytes =
        heaps.fold(0u64, |sum, range| sum.saturating_add(range.end.saturating_sub(range.start)));
    match options.largest_bytes {
        Some(largest) if bytes > largest => Err(CensusError::TooLarge { pid, bytes, largest }),
        _ => Ok(()),
    }
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
        let pagemap = ask_process(pid, || Pagemap::open(pid, &path)).map_err(|error| {
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

    fn huge(&self, start: u64, end: u64) -> Option<Present> {
        self.pagemap.huge(start, end)
    }

    fn guarded(&self, start: u64, end: u64) -> Option<bool> {
        self.pagemap.guarded(start, end)
    }

    fn skips_holes(&self) -> bool {
        self.pagemap.skips_holes()
    }
}

/// Memory of a process for walks of its structures: pages that are not present are not read.
/// Nothing more is read once a census of the process might not read more.
pub struct Reader {
    target: Target,
    budget: Budget,
}

impl Reader {
    /// Opens it.
    ///
    /// # Errors
    /// The process cannot be inspected.
    pub fn open(process: &Process) -> Result<Self, ProcessError> {
        let ranges: Vec<Range> = mapped_memory(process.pid)?.iter().map(range).collect();
        let budget = Budget::new(Bounds::of(resident(&ranges)), None);
        Ok(Self { target: Target::open(process)?, budget })
    }

    /// Fills `bytes` from `address` on; whether all of them are present and could be read.
    #[must_use]
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Some(end) = address.checked_add(bytes.len() as u64) else { return false };
        let Some(last) = end.checked_next_multiple_of(PAGE) else { return false };
        let first = address / PAGE * PAGE;
        let is_present = || self.target.present(first, last).bytes(first, last) == last - first;
        self.budget.reads(last - first, 1) && is_present() && self.target.read(address, bytes)
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reader").field(&self.target.pid).finish()
    }
}

/// What a mapping is to a census.
fn range(memory: &MappedMemory) -> Range {
    let name = memory.name.as_str();
    let is_shared = ["/dev/zero", "/memfd:", "/SYSV"].iter().any(|prefix| name.starts_with(prefix));
    // Anonymous memory too, which the kernel keeps in a file of its own.
    let is_hugetlb = !memory.shared && name.starts_with("/anon_hugepage");
    let hugetlb = if is_hugetlb { memory.hugetlb_bytes } else { 0 };
    let kind = match name {
        "[heap]" => RangeKind::Heap,
        "[stack]" => RangeKind::Stack,
        _ if is_hugetlb => RangeKind::Anonymous,
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
        rss: memory.rss_bytes.saturating_add(hugetlb),
        swap: memory.swap_bytes,
        huge: memory.huge_bytes,
        hugetlb,
    }
}

/// Bytes of page tables.
fn page_tables(pid: u32) -> Option<u64> {
    let read = || std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = ask_process(pid, read).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests;
