//! The one list of everything that can be lost or not be matched.
//!
//! Kernel side, logs, JSON, `doctor` and documentation read this table; a new loss is one row and one
//! variant.

/// How a line of the list bears on the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something that the counts need was not seen: the report is `complete: false`.
    Incomplete,
    /// A fact about the target or the moment of attaching; counts are still exact.
    Notice,
}

/// One line of the list.
#[derive(Clone, Copy, Debug)]
pub struct LossInfo {
    /// The loss.
    pub loss: Loss,
    /// Its name in JSON, metrics and text.
    pub name: &'static str,
    /// How it bears on the result.
    pub severity: Severity,
    /// What it means.
    pub meaning: &'static str,
    /// What the user can do about it.
    pub remedy: &'static str,
}

macro_rules! losses {
    ($($variant:ident, $name:literal, $severity:ident, $meaning:literal, $remedy:literal;)*) => {
        /// What was lost; the discriminant is the index of its counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Loss {
            $(#[doc = $meaning] $variant,)*
        }

        /// The list, in the order of the counters.
        pub const LOSSES: &[LossInfo] = &[
            $(LossInfo {
                loss: Loss::$variant,
                name: $name,
                severity: Severity::$severity,
                meaning: $meaning,
                remedy: $remedy,
            },)*
        ];
    };
}

losses! {
    GranuleMapFull, "granule_map_full", Incomplete,
        "Granules that could not be followed because all granule slots were taken; their closes are unknown.",
        "raise --max-granules";
    GranuleIndexFull, "granule_index_full", Incomplete,
        "Events whose granule id could not be entered into the index of ids.",
        "raise --max-granules";
    ObjectMapFull, "object_map_full", Incomplete,
        "Objects that could not be followed because the object map was full; the closes of their granules are unknown.",
        "raise --max-objects";
    InstanceMapFull, "instance_map_full", Incomplete,
        "Events of allocator instances beyond the number that can be followed.",
        "raise --max-instances";
    ThreadMapFull, "thread_map_full", Incomplete,
        "Calls that could not be followed from entry to return because too many threads are in calls.",
        "raise --max-threads";
    HistogramMapFull, "histogram_map_full", Incomplete,
        "Values that found no histogram: more places of opening than can be followed.",
        "raise --max-places";
    NestingTooDeep, "nesting_too_deep", Incomplete,
        "Calls nested deeper inside probed calls of one thread than can be followed.",
        "probe fewer wrappers: name only the innermost function of a recursion in the profile";
    CallAbandoned, "call_abandoned", Incomplete,
        "Calls that never returned: their thread ended, or longjmp or an exception left them.",
        "prefer probes at entry in the profile where the function can be left without returning";
    ReadFault, "read_fault", Incomplete,
        "Hits whose expressions could not be computed: target memory was not readable, or a division by zero. A close whose live count alone it was is unknown; any other hit is not counted.",
        "check the profile's offsets against the binary: drainprof profile check -p PID";
    WalkCut, "walk_cut", Incomplete,
        "Lists that walk(…) gave up: longer than it may visit, or without an end. A close whose live count it was is unknown; any other hit is not counted.",
        "name the list's end in the profile (end = …) if it is circular, or raise max if it is long";
    AllocRaced, "alloc_raced", Incomplete,
        "Opens, closes, allocations and frees that other threads got in the way of, in the same granule and within nanoseconds, more often than was retried.",
        "report it with the profile: it needs a granule that many threads use at the same instant";
    RingFull, "ring_full", Incomplete,
        "Events for user space (lifecycle, --events) that found the ring buffer full.",
        "raise --ring-bytes, or drop --events";
    EventUnknown, "event_unknown", Incomplete,
        "Ring-buffer records that could not be decoded and were skipped.",
        "report it: kernel side and user space are of different versions";
    IndexRaced, "index_raced", Incomplete,
        "Ids of granules or objects that were reused in the instant in which the sweep removed them.",
        "raise --max-granules and --max-objects, so that no sweep is needed";
    AttachedLate, "attached_late", Incomplete,
        "Processes that were found (after fork or exec) only after they had begun to run.",
        "start them under drainprof run, or attach to their parent with --follow-forks";
    ProcessMissed, "processes_missed", Incomplete,
        "Processes of a program that the daemon watches that ended before their probes were in place; nothing of them is counted.",
        "set daemon.attach = \"file\", or a shorter daemon.discover_interval";
    SiteTableFull, "site_table_full", Incomplete,
        "Allocations of call paths beyond the number that can be distinguished; no site counts them.",
        "raise --max-call-paths";
    PathNotWalked, "paths_not_walked", Incomplete,
        "Allocations, page faults and system calls whose call path was not followed, because too many threads were preempted while theirs was; no call path counts them.",
        "fewer threads of low priority at once on each processor, or a level without call paths";
    PinPairsFull, "pin_pairs_full", Incomplete,
        "Pins whose granule may count more or less than once for their call path: too many granules are pinned from several paths at once.",
        "raise --max-call-paths";
    GrowthCellsFull, "growth_cells_full", Incomplete,
        "Page faults, system calls and changes of resident memory of call paths beyond the number that can be distinguished; no call path counts them.",
        "raise --max-call-paths";
    GrowthPagesFull, "growth_pages_full", Incomplete,
        "Page faults whose page could not be noted because the table of touched pages was full; they count for no granule.",
        "watch fewer processes at once with --growth, or for a shorter time";
    MappingsLost, "mappings_lost", Incomplete,
        "System calls that change mappings that found their ring full; outstanding mappings and the heap may be wrong.",
        "watch fewer processes at once with --growth";
    TracepointSkipped, "tracepoints_skipped", Incomplete,
        "Starts and ends of processes and threads, and changes of memory, of any process, that a program was not run for, because an eBPF program was running on that CPU already.",
        "nothing, if it is rare: it takes a thread that is preempted at the wrong instant; Linux 6.1 does not report it";

    CountsUnsettled, "counts_unsettled", Incomplete,
        "Readings of final counts while a thread was still preempted inside a program, after two seconds: what it was about to count is missing.",
        "give the process more CPU time, or observe once more";

    PathNotCaptured, "path_not_captured", Notice,
        "Allocations of call paths that were not known yet and whose stack could not be sent to user space; only the known part of their path is reported.",
        "nothing, if it does not grow: paths are learnt within milliseconds";
    PathCut, "path_cut", Notice,
        "Allocations whose call path could not be followed to its start: code without unwind information, an unreadable stack, or too deep.",
        "the report shows the reason at each path (path_end)";
    PinsWhileLearning, "pins_while_learning", Notice,
        "Granules that may count more than once for a call path: their pins were freed within the milliseconds in which it was being learnt.",
        "nothing: it can only be in the first moments of a path; objects and bytes are exact all the same";
    RecordDropped, "records_dropped", Notice,
        "Records of the output (intervals, events) that its reader was too slow for; the last record is there.",
        "read faster, or ask for fewer: a longer --interval, no --events";
    UnmatchedFree, "unmatched_frees", Notice,
        "Frees of objects whose allocation was not seen: allocated before the attach, freed twice, or allocated by a function that the profile does not name.",
        "attach earlier (drainprof run); if it keeps growing, the profile misses an alloc function";
    UnmatchedClose, "unmatched_closes", Notice,
        "Closes of granules that were closed already.",
        "a double close in the target, or a profile that misses an open function";
    ObjectReplaced, "objects_replaced", Notice,
        "Objects that were allocated again without a free in between; the earlier one is taken as freed.",
        "the profile misses a free function";
    AllocAfterClose, "allocs_after_close", Notice,
        "Allocations in a granule after its close and before its next open; they count as live in the closed granule.",
        "a straggling thread in the target, or a profile that misses an open function";
    CallCutByExec, "calls_cut_by_exec", Notice,
        "Calls that were cut off because their process called exec.",
        "nothing: the old image is gone";
    CallCutByExit, "calls_cut_by_exit", Notice,
        "Calls that were cut off because their process ended.",
        "nothing: the process is gone";
    ReturnUnmatched, "returns_unmatched", Notice,
        "Returns of calls whose entry was not followed: entered before the attach, or lost as another line says.",
        "nothing: before the attach they are not ours";
    ProgramUnexamined, "programs_unexamined", Notice,
        "Programs that an observed process executed and had left, by another exec or its end, before they could be examined: what they did is counted where their files had probes already, and nowhere else.",
        "observe the program itself if it matters: drainprof run";
}

/// Number of counters.
pub const LOSS_COUNT: usize = LOSSES.len();

/// Room for counters of one CPU, a power of two.
pub const LOSS_SLOTS: usize = LOSS_COUNT.next_power_of_two();

/// All counters of one CPU, or their sum.
pub type LossCounts = [u64; LOSS_COUNT];

/// Bytes of each of [`PADDED_LOSS_NAMES`].
pub const LOSS_NAME_BYTES: usize = 24;

/// The names by number, padded with spaces: the kernel side logs text of a fixed length. Numbers beyond the list have
/// no name.
pub static PADDED_LOSS_NAMES: [[u8; LOSS_NAME_BYTES]; LOSS_SLOTS] = padded_names();

const fn padded_names() -> [[u8; LOSS_NAME_BYTES]; LOSS_SLOTS] {
    let mut names = [[b' '; LOSS_NAME_BYTES]; LOSS_SLOTS];
    let mut loss = 0;
    while loss < LOSS_COUNT {
        let name = LOSSES[loss].name.as_bytes();
        let mut at = 0;
        while at < name.len() {
            assert!(name[at].is_ascii());
            names[loss][at] = name[at];
            at += 1;
        }
        loss += 1;
    }
    names
}

impl Loss {
    /// The line of the list.
    #[must_use]
    pub fn info(self) -> &'static LossInfo {
        &LOSSES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list is in the order of the discriminants, and names are unique.
    #[test]
    fn list_and_enum_agree() {
        for (index, info) in LOSSES.iter().enumerate() {
            assert_eq!(info.loss as usize, index, "{}", info.name);
            assert!(LOSSES[..index].iter().all(|earlier| earlier.name != info.name));
        }
    }
}
