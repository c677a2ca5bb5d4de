//! Names shared with the object file: maps, programs, globals. A test compares them with the object.

use drainprof_common::spec::Role;
use drainprof_profile::Phase;

/// Maps that user space uses.
pub(super) const MAPS: [&str; 42] = [
    TARGETS,
    TARGET_WORDS,
    PROBES,
    PROBE_COUNTS,
    SERIES,
    SERIES_WORDS,
    SERIES_STATE,
    TOTALS,
    INDEX,
    GRANULE_WORDS,
    GRANULES,
    FREE_SLOTS,
    OBJECT_BUCKETS,
    OBJECTS,
    THREADS,
    THREAD_SLOTS,
    ZERO_THREAD,
    HIST_INDEX,
    HIST_WORDS,
    HISTOGRAMS,
    LOSSES,
    CURSORS,
    EVENTS,
    RULES,
    SPACES,
    SPACE_RANGES,
    WALKS,
    PATH_HASHES,
    PATHS,
    PATH_WORDS,
    SITE_HASHES,
    SITES,
    PIN_PAIRS,
    PIN_SITES,
    SNAPSHOTS,
    GROWTH_HASHES,
    GROWTH_CELLS,
    GROWTH_THREADS,
    GROWTH_TARGETS,
    ADDRESS_SPACES,
    TOUCHED,
    MAPPINGS,
];
pub(super) const TARGETS: &str = "TARGETS";
pub(super) const TARGET_WORDS: &str = "TARGET_WORDS";
pub(super) const PROBES: &str = "PROBES";
pub(super) const PROBE_COUNTS: &str = "PROBE_COUNTS";
pub(super) const SERIES: &str = "SERIES";
pub(super) const SERIES_WORDS: &str = "SERIES_WORDS";
pub(super) const SERIES_STATE: &str = "SERIES_STATE";
pub(super) const TOTALS: &str = "TOTALS";
pub(super) const INDEX: &str = "INDEX";
pub(super) const GRANULE_WORDS: &str = "GRANULE_WORDS";
pub(super) const GRANULES: &str = "GRANULES";
pub(super) const FREE_SLOTS: &str = "FREE_SLOTS";
pub(super) const OBJECT_BUCKETS: &str = "OBJECT_BUCKETS";
pub(super) const OBJECTS: &str = "OBJECTS";
pub(super) const THREADS: &str = "THREADS";
pub(super) const THREAD_SLOTS: &str = "THREAD_SLOTS";
pub(super) const ZERO_THREAD: &str = "ZERO_THREAD";
pub(super) const HISTOGRAMS: &str = "HISTOGRAMS";
pub(super) const HIST_INDEX: &str = "HIST_INDEX";
pub(super) const HIST_WORDS: &str = "HIST_WORDS";
pub(super) const LOSSES: &str = "LOSSES";
pub(super) const CURSORS: &str = "CURSORS";
pub(super) const EVENTS: &str = "EVENTS";
pub(super) const RULES: &str = "RULES";
pub(super) const SPACES: &str = "SPACES";
pub(super) const SPACE_RANGES: &str = "SPACE_RANGES";
pub(super) const WALKS: &str = "WALKS";
pub(super) const PATH_HASHES: &str = "PATH_HASHES";
pub(super) const PATHS: &str = "PATHS";
pub(super) const PATH_WORDS: &str = "PATH_WORDS";
pub(super) const SITE_HASHES: &str = "SITE_HASHES";
pub(super) const SITES: &str = "SITES";
pub(super) const PIN_SITES: &str = "PIN_SITES";
pub(super) const PIN_PAIRS: &str = "PIN_PAIRS";
pub(super) const SNAPSHOTS: &str = "SNAPSHOTS";
pub(super) const GROWTH_HASHES: &str = "GROWTH_HASHES";
pub(super) const GROWTH_CELLS: &str = "GROWTH_CELLS";
pub(super) const GROWTH_THREADS: &str = "GROWTH_THREADS";
pub(super) const GROWTH_TARGETS: &str = "GROWTH_TARGETS";
pub(super) const ADDRESS_SPACES: &str = "ADDRESS_SPACES";
pub(super) const TOUCHED: &str = "TOUCHED";
pub(super) const MAPPINGS: &str = "MAPPINGS";

/// The lifecycle programs and their tracepoints.
pub(super) const TRACEPOINTS: [(&str, &str, &str); 4] = [
    ("newtask", "task", "task_newtask"),
    ("exec", "sched", "sched_process_exec"),
    ("exit", "sched", "sched_process_exit"),
    ("thread_exit", "syscalls", "sys_enter_exit"),
];

/// The programs of growth on raw tracepoints.
pub(super) const GROWTH_RAW: [(&str, &str); 2] =
    [("fault_user", "page_fault_user"), ("fault_kernel", "page_fault_kernel")];

/// Those on tracepoints, each on all of its events.
pub(super) const GROWTH_TRACEPOINTS: [(&str, &str, &[&str]); 3] = [
    ("rss_changed", "kmem", &["rss_stat"]),
    (
        "mapping_begins",
        "syscalls",
        &[
            "sys_enter_brk",
            "sys_enter_mmap",
            "sys_enter_munmap",
            "sys_enter_mremap",
            "sys_enter_madvise",
        ],
    ),
    (
        "mapping_ends",
        "syscalls",
        &[
            "sys_exit_brk",
            "sys_exit_mmap",
            "sys_exit_munmap",
            "sys_exit_mremap",
            "sys_exit_madvise",
        ],
    ),
];

/// The program at the entry of every call that is judged at its return.
pub(super) const CALL_ENTRY: &str = "call_entry";

/// The programs that do nothing, at entry and at return.
pub(super) const EMPTY_ENTRY: &str = "empty_entry";
pub(super) const EMPTY_RETURN: &str = "empty_return";

/// The program that judges a role's hits in a phase, with their call paths if `stacks`. `None`: a realloc is judged at
/// return only.
pub(super) const fn program(role: Role, phase: Phase, stacks: bool) -> Option<&'static str> {
    Some(match (role, phase) {
        (Role::Alloc, Phase::Entry) if stacks => "alloc_entry_stacks",
        (Role::Alloc, Phase::Return) if stacks => "alloc_return_stacks",
        (Role::Realloc, Phase::Return) if stacks => "realloc_return_stacks",
        (Role::Open, Phase::Entry) => "open_entry",
        (Role::Open, Phase::Return) => "open_return",
        (Role::Close, Phase::Entry) => "close_entry",
        (Role::Close, Phase::Return) => "close_return",
        (Role::Reset, Phase::Entry) => "reset_entry",
        (Role::Reset, Phase::Return) => "reset_return",
        (Role::Alloc, Phase::Entry) => "alloc_entry",
        (Role::Alloc, Phase::Return) => "alloc_return",
        (Role::Free, Phase::Entry) => "free_entry",
        (Role::Free, Phase::Return) => "free_return",
        (Role::Realloc, Phase::Entry) => return None,
        (Role::Realloc, Phase::Return) => "realloc_return",
        (Role::Init, Phase::Entry) => "init_entry",
        (Role::Init, Phase::Return) => "init_return",
        (Role::Destroy, Phase::Entry) => "destroy_entry",
        (Role::Destroy, Phase::Return) => "destroy_return",
        (Role::Reparent, Phase::Entry) => "reparent_entry",
        (Role::Reparent, Phase::Return) => "reparent_return",
        (Role::Migrate, Phase::Entry) => "migrate_entry",
        (Role::Migrate, Phase::Return) => "migrate_return",
        (Role::Move, Phase::Entry) => "move_entry",
        (Role::Move, Phase::Return) => "move_return",
        (Role::Label, Phase::Entry) => "label_entry",
        (Role::Label, Phase::Return) => "label_return",
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use object::{Object as _, ObjectSymbol as _, SymbolKind};

    use super::*;

    /// Symbols of one kind in the sections of the object file whose name `wanted` accepts.
    fn symbols(kind: SymbolKind, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let bytes =
            std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/ebpf/drainprof.bpf.o")).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        file.symbols()
            .filter(|symbol| symbol.kind() == kind && symbol.is_global())
            .filter(|symbol| {
                let section =
                    symbol.section_index().and_then(|index| file.section_by_index(index).ok());
                section
                    .is_some_and(|section| wanted(object::ObjectSection::name(&section).unwrap()))
            })
            .map(|symbol| symbol.name().unwrap().to_owned())
            .collect()
    }

    /// Every map that is used is in the object file, and the other way round.
    #[test]
    fn maps_agree_with_the_object() {
        let used: BTreeSet<_> = MAPS.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(used, symbols(SymbolKind::Data, |section| section == "maps"));
    }

    /// Every program that is used is in the object file, and the other way round.
    #[test]
    fn programs_agree_with_the_object() {
        let mut used: BTreeSet<_> = TRACEPOINTS.iter().map(|row| row.0.to_owned()).collect();
        used.extend(GROWTH_RAW.iter().map(|row| row.0.to_owned()));
        used.extend(GROWTH_TRACEPOINTS.iter().map(|row| row.0.to_owned()));
        used.extend([CALL_ENTRY, EMPTY_ENTRY, EMPTY_RETURN].map(str::to_owned));
        for role in Role::ALL {
            for phase in [Phase::Entry, Phase::Return] {
                for stacks in [false, true] {
                    used.extend(program(role, phase, stacks).map(str::to_owned));
                }
            }
        }
        let is_program = |section: &str| {
            ["uprobe", "uretprobe", "tracepoint", "raw_tp"]
                .iter()
                .any(|kind| section.starts_with(kind))
        };
        assert_eq!(used, symbols(SymbolKind::Text, is_program));
    }
}
