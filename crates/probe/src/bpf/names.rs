//! Names shared with the object file: maps, programs, globals. A test compares them with the object.

use drainprof_common::spec::Role;
use drainprof_profile::Phase;

use crate::kernel::{Events, MAPPING_BEGINS, MAPPING_ENDS, RSS_CHANGES};

/// Declares the maps that the object has, each by its own name, and the list of them.
macro_rules! maps {
    ($($name:ident)*) => {
        $(pub(super) const $name: &str = stringify!($name);)*
        pub(super) const MAPS: &[&str] = &[$($name),*];
    };
}

maps! {
    NO_PROGRAM TARGETS TARGET_WORDS PROGRAM_NAMES PROBES PROBE_COUNTS SERIES
    SERIES_WORDS SERIES_STATE TOTALS INDEX GRANULE_WORDS
    GRANULES FREE_SLOTS OBJECT_BUCKETS OBJECTS THREADS
    THREAD_SLOTS ZERO_THREAD HISTOGRAMS HIST_INDEX HIST_WORDS
    AYA_LOGS NOTED LOSSES CURSORS EVENTS RULES SPACES
    SPACE_RANGES WALKS PATH_HASHES PATHS PATH_WORDS
    SITE_HASHES SITES PIN_SITES PIN_PAIRS SNAPSHOTS
    GROWTH_HASHES GROWTH_CELLS GROWTH_THREADS GROWTH_TARGETS ADDRESS_SPACES
    KERNEL_STACKS TOUCHED MAPPINGS
}

/// The lifecycle programs and their tracepoints.
pub(super) const TRACEPOINTS: [(&str, &str, &str); 4] = [
    ("newtask", "task", "task_newtask"),
    ("exec", "sched", "sched_process_exec"),
    ("exit", "sched", "sched_process_exit"),
    (THREAD_EXIT, "syscalls", "sys_enter_exit"),
];

/// The one that only calls need.
pub(super) const THREAD_EXIT: &str = "thread_exit";

/// The programs of growth on raw tracepoints.
pub(super) const GROWTH_RAW: [(&str, &str); 2] =
    [("fault_user", "page_fault_user"), ("fault_kernel", "page_fault_kernel")];

/// Those on tracepoints, each on all of its events.
pub(super) const GROWTH_TRACEPOINTS: [(&str, Events); 3] = [
    (RSS_CHANGED, RSS_CHANGES),
    ("mapping_begins", MAPPING_BEGINS),
    ("mapping_ends", MAPPING_ENDS),
];

/// The one for changes of resident memory.
pub(super) const RSS_CHANGED: &str = "rss_changed";

/// The program at the entry of every call that is judged at its return.
pub(super) const CALL_ENTRY: &str = "call_entry";

/// The programs that do nothing, at entry and at return.
pub(super) const EMPTY_ENTRY: &str = "empty_entry";
pub(super) const EMPTY_RETURN: &str = "empty_return";

/// The program that judges a role's hits in a phase, with their call stacks if `stacks`. `None`: a realloc is judged at
/// return only.
pub(super) fn program(role: Role, phase: Phase, stacks: bool) -> Option<String> {
    let with_stacks = match (role, phase) {
        (Role::Realloc, Phase::Entry) => return None,
        (Role::Alloc, _) | (Role::Realloc, Phase::Return) if stacks => "_stacks",
        _ => "",
    };
    let phase = match phase {
        Phase::Entry => "entry",
        Phase::Return => "return",
    };
    Some(format!("{}_{phase}{with_stacks}", role.name()))
}

/// All programs of such a probe: at a return, a program remembers the call at its entry.
pub(super) fn programs(role: Role, phase: Phase, stacks: bool) -> impl Iterator<Item = String> {
    let at_entry = (phase == Phase::Return).then(|| CALL_ENTRY.to_owned());
    at_entry.into_iter().chain(program(role, phase, stacks))
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
                    used.extend(program(role, phase, stacks));
                }
            }
        }
        assert_eq!(used, symbols(SymbolKind::Text, is_program));
    }

    /// `doctor` looks for every tracepoint of growth, and for no other.
    #[test]
    fn tracepoints_of_growth_are_checked() {
        let raw = GROWTH_RAW.iter().map(|(_, event)| ("exceptions", *event));
        let others = GROWTH_TRACEPOINTS
            .iter()
            .flat_map(|(_, (category, events))| events.iter().map(|event| (*category, *event)));
        let attached: BTreeSet<_> = raw.chain(others).collect();
        assert_eq!(attached, crate::kernel::growth_tracepoints().collect());
    }

    /// What a kernel may lack, such as kprobes, is not needed: code is in programs for uprobes and tracepoints, and in
    /// their functions.
    #[test]
    fn uprobes_and_tracepoints_only() {
        let others =
            symbols(SymbolKind::Text, |section| !is_program(section) && section != ".text");
        assert!(others.is_empty(), "{others:?}");
    }

    fn is_program(section: &str) -> bool {
        ["uprobe", "uretprobe", "tracepoint", "raw_tp"].iter().any(|kind| section.starts_with(kind))
    }
}
