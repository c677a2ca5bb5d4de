//! From what the kernel side has counted to facts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drainprof_common::{
    hist::{Hist, Of},
    loss::Loss,
    spec::LABEL_BYTES,
    state::BEFORE,
};
use drainprof_probe::bpf::{GranuleRecord, SeriesRecord};
use drainprof_process::{PathEnd, read_memory, readers::each_memory};
use drainprof_report::facts::{AllocatorFacts, GranuleFacts, Moment, SiteFacts, Snapshot};

use super::{Side, allocators::Allocator, clock::now_ns, targets::Target};

/// Everything of one series that lies in other maps.
#[derive(Default)]
struct Belongings {
    granules: Vec<GranuleFacts>,
    pin_delays: Option<Hist>,
    lifetimes: BTreeMap<u64, Hist>,
    sites: Vec<SiteFacts>,
}

impl Side {
    /// What is known now; with a duty cycle, of all windows.
    #[must_use]
    pub fn snapshot(&mut self) -> Snapshot {
        let now = self.window();
        let Some(duty) = self.duty else { return now };
        let duty = duty.after(self.windows(), self.observed());
        Snapshot { duty: Some(duty), ..self.windows.join(now) }
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
        let mut targets = self.targets.facts();
        for (facts, target) in targets.iter_mut().zip(self.targets.iter()) {
            facts.allocators = series.remove(&target.number()).unwrap_or_default();
            if target.is_running() {
                let own = facts.allocators.iter_mut();
                own.for_each(|facts| super::pages::find(facts, target.pid()));
            }
            self.add_silent(target, &mut facts.allocators);
        }
        self.take_mappings();
        if let (Some(growth), Some(paths)) = (&mut self.growth, &self.paths) {
            growth.add_to(&mut targets, &self.session, paths, &self.clock);
            losses[Loss::MappingsLost as usize] += growth.lost();
        }
        // What was placed for several targets at once is reported with the first.
        let mut reported = Vec::new();
        let allocators = self.planner.allocators();
        for (facts, target) in targets.iter_mut().zip(self.targets.iter()) {
            facts.probes = self.probes.facts(&self.session, allocators, target, &mut reported);
        }
        Snapshot {
            now_ns,
            window: self.clock.since_begin(now_ns),
            duty: None,
            sample: self.config.sample,
            targets,
            losses,
            halfway: None,
            self_use: self.clock.self_use(self.session.map_bytes()),
            prices_measured: self.planner.options().costs.measured,
            pressure: None,
            symbols: None,
        }
    }

    fn belongings(&mut self, records: &[SeriesRecord], now_ns: u64) -> BTreeMap<u32, Belongings> {
        let mut belongings: BTreeMap<u32, Belongings> = BTreeMap::new();
        let pids: BTreeMap<u32, u32> = records
            .iter()
            .filter_map(|record| {
                let target = self.targets.get(record.state.key.target)?;
                target.is_running().then_some((record.series, target.pid()))
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
        let sites =
            self.with_sites(|sites, from| sites.facts(from, now_ns, site_delays, site_lives));
        for (series, sites) in sites.into_iter().flatten() {
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
        let allocators = self.planner.allocators();
        let allocator = allocators.get(state.key.allocator)?;
        let destroyed = state.destroyed_ns != 0;
        if destroyed {
            own.sites.iter_mut().for_each(SiteFacts::end_with_instance);
        }
        // What an instance retained went with it.
        let kept = |value: u64| if destroyed { 0 } else { value };
        let is_over = self.targets.has_ended(state.key.target);
        let at_ns = (!is_over).then(|| self.clock.at_ns());
        Some(AllocatorFacts {
            destroyed,
            totals: *totals,
            open_now: state.open_now,
            open_peak: state.open_peak,
            destroyed_open: state.destroyed_open,
            retained_granules: kept(state.retained_granules),
            retained_bytes: kept(state.retained_bytes),
            pin_delays: own.pin_delays.unwrap_or_default(),
            lifetimes: own.lifetimes,
            over_time: self.curves.held(allocators, record, &own.granules, at_ns),
            live_over_time: self.curves.live(allocators, record, at_ns),
            sites: own.sites,
            granules: if destroyed { Vec::new() } else { own.granules },
            ..nothing_of(allocator, state.key.instance)
        })
    }

    /// A profile whose probes are in place but never fired has no series: it is reported all the same.
    fn add_silent(&self, target: &Target, allocators: &mut Vec<AllocatorFacts>) {
        for number in target.probed().allocators() {
            let Some(allocator) = self.planner.allocators().get(*number) else { continue };
            let seen = allocators.iter().any(|facts| {
                Arc::ptr_eq(&facts.profile, allocator.profile()) && facts.level == allocator.level()
            });
            if !seen {
                let not_measurable = target.probed().why_not(*number).cloned();
                allocators.push(AllocatorFacts { not_measurable, ..nothing_of(allocator, 0) });
            }
        }
    }

    /// The flows of all allocators, windows of a duty cycle that have ended included.
    #[must_use]
    pub fn moment(&self) -> Moment {
        let mut flows = self.windows.flows();
        for record in self.session.read_series() {
            let key = record.state.key;
            if let Some(allocator) = self.planner.allocators().get(key.allocator) {
                flows.add(key.target, &allocator.profile().name, &record.totals);
            }
        }
        flows.unmatched += self.session.read_losses()[Loss::UnmatchedFree as usize];
        Moment { after: self.observed(), flows }
    }
}

/// An allocator of which nothing was counted.
fn nothing_of(allocator: &Allocator, instance: u64) -> AllocatorFacts {
    AllocatorFacts::new(Arc::clone(allocator.profile()), allocator.level(), instance)
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
