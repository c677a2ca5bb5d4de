//! A loaded kernel side.

use std::{
    fmt::Write as _,
    hash::{BuildHasher as _, RandomState},
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::Ordering,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, Queue, RingBuf},
    programs::{Program, ProgramError, ProgramInfo, TracePoint},
};
use bytemuck::{Pod, Zeroable};
use drainprof_common::{
    event::{Event, EventKind},
    loss::{LOSS_COUNT, Loss, LossCounts},
    maps::{
        Bucket, HistSlot, IndexKey, ObjectKey, ObjectValue, ProbeCounts, SeriesState, Slot,
        TARGET_WORDS, TargetValue, Totals, cursor, target_flags, target_word,
    },
    spec::ProbeSpec,
};

use super::{
    BpfError, GrowthOffsets, Sizes, attach::Link, growth::GrowthMaps, memory::Mapped, names,
    nested::NestedLifetimes, paths::PathMaps,
};
use crate::kernel::ProgramStatistics;

/// The kernel side, built by `cargo xtask build-ebpf`.
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/ebpf/drainprof.bpf.o"));

/// Records taken from the ring in one go, so that a flood of them cannot keep the reader from its other
/// duties.
const EVENTS_AT_ONCE: usize = 65_536;

/// What a session needs to know before it is loaded.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Sizes of the maps.
    pub sizes: Sizes,
    /// Whether every close and late drain is to be sent.
    pub events: bool,
    /// One of so many granules is looked at; 1: all.
    pub sample: u32,
    /// Where tracepoint fields stand on this kernel.
    pub offsets: Offsets,
    /// Where the fields of growth's tracepoints stand; `None`: growth is not wanted, and nothing of it is loaded.
    pub growth: Option<GrowthOffsets>,
    /// Whether growth is told by call path; only as a sum otherwise, which costs a fault less.
    pub growth_paths: bool,
}

/// Offsets of tracepoint fields, as tracefs gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// `pid` of `task:task_newtask`.
    pub newtask_pid: u32,
    /// `clone_flags` of `task:task_newtask`.
    pub newtask_flags: u32,
    /// `old_pid` of `sched:sched_process_exec`.
    pub exec_old_pid: u32,
}

/// How a process is entered as a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arming {
    /// It has not run a single instruction of its own yet.
    pub from_start: bool,
    /// Its children are followed.
    pub follow: bool,
}

/// A type that may be copied between user space and maps byte by byte.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Plain<T>(pub(super) T);

// SAFETY: `bytemuck::Pod` promises what `aya::Pod` asks for.
unsafe impl<T: Pod> aya::Pod for Plain<T> {}

/// A loaded kernel side with its maps and probes.
pub struct Session {
    /// The probes in place; first, so that they go before what they use.
    pub(super) links: Vec<Link>,
    pub(super) ebpf: Ebpf,
    pub(super) sizes: Sizes,
    pub(super) cpus: u32,
    pub(super) totals: Mapped<Totals>,
    pub(super) series_state: Mapped<SeriesState>,
    pub(super) slots: Mapped<Slot>,
    pub(super) probe_counts: Mapped<ProbeCounts>,
    pub(super) losses: Mapped<[u64; 32]>,
    pub(super) cursors: Mapped<u64>,
    target_words: Mapped<u64>,
    pub(super) index: HashMap<MapData, Plain<IndexKey>, u64>,
    /// The same map, for what aya does not do with it.
    pub(super) index_fd: OwnedFd,
    pub(super) buckets: Mapped<Bucket>,
    pub(super) objects_fd: OwnedFd,
    pub(super) objects: HashMap<MapData, Plain<ObjectKey>, Plain<ObjectValue>>,
    pub(super) histograms: Mapped<HistSlot>,
    pub(super) free_slots: Queue<MapData, u32>,
    pub(super) nested_lifetimes: NestedLifetimes,
    pub(super) probes: Array<MapData, Plain<ProbeSpec>>,
    pub(super) specs: u32,
    targets: HashMap<MapData, u32, Plain<TargetValue>>,
    ring: RingBuf<MapData>,
    pub(super) paths: PathMaps,
    /// Page faults and mappings, where they are wanted.
    pub(super) growth: Option<GrowthMaps>,
    /// Losses that user space itself has found.
    own_losses: LossCounts,
}

impl Session {
    /// Loads the kernel side: maps and the lifecycle programs. Probe programs are loaded when they are
    /// first needed.
    pub fn load(config: &SessionConfig) -> Result<Self, BpfError> {
        let cpus = aya::util::nr_cpus()
            .map_err(|(path, source)| BpfError::Unsupported {
                what: format!("tell its number of CPUs ({path})"),
                source: Box::new(source),
            })?
            .try_into()
            .unwrap_or(1);
        let sizes = config.sizes;
        let mut ebpf = load_object(config, cpus)?;
        check_maps(&ebpf)?;
        let offsets_in_use = attach_lifecycle(&mut ebpf);
        offsets_in_use?;
        let growth = config.growth.map(|_| GrowthMaps::attach(&mut ebpf, &sizes)).transpose()?;

        let series = sizes.instances as usize;
        let probes_per_cpu = sizes.probes as usize;
        let n = cpus as usize;
        let mut session = Self {
            totals: mapped(&ebpf, names::TOTALS, series * n)?,
            series_state: mapped(&ebpf, names::SERIES_STATE, series)?,
            slots: mapped(&ebpf, names::GRANULES, sizes.granules as usize)?,
            probe_counts: mapped(&ebpf, names::PROBE_COUNTS, probes_per_cpu * n)?,
            losses: mapped(&ebpf, names::LOSSES, n)?,
            cursors: mapped(&ebpf, names::CURSORS, cursor::COUNT as usize)?,
            target_words: mapped(&ebpf, names::TARGET_WORDS, TARGET_WORDS)?,
            index_fd: descriptor(&ebpf, names::INDEX)?,
            index: take(&mut ebpf, names::INDEX)?,
            buckets: mapped(&ebpf, names::OBJECT_BUCKETS, sizes.buckets() as usize)?,
            objects_fd: descriptor(&ebpf, names::OBJECTS)?,
            objects: take(&mut ebpf, names::OBJECTS)?,
            histograms: mapped(&ebpf, names::HISTOGRAMS, sizes.histograms() as usize)?,
            free_slots: take(&mut ebpf, names::FREE_SLOTS)?,
            nested_lifetimes: NestedLifetimes::new(),
            probes: take(&mut ebpf, names::PROBES)?,
            targets: take(&mut ebpf, names::TARGETS)?,
            ring: take(&mut ebpf, names::EVENTS)?,
            paths: PathMaps::take(&mut ebpf, &sizes)?,
            growth,
            links: Vec::new(),
            ebpf,
            sizes,
            cpus,
            specs: 0,
            own_losses: [0; LOSS_COUNT],
        };
        // Target 0 is none: zeroed memory never looks like a target.
        session.next_target();
        Ok(session)
    }

    /// A target index that was never used before in this session. The kernel side draws from the same
    /// counter for forked children.
    pub fn next_target(&mut self) -> u32 {
        self.cursors
            .word(cursor::TARGET as usize, 0)
            .map_or(0, |word| word.fetch_add(1, Ordering::SeqCst) as u32)
    }

    /// Numbers below `number` are taken: by targets of an earlier session that this one goes on with.
    /// Called before anything is armed.
    pub fn reserve_targets(&mut self, number: u32) {
        if let Some(word) = self.cursors.word(cursor::TARGET as usize, 0) {
            word.fetch_max(u64::from(number), Ordering::SeqCst);
        }
    }

    /// Enters a process as a target: from now on its probes count.
    pub fn arm(&mut self, tgid: u32, target: u32, arming: Arming) -> Result<(), BpfError> {
        let mut flags = 0;
        if arming.from_start {
            flags |= target_flags::FROM_START;
        }
        if arming.follow {
            flags |= target_flags::FOLLOW;
        }
        let value = TargetValue { target, flags };
        self.targets
            .insert(tgid, Plain(value), 0)
            .map_err(|source| BpfError::map("entering a process in", names::TARGETS, source))?;
        self.set_word(tgid, target_word::pack(tgid, value));
        Ok(())
    }

    /// Takes a process out: its probes do nothing any more.
    pub fn disarm(&mut self, tgid: u32) {
        // It may have been taken out by the kernel side already. First here, then the word: a process that
        // executes another program in this instant is entered anew in both, and looks here last.
        let _ = self.targets.remove(&tgid);
        self.set_word(tgid, 0);
    }

    /// Takes a process out if it is still this target to the kernel side: its number may be another process's by now.
    pub fn disarm_target(&mut self, tgid: u32, target: u32) {
        if self.target_of(tgid) == Some(target) {
            self.disarm(tgid);
        }
    }

    /// Changes the word in front of `TARGETS`, unless it is another process's; as the kernel side does.
    fn set_word(&self, tgid: u32, word: u64) {
        let Some(at) = self.target_words.word(target_word::index(tgid) as usize, 0) else { return };
        // Where it does not change, another process has the place.
        let _ = at.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |seen| {
            (seen == 0 || target_word::unpack(seen, tgid).is_some()).then_some(word)
        });
    }

    /// Which target a process is, as the kernel side has it now.
    #[must_use]
    pub fn target_of(&self, tgid: u32) -> Option<u32> {
        self.targets.get(&tgid, 0).ok().map(|value| value.0.target)
    }

    /// A descriptor that becomes readable when there are events.
    pub fn events_fd(&self) -> io::Result<OwnedFd> {
        self.ring.as_fd().try_clone_to_owned()
    }

    /// The events that have come, at most some tens of thousands at once. Records that cannot be
    /// decoded are counted as lost.
    pub fn drain_events(&mut self) -> Vec<(EventKind, Event)> {
        let mut events = Vec::new();
        while events.len() < EVENTS_AT_ONCE {
            let Some(record) = self.ring.next() else { break };
            match Event::decode(&record) {
                Some(event) => events.push(event),
                None => self.own_losses[Loss::EventUnknown as usize] += 1,
            }
        }
        events
    }

    /// Counts losses that user space has found.
    pub fn count_loss(&mut self, loss: Loss, number: u64) {
        self.own_losses[loss as usize] += number;
    }

    pub(super) const fn own_losses(&self) -> &LossCounts {
        &self.own_losses
    }

    /// Kernel memory of the maps, about, in bytes.
    #[must_use]
    pub fn map_bytes(&self) -> u64 {
        self.sizes.bytes(self.cpus)
    }
}

/// A number that is another one each time, so that no program has its pages chosen alike whenever it is looked at.
fn seed() -> u32 {
    RandomState::new().hash_one(std::process::id()) as u32
}

fn load_object(config: &SessionConfig, cpus: u32) -> Result<Ebpf, BpfError> {
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
        ("WALK_MASK", sizes.walks(cpus) - 1),
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
    ];
    let entries = [
        (names::TARGETS, sizes.targets),
        (names::PROBES, sizes.probes),
        (names::PROBE_COUNTS, sizes.probes * cpus),
        (names::SERIES, sizes.instances),
        (names::SERIES_STATE, sizes.instances),
        (names::TOTALS, sizes.instances * cpus),
        (names::INDEX, sizes.index()),
        (names::GRANULES, sizes.granules),
        (names::FREE_SLOTS, sizes.granules),
        (names::OBJECT_BUCKETS, sizes.buckets()),
        (names::OBJECTS, sizes.overflow()),
        (names::THREAD_SLOTS, sizes.thread_slots()),
        (names::THREADS, sizes.threads_behind()),
        (names::HIST_INDEX, sizes.histograms()),
        (names::HISTOGRAMS, sizes.histograms()),
        (names::LOSSES, cpus),
        (names::EVENTS, sizes.ring()),
        (names::RULES, sizes.rule_buckets()),
        (names::SPACES, sizes.spaces().0),
        (names::SPACE_RANGES, sizes.spaces().1),
        (names::WALKS, sizes.walks(cpus)),
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
        (names::TOUCHED, sizes.regions()),
        (names::MAPPINGS, sizes.mapping_ring()),
    ];
    let mut loader = EbpfLoader::new();
    for (name, value) in &globals {
        loader.override_global(name, value, true);
    }
    for (name, value) in entries {
        loader.map_max_entries(name, value);
    }
    loader
        .load(OBJECT)
        .map_err(|source| BpfError::load("maps".to_owned(), sizes.bytes(cpus), source))
}

fn check_maps(ebpf: &Ebpf) -> Result<(), BpfError> {
    match names::MAPS.into_iter().find(|name| ebpf.map(name).is_none()) {
        Some(name) => Err(BpfError::Mismatch(format!("the map {name}"))),
        None => Ok(()),
    }
}

fn attach_lifecycle(ebpf: &mut Ebpf) -> Result<(), BpfError> {
    for (name, category, event) in names::TRACEPOINTS {
        let program: &mut TracePoint = ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| BpfError::Mismatch(format!("the program {name}")))?;
        program.load().map_err(|source| load_error(name, source))?;
        program
            .attach(category, event)
            .map_err(|source| BpfError::Tracepoint { name: event, source: Box::new(source) })?;
    }
    Ok(())
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

fn descriptor(ebpf: &Ebpf, name: &'static str) -> Result<OwnedFd, BpfError> {
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

impl Session {
    /// Loads every program that is not loaded yet.
    pub(super) fn load_all(&mut self) -> Result<(), BpfError> {
        for (name, program) in self.ebpf.programs_mut() {
            if program.fd().is_ok() {
                continue;
            }
            let loaded = match program {
                Program::UProbe(program) => program.load(),
                Program::TracePoint(program) => program.load(),
                Program::RawTracePoint(program) => program.load(),
                _ => Ok(()),
            };
            loaded.map_err(|source| load_error(name, source))?;
        }
        Ok(())
    }

    /// What the kernel says about each program that is loaded, in the order of their names.
    #[must_use]
    pub fn program_statistics(&self) -> Vec<ProgramStatistics> {
        let mut programs: Vec<_> = self
            .ebpf
            .programs()
            .filter(|(_, program)| program.fd().is_ok())
            .map(|(name, program)| {
                let info = program.info().ok();
                let info = info.as_ref();
                ProgramStatistics {
                    name: name.to_owned(),
                    verified_instructions: info.and_then(ProgramInfo::verified_instruction_count),
                    jited_bytes: info.map(ProgramInfo::size_jitted).filter(|bytes| *bytes > 0),
                }
            })
            .collect();
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        programs
    }
}
