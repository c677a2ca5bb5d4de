//! From what the kernel side has counted to facts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drainprof_common::{
    hist::{Hist, Of},
    loss::Loss,
    spec::LABEL_BYTES,
    state::BEFORE,
};
use drainprof_probe::bpf::{GranuleRecord, SeriesRecord};
use drainprof_process::{
    PathEnd, Process, read_memory,
    readers::{each, each_memory},
};
use drainprof_profile::Phase;
use drainprof_report::facts::{
    AllocatorFacts, DutyFacts, Frames, GranuleFacts, ProbeFacts, SelfUse, SiteFacts, Snapshot,
    TargetFacts,
};
use drainprof_report::series::{HeldSeries, LiveSeries};
use nix::time::{ClockId, clock_gettime};

use super::observer::{Observer, Target};

/// `CLOCK_MONOTONIC` nanoseconds, the clock of the kernel side.
pub(super) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| Duration::from(time).as_nanos().try_into().unwrap_or(u64::MAX))
}

/// CPU time that this process has used.
pub(super) fn own_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Everything of one series that lies in other maps.
#[derive(Default)]
struct Belongings {
    granules: Vec<GranuleFacts>,
    pin_delays: Option<Hist>,
    lifetimes: BTreeMap<u64, Hist>,
    sites: Vec<SiteFacts>,
}

impl Observer {
    /// What is known now; with a duty cycle, of all windows.
    #[must_use]
    pub fn snapshot(&mut self) -> Snapshot {
        let now = self.window();
        let Some(duty) = self.options.duty else { return now };
        let duty = DutyFacts {
            duty,
            windows: self.windows.count() + 1,
            observed: self.windows.observed() + self.window_length(),
        };
        Snapshot { duty: Some(duty), ..self.windows.join(now) }
    }

    /// How long this window has been.
    pub(super) fn window_length(&self) -> Duration {
        let end = self.stopped_ns.unwrap_or_else(now_ns);
        Duration::from_nanos(end.saturating_sub(self.window_ns.unwrap_or(end)))
    }

    /// What is known of this window alone.
    pub(super) fn window(&mut self) -> Snapshot {
        self.end_nested();
        let now_ns = now_ns();
        let records = self.session.read_series();
        let mut belongings = self.belongings(&records, now_ns);
        let mut series: BTreeMap<u32, Vec<AllocatorFacts>> = BTreeMap::new();
        for record in records {
            let target = record.state.key.target;
            let own = belongings.remove(&record.series).unwrap_or_default();
            if let Some(facts) = self.allocator_facts(&record, own) {
                series.entry(target).or_default().push(facts);
            }
        }
        let mut losses = self.session.read_losses();
        for site in series.values().flatten().flat_map(|facts| &facts.sites) {
            losses[Loss::PinsWhileLearning as usize] += site.granules_unsure;
            match site.path.end {
                PathEnd::Start => {}
                PathEnd::NotCaptured => losses[Loss::PathNotCaptured as usize] += site.allocated,
                PathEnd::TooDeep | PathEnd::NoUnwindInfo | PathEnd::Unreadable => {
                    losses[Loss::PathCut as usize] += site.allocated;
                }
            }
        }
        let resident = resident(&self.targets);
        let mut targets: Vec<TargetFacts> = self
            .targets
            .iter()
            .map(|target| {
                let mut own = series.remove(&target.target).unwrap_or_default();
                if target.ended.is_none() {
                    for facts in &mut own {
                        super::pages::find(facts, target.pid);
                    }
                }
                self.target_facts(target, own, resident.get(&target.pid).copied())
            })
            .collect();
        self.add_growth(&mut targets);
        self.count_growth_losses(&mut losses);
        // What was placed for several targets at once is reported with the first.
        let mut reported = Vec::new();
        for (facts, target) in targets.iter_mut().zip(&self.targets) {
            facts.probes = self.probe_facts(target, &mut reported);
        }
        Snapshot {
            now_ns,
            window: Duration::from_nanos(now_ns.saturating_sub(self.began_ns.unwrap_or(now_ns))),
            duty: None,
            sample: self.config.sample,
            targets,
            losses,
            halfway: None,
            self_use: self.self_use(),
            prices_measured: self.options.costs.measured,
            pressure: None,
            symbols: None,
        }
    }

    fn belongings(&mut self, records: &[SeriesRecord], now_ns: u64) -> BTreeMap<u32, Belongings> {
        let mut belongings: BTreeMap<u32, Belongings> = BTreeMap::new();
        let pids: BTreeMap<u32, u32> = records
            .iter()
            .filter_map(|record| {
                let target = record.state.key.target;
                let known = self.targets.iter().find(|known| known.target == target)?;
                known.ended.is_none().then_some((record.series, known.pid))
            })
            .collect();
        let granules = self.session.read_granules();
        let labels = labels(&granules, &pids);
        for GranuleRecord { slot } in granules {
            belongings.entry(slot.series).or_default().granules.push(GranuleFacts {
                id: slot.id,
                generation: slot.state.generation().number(),
                closed: slot.state.is_closed(),
                before: slot.state.has(BEFORE),
                live: slot.state.live(),
                live_bytes: slot.live_bytes,
                bytes: slot.bytes,
                pages: None,
                opened_ns: slot.opened_ns,
                closed_ns: slot.closed_ns,
                place: slot.place,
                parent: slot.parent,
                label: match pids.get(&slot.series) {
                    Some(pid) if slot.label_at != 0 => {
                        labels.get(&(*pid, slot.label_at)).cloned().unwrap_or_default()
                    }
                    _ => label(&slot.label),
                },
            });
        }
        let (mut site_delays, mut site_lives) = (BTreeMap::new(), BTreeMap::new());
        for (of, series, place, hist) in self.session.read_histograms() {
            let own = belongings.entry(series).or_default();
            match of {
                Of::PinDelay => own.pin_delays = Some(hist),
                Of::SiteDelay => {
                    site_delays.insert(place as u32, hist);
                }
                Of::SiteLife => {
                    site_lives.insert(place as u32, hist);
                }
                Of::Lifetime => {
                    own.lifetimes.entry(place).or_default().merge(&hist);
                }
            }
        }
        for (series, sites) in self.sites(now_ns, site_delays, site_lives) {
            belongings.entry(series).or_default().sites = sites;
        }
        belongings
    }

    fn allocator_facts(
        &self,
        record: &SeriesRecord,
        mut own: Belongings,
    ) -> Option<AllocatorFacts> {
        let SeriesRecord { state, totals, .. } = record;
        let allocator = self.allocators.get(state.key.allocator as usize)?;
        let destroyed = state.destroyed_ns != 0;
        if destroyed {
            own.sites.iter_mut().for_each(SiteFacts::end_with_instance);
        }
        // What an instance retained went with it.
        let kept = |value: u64| if destroyed { 0 } else { value };
        Some(AllocatorFacts {
            profile: Arc::clone(&allocator.profile),
            level: allocator.level,
            not_measurable: None,
            pages_known: false,
            instance: state.key.instance,
            destroyed,
            totals: *totals,
            open_now: state.open_now,
            open_peak: state.open_peak,
            destroyed_open: state.destroyed_open,
            left_open: 0,
            left_objects: 0,
            left_object_bytes: 0,
            left_retained: 0,
            left_retained_bytes: 0,
            retained_granules: kept(state.retained_granules),
            retained_bytes: kept(state.retained_bytes),
            pin_delays: own.pin_delays.unwrap_or_default(),
            lifetimes: own.lifetimes,
            over_time: self.curve(record, &own.granules),
            live_over_time: self.live_curve(record),
            sites: own.sites,
            granules: if destroyed { Vec::new() } else { own.granules },
        })
    }

    fn target_facts(
        &self,
        target: &Target,
        mut allocators: Vec<AllocatorFacts>,
        rss_bytes: Option<u64>,
    ) -> TargetFacts {
        // A profile whose probes are in place but never fired has no series: it is reported all the same.
        for number in &target.allocators {
            let Some(allocator) = self.allocators.get(*number as usize) else { continue };
            let seen = allocators.iter().any(|facts| {
                Arc::ptr_eq(&facts.profile, &allocator.profile) && facts.level == allocator.level
            });
            if !seen {
                allocators.push(AllocatorFacts {
                    profile: Arc::clone(&allocator.profile),
                    level: allocator.level,
                    not_measurable: target.not_measurable.get(number).cloned(),
                    pages_known: false,
                    instance: 0,
                    destroyed: false,
                    totals: drainprof_common::maps::Totals::default(),
                    open_now: 0,
                    open_peak: 0,
                    destroyed_open: 0,
                    left_open: 0,
                    left_objects: 0,
                    left_object_bytes: 0,
                    left_retained: 0,
                    left_retained_bytes: 0,
                    retained_granules: 0,
                    retained_bytes: 0,
                    pin_delays: Hist::new(),
                    lifetimes: BTreeMap::new(),
                    granules: Vec::new(),
                    over_time: HeldSeries::default(),
                    live_over_time: LiveSeries::default(),
                    sites: Vec::new(),
                });
            }
        }
        let rss_bytes = rss_bytes.filter(|_| target.ended.is_none());
        TargetFacts { allocators, ..target_facts(target, rss_bytes) }
    }

    fn probe_facts(&self, target: &Target, reported: &mut Vec<u32>) -> Vec<ProbeFacts> {
        let mut facts = Vec::new();
        for placed in &self.placed {
            let own = target.allocators.contains(&placed.allocator)
                && placed.pid.is_none_or(|pid| pid == target.pid);
            if !own || reported.contains(&placed.spec) {
                continue;
            }
            reported.push(placed.spec);
            let counts = self.session.read_probe(placed.spec);
            let Some(allocator) = self.allocators.get(placed.allocator as usize) else { continue };
            facts.push(ProbeFacts {
                profile: allocator.profile.name.clone(),
                role: placed.probe.role.name(),
                symbol: placed.probe.site.symbol.clone(),
                object: placed.probe.site.shown_path.clone(),
                at_return: placed.probe.phase == Phase::Return,
                entries: counts.entries,
                returns: counts.returns,
                rejected: counts.rejected,
                faults: counts.faults,
                entry_ns: placed.entry_ns,
                return_ns: self.options.costs.return_ns,
            });
        }
        facts
    }

    fn self_use(&self) -> SelfUse {
        self_use(self.cpu_at_start, self.session.map_bytes())
    }
}

/// Resident memory of the processes of targets that run, bytes.
pub(super) fn resident(targets: &[Target]) -> BTreeMap<u32, u64> {
    let running = targets.iter().filter(|target| target.ended.is_none());
    let running: Vec<Process> = running.filter_map(|target| target.process.clone()).collect();
    let numbers: Vec<(u32, usize)> =
        running.iter().enumerate().map(|(at, process)| (process.pid, at)).collect();
    let read = each(numbers, move |_, at| running.get(at)?.rss_bytes().ok());
    read.into_iter().filter_map(|(pid, bytes)| Some((pid, bytes?))).collect()
}

/// A target without its allocators and probes.
pub(super) fn target_facts(target: &Target, rss_bytes: Option<u64>) -> TargetFacts {
    TargetFacts {
        target: target.target,
        pid: target.pid,
        start_time: target.start_time,
        comm: target.comm.clone(),
        exe: target.exe.clone(),
        container: target.container.clone(),
        began: target.began,
        ended: target.ended,
        rss_bytes,
        memory: None,
        allocators: Vec::new(),
        probes: Vec::new(),
        findings: target.findings.clone(),
        frames: Frames::new(),
        modules: Vec::new(),
        growth: None,
    }
}

/// What drainprof itself uses: CPU time since so much of it was used (`at_start`), memory, and `map_bytes` of maps.
#[must_use]
pub fn self_use(at_start: Duration, map_bytes: u64) -> SelfUse {
    let (rss_bytes, peak_rss_bytes) = own_memory();
    let cpu = own_cpu().saturating_sub(at_start);
    SelfUse { cpu, rss_bytes, peak_rss_bytes, map_bytes }
}

/// Resident memory of this process now and at most, bytes.
fn own_memory() -> (u64, u64) {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return (0, 0) };
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .map_or(0, |kib| kib * 1024)
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Labels that the kernel side could not read, by process and address. A process that the kernel does not answer for has
/// none.
fn labels(granules: &[GranuleRecord], pids: &BTreeMap<u32, u32>) -> BTreeMap<(u32, u64), String> {
    let mut wanted: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for GranuleRecord { slot } in granules.iter().filter(|record| record.slot.label_at != 0) {
        if let Some(pid) = pids.get(&slot.series) {
            wanted.entry(*pid).or_default().insert(slot.label_at);
        }
    }
    let numbers: Vec<(u32, usize)> = wanted.keys().copied().zip(0..).collect();
    let wanted: Vec<BTreeSet<u64>> = wanted.into_values().collect();
    let read = each_memory(numbers, move |pid, at| -> Vec<(u64, String)> {
        let addresses = wanted.get(at).into_iter().flatten();
        addresses.map(|address| (*address, read_label(pid, *address))).collect()
    });
    let of_process = |(pid, labels): (u32, Vec<(u64, String)>)| {
        labels.into_iter().map(move |(address, label)| ((pid, address), label))
    };
    read.into_iter().flat_map(of_process).collect()
}

/// A label from the target's memory; empty where it cannot be read.
fn read_label(pid: u32, address: u64) -> String {
    let mut bytes = [0; LABEL_BYTES];
    // A label may stand at the end of its page: then only what is before the end can be read.
    let length = LABEL_BYTES.min(4096 - (address % 4096) as usize);
    match read_memory(pid, address, &mut bytes[..length]) {
        Ok(_) => label(&bytes[..LABEL_BYTES - 1]),
        Err(_) => String::new(),
    }
}

fn label(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
