//! A loaded kernel side.

use std::{
    collections::BTreeMap,
    io,
    num::NonZeroU32,
    os::fd::{AsFd as _, OwnedFd},
};

use aya::maps::{MapData, RingBuf};
use drainprof_common::{
    event::{Event, EventKind},
    growth::MapRecord,
    hist::{Hist, Of},
    loss::{Loss, LossCounts},
    maps::{ObjectValue, ProbeCounts, ProgramName, SeriesKey, SeriesState, cursor},
    spec::Kind,
};
use drainprof_process::memory::{GranuleRange, GranuleState};
use drainprof_profile::{Level, Profile};

use super::{
    BpfError, Detaching, GranuleRecord, Growth, LiveObject, SeriesRecord, Sizes, Stacks,
    attach::Probes,
    config::{Arming, SessionConfig},
    diagnostics::Diagnostics,
    files::OpenFiles,
    granules::Granules,
    link::Leftover,
    load::{attach_lifecycle, check_maps, load_object, mapped, take},
    memory::Cursors,
    multi::{Multi, Quick},
    names,
    objects::Objects,
    read::Counters,
    targets::Targets,
};
use crate::{kernel::ProgramStatistics, plan::PlannedProbe};

/// Records taken from the ring in one go, so that a flood of them cannot keep the reader from its other
/// duties.
const EVENTS_AT_ONCE: usize = 4_096;

/// A loaded kernel side: each of its parts has an owner, and this answers what concerns several of them.
pub struct Session {
    /// First, so that probes go before what they use.
    probes: Probes,
    targets: Targets,
    counters: Counters,
    granules: Granules,
    objects: Objects,
    events: RingBuf<MapData>,
    diagnostics: Diagnostics,
    /// Call stacks.
    pub stacks: Stacks,
    /// Page faults and mappings.
    pub growth: Growth,
    cursors: Cursors,
    sizes: Sizes,
    /// Slots of counters.
    slots: u32,
}

impl Session {
    /// Loads the kernel side: maps and the lifecycle programs. Probe programs are loaded when they are
    /// first needed.
    pub fn load(config: &SessionConfig) -> Result<Self, BpfError> {
        Self::load_with(config, Quick::None)
    }

    /// The same for a window of a duty cycle: probes of single processes go quickly afterwards, where the kernel can do that.
    /// Children that a process forks keep them meanwhile.
    pub fn load_for_window(config: &SessionConfig) -> Result<Self, BpfError> {
        Self::load_with(config, Quick::All)
    }

    /// The same for probes in all processes that map a file: they go quickly, where the kernel can do that.
    pub fn load_for_files(config: &SessionConfig) -> Result<Self, BpfError> {
        Self::load_with(config, Quick::Files)
    }

    fn load_with(config: &SessionConfig, quick: Quick) -> Result<Self, BpfError> {
        let cpus = aya::util::nr_cpus().map_err(|(path, source)| BpfError::Unsupported {
            what: format!("report its number of CPUs ({path})"),
            source: Box::new(source),
        })?;
        let slots = Sizes::counter_slots(cpus.try_into().unwrap_or(u32::MAX));
        let sizes = config.sizes;
        let mut ebpf = load_object(config, slots)?;
        check_maps(&ebpf)?;
        let multi = Multi::prepare(&ebpf, quick);
        attach_lifecycle(&mut ebpf, config.calls)?;
        let cursors = Cursors::new(mapped(&ebpf, names::CURSORS, cursor::COUNT as usize)?);
        // Target 0 is none: zeroed memory never looks like a target.
        cursors.add(cursor::TARGET, 1);
        Ok(Self {
            targets: Targets::take(&mut ebpf)?,
            counters: Counters::take(&ebpf, &sizes, slots, &cursors)?,
            granules: Granules::take(&mut ebpf, &sizes, &cursors)?,
            objects: Objects::take(&mut ebpf, &sizes, &cursors)?,
            events: take(&mut ebpf, names::EVENTS)?,
            diagnostics: Diagnostics::take(&mut ebpf)?,
            stacks: Stacks::take(&mut ebpf, &sizes, &cursors)?,
            growth: Growth::take(&mut ebpf, &sizes, config.growth.is_some())?,
            probes: Probes::take(ebpf, multi, sizes.probes, config.patience)?,
            cursors,
            sizes,
            slots,
        })
    }

    /// A target index that was never used before in this session. The kernel side draws from the same
    /// counter for forked children.
    pub fn next_target(&mut self) -> u32 {
        self.cursors.add(cursor::TARGET, 1) as u32
    }

    /// Numbers below `number` are taken: by targets of an earlier session that this one goes on with.
    /// Called before anything is armed.
    pub fn reserve_targets(&mut self, number: u32) {
        self.cursors.raise(cursor::TARGET, number.into());
    }

    /// Enters a process as a target: from now on its probes count.
    pub fn arm(&mut self, tgid: u32, target: u32, arming: Arming) -> Result<(), BpfError> {
        self.targets.arm(tgid, target, arming)
    }

    /// Notices processes of a program that are no targets: an `Exit` with target 0 reports their ends; with `enter`, those that
    /// execute it become targets, which an `Exec` with target 0 reports.
    pub fn watch_program(&mut self, name: ProgramName, enter: bool) -> Result<(), BpfError> {
        self.targets.watch_program(name, enter)
    }

    /// Notices them no more.
    pub fn forget_program(&mut self, name: ProgramName) {
        self.targets.forget_program(name);
    }

    /// Takes a process out: its probes do nothing any more.
    pub fn disarm(&mut self, tgid: u32) {
        self.targets.disarm(tgid);
    }

    /// Takes a process out if it is still this target to the kernel side: its number may be another process's by now.
    pub fn disarm_target(&mut self, tgid: u32, target: u32) {
        if self.target_of(tgid) == Some(target) {
            self.targets.disarm(tgid);
        }
    }

    /// Which target a process is, as the kernel side has it now.
    #[must_use]
    pub fn target_of(&self, tgid: u32) -> Option<u32> {
        self.targets.of(tgid)
    }

    /// A descriptor that becomes readable when there are events.
    pub fn events_fd(&self) -> io::Result<OwnedFd> {
        self.events.as_fd().try_clone_to_owned()
    }

    /// The events that have come, at most so many, and some thousands at once. Records that cannot be
    /// decoded are counted as lost.
    pub fn drain_events(&mut self, most: usize) -> Vec<(EventKind, Event)> {
        self.diagnostics.flush();
        let mut events = Vec::new();
        while events.len() < EVENTS_AT_ONCE.min(most) {
            let Some(record) = self.events.next() else { break };
            match Event::decode(&record) {
                Some(event) => events.push(event),
                None => self.counters.count_loss(Loss::EventUnknown, 1),
            }
        }
        events
    }

    /// The system calls that have come, at most some hundred thousands at once. Records that cannot be decoded are
    /// counted as lost.
    pub fn drain_mappings(&mut self) -> Vec<MapRecord> {
        let (records, unknown) = self.growth.drain();
        self.counters.count_loss(Loss::EventUnknown, unknown);
        records
    }

    /// Counts losses that user space has found.
    pub fn count_loss(&mut self, loss: Loss, number: u64) {
        self.counters.count_loss(loss, number);
    }

    /// Begins to load the programs of a profile's probes at a level, while it is still planned where they go. Only sessions
    /// for windows and for files can do that.
    pub fn load_ahead(&mut self, profile: &Profile, level: Level) {
        self.probes.load_ahead(profile, level);
    }

    /// Loads the programs of these probes, which [`Session::attach`] does otherwise: side by side, since the kernel takes
    /// some milliseconds to verify each. In sessions for windows and for files it only begins to, and `attach` waits for the
    /// program that it needs.
    pub fn load_for(&mut self, probes: &[&PlannedProbe], pid: Option<NonZeroU32>) {
        self.probes.load_for(probes, pid);
    }

    /// Attaches one planned probe to one process, or to all that map its object (`pid` is `None`).
    ///
    /// Returns the number of its spec, under which its hits are counted. Hits count only in processes
    /// that are armed. An error leaves this probe detached; those attached before stay until the session
    /// is dropped, and do nothing in processes that are not armed. The number is given to another probe once this one is
    /// gone, and counts from zero then. `files`: one for all probes of a process.
    pub fn attach(
        &mut self,
        probe: &PlannedProbe,
        pid: Option<NonZeroU32>,
        files: &mut OpenFiles,
    ) -> Result<u32, BpfError> {
        let spec = self.probes.specs().take()?;
        self.counters.clear_probe(spec.index());
        self.probes.attach(&spec, probe, pid, files)?;
        Ok(spec.index())
    }

    /// Attaches the empty programs where [`Session::attach`] would attach the counting ones of a probe:
    /// at the entry, and at the return too for a probe that is judged there.
    ///
    /// Nothing is counted, and no spec is taken. A hit then costs what the kernel's probing costs at this
    /// very place: the floor against which drainprof's own cost is measured. Benchmarks call it. The
    /// programs stay attached as long as the session.
    pub fn attach_empty(
        &mut self,
        probe: &PlannedProbe,
        pid: Option<NonZeroU32>,
        files: &mut OpenFiles,
    ) -> Result<(), BpfError> {
        self.probes.attach_empty(probe, pid, files)
    }

    /// Takes the probes of one process from the session. It was disarmed before, so that they count nothing.
    pub fn take_probes(&mut self, pid: u32) -> Leftover {
        self.probes.take_of(pid)
    }

    /// Takes all probes out, in the background. What was counted stays readable, and probes can be put in
    /// place again.
    ///
    /// A probe that is on its way out still counts in processes that are armed: disarm them first.
    pub fn detach(&mut self) -> Detaching {
        self.probes.take_all().detach()
    }

    /// Ends the session in the background: its probes, then its maps and all that was counted.
    pub fn end(mut self) -> Detaching {
        let probes = self.probes.take_all();
        Detaching::begin(probes, self)
    }

    /// Loads every program that is not loaded yet; what the kernel says about each, by name.
    pub(super) fn load_all(&mut self) -> Result<Vec<ProgramStatistics>, BpfError> {
        self.probes.load_all()?;
        Ok(self.program_statistics())
    }

    /// What the kernel says about each program that is loaded, in the order of their names.
    #[must_use]
    pub fn program_statistics(&self) -> Vec<ProgramStatistics> {
        self.probes.program_statistics()
    }

    /// What is counted in the series of these keys is read no more, neither totals nor histograms.
    pub fn forget_series(&mut self, is_over: impl Fn(SeriesKey) -> bool) {
        self.counters.forget_series(is_over);
    }

    /// Whether a series is not read any more.
    #[must_use]
    pub fn is_forgotten(&self, series: u32) -> bool {
        self.counters.is_forgotten(series)
    }

    /// All series but those that are forgotten.
    #[must_use]
    pub fn read_series(&self) -> Vec<SeriesRecord> {
        self.counters.series()
    }

    /// Whose series it is.
    #[must_use]
    pub fn series_key(&self, series: u32) -> Option<SeriesKey> {
        self.series_state(series).map(|state| state.key)
    }

    /// What is known of a series; `None` where there is none of this number.
    #[must_use]
    pub fn series_state(&self, series: u32) -> Option<SeriesState> {
        self.counters.series_state(series)
    }

    /// The counters of one spec, summed over CPUs.
    #[must_use]
    pub fn read_probe(&self, spec: u32) -> ProbeCounts {
        self.counters.probe(spec)
    }

    /// All losses, the kernel side's and our own.
    #[must_use]
    pub fn read_losses(&self) -> LossCounts {
        let mut losses = self.counters.losses();
        let (threads, others) = self.probes.skipped();
        // A thread's own end matters only where it was in a call: then its end was taken for its process's.
        let threads = threads.min(losses[Loss::CallCutByExit as usize]);
        losses[Loss::TracepointSkipped as usize] += threads + others;
        losses
    }

    /// All histograms but those of forgotten series: what of, series, place. Lifetimes of a place may come in two parts.
    #[must_use]
    pub fn read_histograms(&self) -> Vec<(Of, u32, u64, Hist)> {
        self.counters.histograms().chain(self.granules.nested_lifetimes()).collect()
    }

    /// The granules that are open, or closed with live objects.
    #[must_use]
    pub fn read_granules(&self) -> Vec<GranuleRecord> {
        self.granules.slots().held()
    }

    /// Granules that are closed and empty, as far as they are remembered, by target; none unless growth is read.
    #[must_use]
    pub fn read_drained(&self) -> BTreeMap<u32, Vec<GranuleRange>> {
        let mut drained: BTreeMap<u32, Vec<GranuleRange>> = BTreeMap::new();
        for slot in self.granules.slots().drained().filter(|_| self.growth.is_on()) {
            if let Some(key) = self.series_key(slot.series) {
                drained.entry(key.target).or_default().push(GranuleRange {
                    granule: slot.id,
                    start: slot.id,
                    bytes: slot.bytes,
                    state: GranuleState::Drained,
                    allocator: usize::MAX,
                    place: slot.place,
                });
            }
        }
        drained
    }

    /// Shows every live object that has a site. While programs run, some that come or go meanwhile are missed.
    pub fn each_object(&self, mut show: impl FnMut(LiveObject)) {
        self.objects.each(|id, object| {
            if object.site != 0 {
                show(LiveObject { id, object, granule: self.granules.slots().head(object.slot) });
            }
        });
    }

    /// Ends the open granules that are nested in one that is over; returns how many.
    pub fn end_nested(&mut self) -> usize {
        self.granules.end_nested(&self.counters)
    }

    /// Whether granules begin to lack room.
    #[must_use]
    pub fn is_filling_up(&self) -> bool {
        self.granules.are_filling_up()
    }

    /// Makes room where it is needed; returns how many entries were taken out.
    pub fn reclaim(&mut self) -> Result<usize, BpfError> {
        let mut raced = 0;
        let taken = self.granules.reclaim(&mut raced);
        self.counters.count_loss(Loss::IndexRaced, raced);
        Ok(taken? + self.stacks.reclaim_pairs(|slot| self.granules.slots().state(slot)))
    }

    /// Takes out objects that a bulk close has freed, if they crowd the table out. `kind_of` gives the kind
    /// of an allocator.
    pub fn reclaim_objects(&mut self, kind_of: impl Fn(u32) -> Option<Kind>) -> usize {
        let (slots, counters) = (self.granules.slots(), &self.counters);
        let is_stale = |object: &ObjectValue| {
            let allocator = counters.series_state(object.series).map(|state| state.key.allocator);
            allocator.and_then(&kind_of) == Some(Kind::Bulk) && slots.is_over(object)
        };
        let (removed, raced) = self.objects.reclaim(is_stale);
        self.counters.count_loss(Loss::IndexRaced, raced);
        removed
    }

    /// The share of the fullest of those tables that newcomers need places in, from 0 to 1. Targets are only numbers, but
    /// allocator instances and histograms have a place each, which is never given back, and specs have one as long as their
    /// probes are there.
    #[must_use]
    pub fn wear(&self) -> f64 {
        let level = |which| self.cursors.level(which);
        self.fullest(level(cursor::SERIES), level(cursor::HIST))
    }

    /// [`Session::wear`], had forgotten series and their histograms given their places back.
    #[must_use]
    pub fn use_share(&self) -> f64 {
        let (series, histograms) = self.counters.in_use();
        self.fullest(series as u64, histograms as u64)
    }

    fn fullest(&self, series: u64, histograms: u64) -> f64 {
        let share = |taken: u64, of: u32| taken as f64 / f64::from(of.max(1));
        let shares = [
            share(series, self.sizes.instances),
            share(histograms, self.sizes.histograms()),
            share(self.probes.specs().taken() as u64, self.sizes.probes),
        ];
        shares.into_iter().fold(0.0, f64::max).min(1.0)
    }

    /// Kernel memory of the maps, about, in bytes.
    #[must_use]
    pub fn map_bytes(&self) -> u64 {
        self.sizes.bytes(self.slots)
    }
}
