//! Loading the kernel side: the object with its sizes, its programs, and its maps.

use std::{
    fmt::Write as _,
    hash::{BuildHasher as _, RandomState},
    os::fd::{AsFd as _, OwnedFd},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::Map,
    programs::{Program, ProgramError, TracePoint, UProbe},
};
use bytemuck::{Pod, Zeroable};

use super::{
    BpfError,
    config::{GrowthOffsets, SessionConfig},
    diagnostics,
    memory::Mapped,
    names, private_stack,
};

/// The kernel side, built by `cargo xtask build-ebpf`.
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/ebpf/drainprof.bpf.o"));

/// A type that may be copied between user space and maps byte by byte.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Plain<T>(pub(super) T);

// SAFETY: `bytemuck::Pod` promises what `aya::Pod` asks for.
unsafe impl<T: Pod> aya::Pod for Plain<T> {}

/// A number that is another one each time, so that no program has its pages chosen alike whenever it is looked at.
fn seed() -> u32 {
    RandomState::new().hash_one(std::process::id()) as u32
}

pub(super) fn load_object(config: &SessionConfig, slots: u32) -> Result<Ebpf, BpfError> {
    let sizes = &config.sizes;
    let none = GrowthOffsets { mm_id: 0, curr: 0, member: 0, size: 0, syscall: 0 };
    let growth = config.growth.unwrap_or(none);
    let globals = [
        ("MAX_GRANULES", sizes.granules),
        ("OBJECT_BUCKET_COUNT", sizes.buckets()),
        ("MAX_HISTOGRAMS", sizes.histograms()),
        ("THREAD_SLOT_MASK", sizes.thread_slots() - 1),
        ("MAX_SERIES", sizes.instances),
        ("MAX_PROBES", sizes.probes),
        ("RULE_BUCKETS", sizes.rule_buckets()),
        ("PATH_BUCKETS", sizes.path_buckets()),
        ("PATH_WORD_COUNT", sizes.path_words()),
        ("COUNTER_SLOT_MASK", slots - 1),
        ("WALK_MASK", sizes.walks() - 1),
        ("SAMPLE", config.sample),
        ("SAMPLE_SEED", seed()),
        ("EVENTS_WANTED", u32::from(config.events)),
        ("NEWTASK_PID_OFFSET", config.offsets.newtask_pid),
        ("NEWTASK_FLAGS_OFFSET", config.offsets.newtask_flags),
        ("EXEC_OLD_PID_OFFSET", config.offsets.exec_old_pid),
        ("RSS_MM_ID_OFFSET", growth.mm_id),
        ("RSS_CURR_OFFSET", growth.curr),
        ("RSS_MEMBER_OFFSET", growth.member),
        ("RSS_SIZE_OFFSET", growth.size),
        ("SYSCALL_NUMBER_OFFSET", growth.syscall),
        ("GROWTH_PATHS", u32::from(config.growth_paths)),
        ("KERNEL_STACKS_WANTED", u32::from(sizes.kernel_stacks)),
    ];
    let entries = [
        (names::TARGETS, sizes.targets),
        (names::PROBES, sizes.probes),
        (names::PROBE_COUNTS, sizes.probes * slots),
        (names::SERIES, sizes.instances),
        (names::SERIES_STATE, sizes.instances),
        (names::TOTALS, sizes.instances * slots),
        (names::INDEX, sizes.index()),
        (names::GRANULES, sizes.granules),
        (names::FREE_SLOTS, sizes.granules),
        (names::OBJECT_BUCKETS, sizes.buckets()),
        (names::OBJECTS, sizes.overflow()),
        (names::THREAD_SLOTS, sizes.thread_slots()),
        (names::THREADS, sizes.threads_behind()),
        (names::HIST_INDEX, sizes.histograms()),
        (names::HISTOGRAMS, sizes.histograms()),
        (names::LOSSES, slots),
        (names::EVENTS, sizes.ring()),
        (names::RULES, sizes.rule_buckets()),
        (names::SPACES, sizes.spaces().0),
        (names::SPACE_RANGES, sizes.spaces().1),
        (names::WALKS, sizes.walks()),
        (names::PATH_HASHES, sizes.path_buckets()),
        (names::PATHS, sizes.path_slots()),
        (names::PATH_WORDS, sizes.path_words()),
        (names::SITE_HASHES, sizes.path_buckets()),
        (names::SITES, sizes.path_slots()),
        (names::PIN_PAIRS, sizes.pin_pairs()),
        (names::PIN_SITES, sizes.pin_sites()),
        (names::SNAPSHOTS, sizes.snapshot_ring()),
        (names::GROWTH_HASHES, sizes.growth_buckets()),
        (names::GROWTH_CELLS, sizes.growth_cells()),
        (names::GROWTH_THREADS, sizes.growth_threads()),
        (names::GROWTH_TARGETS, sizes.growth_targets()),
        (names::ADDRESS_SPACES, sizes.growth_targets()),
        (names::KERNEL_STACKS, sizes.kernel_stacks()),
        (names::TOUCHED, sizes.regions()),
        (names::MAPPINGS, sizes.mapping_ring()),
    ];
    let mut loader = EbpfLoader::new();
    for (name, value) in &globals {
        loader.override_global(name, value, true);
    }
    let (log_level, log_bytes) = diagnostics::settings();
    loader.override_global(diagnostics::LEVEL, &log_level, true);
    loader.map_max_entries(names::AYA_LOGS, log_bytes);
    for (name, value) in entries {
        loader.map_max_entries(name, value);
    }
    loader
        .load(OBJECT)
        .map_err(|source| BpfError::load("maps".to_owned(), sizes.bytes(slots), source))
}

pub(super) fn check_maps(ebpf: &Ebpf) -> Result<(), BpfError> {
    match names::MAPS.iter().find(|name| ebpf.map(name).is_none()) {
        Some(name) => Err(BpfError::Mismatch(format!("the map {name}"))),
        None => Ok(()),
    }
}

pub(super) fn attach_lifecycle(ebpf: &mut Ebpf, calls: bool) -> Result<(), BpfError> {
    let wanted = |(name, ..): &(&str, &str, &str)| calls || *name != names::THREAD_EXIT;
    for (name, category, event) in names::TRACEPOINTS.into_iter().filter(wanted) {
        let program: &mut TracePoint = program(ebpf, name)?;
        program.load().map_err(|source| load_error(name, source))?;
        program
            .attach(category, event)
            .map_err(|source| BpfError::Tracepoint { name: event, source: Box::new(source) })?;
    }
    Ok(())
}

/// A program of the object, by its name.
pub(super) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, BpfError>
where
    &'a mut P: TryFrom<&'a mut Program>,
{
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| BpfError::Mismatch(format!("the program {name}")))
}

/// Loads a program for uprobes, and makes sure that it runs on the stack of its thread.
pub(super) fn load_uprobe(name: &str, program: &mut UProbe) -> Result<(), BpfError> {
    program.load().map_err(|source| load_error(name, source))?;
    let excluded = match program.fd() {
        Ok(loaded) => private_stack::exclude(name, loaded.as_fd()),
        Err(source) => Err(load_error(name, source)),
    };
    if excluded.is_err() {
        // Nothing can be attached to it by mistake.
        let _ = program.unload();
    }
    excluded
}

/// Names the program, and keeps of the verifier's log what can be read.
pub(super) fn load_error(name: &str, source: ProgramError) -> BpfError {
    if let ProgramError::LoadError { verifier_log, .. } = &source {
        let mut tail = String::new();
        let _ = write!(tail, "{verifier_log}");
        tracing::debug!(program = name, log = %tail, "the verifier refused");
    }
    BpfError::load(format!("program {name}"), 0, source)
}

pub(super) fn mapped<T: Pod + Zeroable>(
    ebpf: &Ebpf,
    name: &'static str,
    entries: usize,
) -> Result<Mapped<T>, BpfError> {
    match ebpf.map(name) {
        Some(Map::Array(data)) => {
            let size = data.info().map_or(0, |info| info.value_size() as usize);
            if size != size_of::<T>() {
                return Err(BpfError::Mismatch(format!(
                    "values of {} bytes in the map {name} (it has {size})",
                    size_of::<T>()
                )));
            }
            Mapped::new(name, data.fd(), entries)
        }
        _ => Err(BpfError::Mismatch(format!("the array map {name}"))),
    }
}

pub(super) fn descriptor(ebpf: &Ebpf, name: &'static str) -> Result<OwnedFd, BpfError> {
    match ebpf.map(name) {
        Some(Map::HashMap(data)) => data
            .fd()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| BpfError::map("opening", name, source)),
        _ => Err(BpfError::Mismatch(format!("the hash map {name}"))),
    }
}

pub(super) fn take<M: TryFrom<Map>>(ebpf: &mut Ebpf, name: &'static str) -> Result<M, BpfError> {
    ebpf.take_map(name)
        .and_then(|map| M::try_from(map).ok())
        .ok_or_else(|| BpfError::Mismatch(format!("the map {name} in the expected form")))
}
