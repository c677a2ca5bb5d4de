//! What was observed, without any opinion: the input of a report.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drainprof_common::{
    hist::Hist,
    loss::{LOSS_COUNT, Loss, LossCounts},
    maps::Totals,
};
use drainprof_process::{Module, memory::Pressure};
use drainprof_profile::{Finding, Level, Profile};

use super::{
    flows::{Flows, Moment},
    frame::{Frames, SymbolFacts},
    growth::GrowthFacts,
    sites::SiteFacts,
};
use crate::{
    model::{Began, Duty as DutyReport, Ended, SelfUse},
    series::{HeldSeries, LiveSeries, MemorySeries},
};

/// Everything that is known at one moment. All counts are since the attach.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// `CLOCK_MONOTONIC` nanoseconds at which it was taken.
    pub now_ns: u64,
    /// Time since the first probe was in place.
    pub window: Duration,
    /// The duty cycle, where it was not observed all the time.
    pub duty: Option<DutyReport>,
    /// One of so many granules was examined; 0 and 1: all.
    pub sample: u32,
    /// The targets, in the order in which they came.
    pub targets: Vec<TargetFacts>,
    /// What was lost or not matched.
    pub losses: LossCounts,
    /// What had been allocated and freed about half-way; `None` where that was not noted.
    pub halfway: Option<Moment>,
    /// What drainprof itself used; as a share of the time only in a report.
    pub self_use: SelfUse,
    /// Whether the probes' costs were measured on this host; else they are other machines'.
    pub prices_measured: bool,
    /// Pressure on the machine's memory; `None` where it was not asked for, or the kernel does not report it.
    pub pressure: Option<Pressure>,
    /// How far naming has come; `None` where no names were searched for.
    pub symbols: Option<SymbolFacts>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            now_ns: 0,
            window: Duration::ZERO,
            duty: None,
            sample: 0,
            targets: Vec::new(),
            losses: [0; LOSS_COUNT],
            halfway: None,
            self_use: SelfUse::default(),
            prices_measured: false,
            pressure: None,
            symbols: None,
        }
    }
}

impl Snapshot {
    /// When the first probe was in place (`CLOCK_MONOTONIC` ns).
    #[must_use]
    pub const fn begin_ns(&self) -> u64 {
        self.now_ns.saturating_sub(self.window.as_nanos() as u64)
    }

    /// For how long was observed: the window, or the windows of a duty cycle.
    #[must_use]
    pub fn observed(&self) -> Duration {
        self.duty.map_or(self.window, |duty| {
            Duration::try_from_secs_f64(duty.observed_seconds).unwrap_or_default()
        })
    }

    /// What was allocated and freed.
    #[must_use]
    pub fn flows(&self) -> Flows {
        flows(&self.targets, &self.losses)
    }

    /// Records of the output were dropped, because its reader was too slow.
    pub const fn records_dropped(&mut self, records: u64) {
        self.losses[Loss::RecordDropped as usize] += records;
    }
}

/// What was allocated and freed in all allocators of the targets.
pub(super) fn flows(targets: &[TargetFacts], losses: &LossCounts) -> Flows {
    let mut flows = Flows::new(losses[Loss::UnmatchedFree as usize]);
    for target in targets {
        for facts in &target.allocators {
            flows.add(target.target, &facts.profile.name, &facts.totals);
        }
    }
    flows
}

/// A duty cycle: for how long of each period is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    /// The length of a window.
    pub on: Duration,
    /// From the begin of one window to that of the next.
    pub period: Duration,
}

impl Duty {
    /// What it came to after so many windows, of so much time together.
    #[must_use]
    pub const fn after(self, windows: u64, observed: Duration) -> DutyReport {
        DutyReport {
            on_seconds: self.on.as_secs_f64(),
            period_seconds: self.period.as_secs_f64(),
            windows,
            observed_seconds: observed.as_secs_f64(),
        }
    }
}

/// One process incarnation.
#[derive(Clone, Debug)]
pub struct TargetFacts {
    /// Its index in this session.
    pub target: u32,
    /// Process id in the initial namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot: with the pid, what identifies a process.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Its executable, as it sees it.
    pub exe: String,
    /// Its container; `None` where it is in none, or that was not asked for.
    pub container: Option<String>,
    /// How the observation began.
    pub began: Began,
    /// How it ended, if it did.
    pub ended: Option<Ended>,
    /// Resident memory, bytes; `None` once it has ended.
    pub rss_bytes: Option<u64>,
    /// Its memory over time; `None` where it was not asked for.
    pub memory: Option<MemorySeries>,
    /// Its allocators, one per profile and instance.
    pub allocators: Vec<AllocatorFacts>,
    /// The probes placed for it (shared with its followed children).
    pub probes: Vec<ProbeFacts>,
    /// What the user should know: late attach, replaced binary, …
    pub findings: Vec<Finding>,
    /// The names of its places, as far as they are known.
    pub frames: Frames,
    /// The files that these lie in, in order.
    pub modules: Vec<Module>,
    /// How its memory has grown; `None` where that was not examined.
    pub growth: Option<GrowthFacts>,
}

/// One allocator instance of one target.
#[derive(Clone, Debug)]
pub struct AllocatorFacts {
    /// The profile.
    pub profile: Arc<Profile>,
    /// The level.
    pub level: Level,
    /// Why nothing can be said of its granules; `None` where something can.
    pub not_measurable: Option<String>,
    /// Whether the bytes of all retained granules are those of their pages.
    pub pages_known: bool,
    /// The instance; 0 where the profile names none.
    pub instance: u64,
    /// Whether the instance was destroyed.
    pub destroyed: bool,
    /// The counters, summed over CPUs.
    pub totals: Totals,
    /// Granules open now.
    pub open_now: u64,
    /// The most that were open at once.
    pub open_peak: u64,
    /// Granules that were open when the instance was destroyed.
    pub destroyed_open: u64,
    /// Granules that were open when a window of a duty cycle ended.
    pub left_open: u64,
    /// Objects that were live when a window of a duty cycle ended: their frees were not seen.
    pub left_objects: u64,
    /// Their bytes, where sizes are known.
    pub left_object_bytes: u64,
    /// Granules closed, pinned and not yet drained.
    pub retained_granules: u64,
    /// Their bytes, where known.
    pub retained_bytes: u64,
    /// Granules that were closed and pinned, and had not drained, when a window of a duty cycle ended.
    pub left_retained: u64,
    /// Their bytes, where known.
    pub left_retained_bytes: u64,
    /// Close → late drain, nanoseconds.
    pub pin_delays: Hist,
    /// Open → close, nanoseconds, per place of opening (return address of the open call; 0: unknown).
    pub lifetimes: BTreeMap<u64, Hist>,
    /// Granules that are open, or closed and retained.
    pub granules: Vec<GranuleFacts>,
    /// What was held back over time; with a duty cycle, in the last window in which it was seen.
    pub over_time: HeldSeries,
    /// What was live over time, of kind `slab`; empty for others, and for a sample of pages.
    pub live_over_time: LiveSeries,
    /// Who allocates; empty at other levels than `stacks`.
    pub sites: Vec<SiteFacts>,
}

impl AllocatorFacts {
    /// An instance of which nothing was seen; 0: of a profile that names none.
    #[must_use]
    pub fn new(profile: Arc<Profile>, level: Level, instance: u64) -> Self {
        Self {
            profile,
            level,
            not_measurable: None,
            pages_known: false,
            instance,
            destroyed: false,
            totals: Totals::default(),
            open_now: 0,
            open_peak: 0,
            destroyed_open: 0,
            left_open: 0,
            left_objects: 0,
            left_object_bytes: 0,
            retained_granules: 0,
            retained_bytes: 0,
            left_retained: 0,
            left_retained_bytes: 0,
            pin_delays: Hist::new(),
            lifetimes: BTreeMap::new(),
            granules: Vec::new(),
            over_time: HeldSeries::default(),
            live_over_time: LiveSeries::default(),
            sites: Vec::new(),
        }
    }

    /// Takes back every verdict, and what follows from verdicts: the outcome of a close is not known.
    pub fn undecide(&mut self, because: String) {
        let totals = &mut self.totals;
        totals.unknown = totals.unknown.saturating_add(totals.drainable + totals.pinned);
        for count in [
            &mut totals.drainable,
            &mut totals.pinned,
            &mut totals.pinned_objects,
            &mut totals.pinned_bytes,
            &mut totals.late_drained,
            &mut self.retained_granules,
            &mut self.retained_bytes,
            &mut self.left_retained,
            &mut self.left_retained_bytes,
        ] {
            *count = 0;
        }
        self.granules.retain(|granule| !granule.closed);
        self.pin_delays = Hist::new();
        self.over_time = HeldSeries::default();
        self.sites.clear();
        self.not_measurable = Some(because);
    }
}

/// One granule that is open or retained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GranuleFacts {
    /// Its id as the target has it.
    pub id: u64,
    /// Its generation, modulo 2²⁴.
    pub generation: u32,
    /// Whether it is closed (and therefore retained).
    pub closed: bool,
    /// Whether its open was not seen.
    pub before: bool,
    /// Objects live in it.
    pub live: u64,
    /// Their bytes, where sizes are known.
    pub live_bytes: u64,
    /// Bytes that it retains; 0 where unknown.
    pub bytes: u64,
    /// The addresses of its pages, where the profile says how to find them and they could be read.
    pub pages: Option<Vec<u64>>,
    /// When it was opened or last reset; 0 where that was not seen.
    pub opened_ns: u64,
    /// When it was closed; 0 while open.
    pub closed_ns: u64,
    /// Return address of the call that opened it; 0 where unknown.
    pub place: u64,
    /// Parent granule; 0: none.
    pub parent: u64,
    /// Label; empty: none.
    pub label: String,
}

/// One probe in place.
#[derive(Clone, Debug)]
pub struct ProbeFacts {
    /// The profile's name.
    pub profile: String,
    /// Its role's name.
    pub role: &'static str,
    /// The symbol, `offset:0x…` or `usdt:provider:name`.
    pub symbol: String,
    /// The object's path as the process sees it.
    pub object: String,
    /// Whether it is evaluated at return.
    pub at_return: bool,
    /// Entries in traced processes.
    pub entries: u64,
    /// Returns in traced processes.
    pub returns: u64,
    /// Hits whose `when` did not hold.
    pub rejected: u64,
    /// Hits whose expressions could not be computed.
    pub faults: u64,
    /// Nanoseconds of the target's time that the kernel takes for an entry, at this very place.
    pub entry_ns: f64,
    /// Nanoseconds that it takes for a return.
    pub return_ns: f64,
}

impl ProbeFacts {
    /// Seconds of CPU that its hits took from the target.
    #[must_use]
    pub fn cost_seconds(&self) -> f64 {
        (self.entries as f64 * self.entry_ns + self.returns as f64 * self.return_ns) / 1e9
    }

    /// Whether it was hit, as far as we can tell.
    #[must_use]
    pub const fn fired(&self) -> bool {
        self.entries > 0 || self.returns > 0
    }

    /// Whether it says something that it was not hit: a USDT probe has several places, one for each copy of inlined code, and
    /// is silent only if all of them are.
    pub fn is_silent<'a>(&self, mut all: impl Iterator<Item = &'a Self>) -> bool {
        let same = |other: &Self| {
            (other.role, &other.symbol, &other.object) == (self.role, &self.symbol, &self.object)
        };
        let elsewhere = |other: &Self| other.fired() && same(other);
        !(self.fired() || self.symbol.starts_with("usdt:") && all.any(elsewhere))
    }
}
