//! Builds a [`Report`] from facts. Only renames, sums and sorts; judgements are in `finding`.

use std::{collections::BTreeMap, time::Duration};

use drainprof_common::loss::Loss;
use drainprof_profile::Finding as PlanFinding;

use crate::{
    census,
    facts::{AllocatorFacts, GranuleFacts, ProbeFacts, Snapshot, TargetFacts},
    finding, frame, growth,
    health::{self, Health},
    identity,
    kind::Kind,
    known::{Known, hex, non_zero, seconds, spread},
    lifetimes, measurable,
    memory::Memory,
    model::{
        Cost, Finding, Host, Probe, Report, SCHEMA, SelfUse, Severity, Target, Tool, Window,
        allocator::{
            Allocator, Granules, Objects, OpenGranule, PinnedGranule, Pins, Retention, dsr,
        },
    },
    options::Options,
    sampling, sites, trend,
};

impl Report {
    /// The report on what was observed up to the snapshot.
    #[must_use]
    pub fn build(snapshot: &Snapshot, options: &Options) -> Self {
        let snapshot = &*measurable::judge(snapshot);
        let window = snapshot.window.as_secs_f64();
        let mut report = Self {
            schema: SCHEMA.to_owned(),
            tool: Tool {
                name: "drainprof".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            host: Host { kernel: options.kernel.clone() },
            complete: Health::from_counts(&snapshot.losses).complete(),
            losses: losses(snapshot),
            window: Window { seconds: window, duty: snapshot.duty },
            pressure: snapshot.pressure,
            self_use: SelfUse {
                cpu_ratio: (window > 0.0).then(|| snapshot.self_use.cpu_seconds / window),
                ..snapshot.self_use
            },
            symbols: snapshot.symbols.as_ref().map(frame::symbols),
            findings: Vec::new(),
            system: options.system,
            targets: snapshot
                .targets
                .iter()
                .map(|facts| target(facts, snapshot, options))
                .collect(),
        };
        let measurable = report.not_measurable().next().is_none();
        report.complete &= measurable;
        finding::add_all(&mut report, snapshot, options);
        report
    }

    /// The profiles of which nothing can be said, once for each process: process, profile, reason.
    pub fn not_measurable(&self) -> impl Iterator<Item = (&Target, &str, &str)> {
        self.targets.iter().flat_map(|target| {
            let of = |allocator: &Allocator| allocator.not_measurable.is_some();
            target.allocators.iter().enumerate().filter_map(move |(index, allocator)| {
                let same = |other: &Allocator| of(other) && other.profile == allocator.profile;
                let first = !target.allocators[..index].iter().any(same);
                let because = allocator.not_measurable.as_deref().filter(|_| first)?;
                Some((target, allocator.profile.as_str(), because))
            })
        })
    }
}

/// In a sample, a free of an object that is not known may be of a granule that is not in it.
fn losses(snapshot: &Snapshot) -> BTreeMap<String, Option<u64>> {
    let mut losses = health::by_name(&snapshot.losses);
    if snapshot.sample > 1
        && let Some(unmatched) = losses.get_mut(Loss::UnmatchedFree.info().name)
    {
        *unmatched = None;
    }
    losses
}

fn target(facts: &TargetFacts, snapshot: &Snapshot, options: &Options) -> Target {
    let probes: Vec<Probe> = facts.probes.iter().map(probe).collect();
    let ended = facts.ended.is_some();
    let growth = growth::of(facts, snapshot, options.top);
    let mut allocators: Vec<Allocator> = facts
        .allocators
        .iter()
        .map(|allocator_facts| {
            let mut shown = allocator(allocator_facts, snapshot.now_ns, ended, options);
            if allocator_facts.not_measurable.is_none() {
                trend::add(&mut shown.retention, allocator_facts, snapshot, ended);
                let sizes = Known::of(allocator_facts).sizes;
                shown.live_over_time = trend::of_live(allocator_facts, snapshot, ended, sizes);
            }
            sites::add(&mut shown, allocator_facts, snapshot, ended, options.top);
            frame::add(&mut shown, &facts.frames);
            if snapshot.sample > 1 {
                sampling::add(&mut shown, allocator_facts, snapshot.sample);
                // Which frees are of objects in pages outside the sample is not known.
                if let Some(census) = &mut shown.census {
                    census.unknown_frees = None;
                }
            }
            shown
        })
        .collect();
    identity::add(&mut allocators, &facts.modules);
    Target {
        target: facts.target,
        pid: facts.pid,
        start_time: facts.start_time,
        comm: facts.comm.clone(),
        exe: facts.exe.clone(),
        container: facts.container.clone(),
        began: facts.began,
        ended: facts.ended,
        rss_bytes: facts.rss_bytes,
        memory: facts.memory.as_ref().and_then(Memory::of),
        findings: facts
            .findings
            .iter()
            // It is a finding of the report as a whole.
            .filter(|finding| finding.code != "not_measurable")
            .map(of_plan)
            .collect(),
        cost: cost(&probes, snapshot),
        probes,
        modules: frame::modules(&allocators, growth.as_ref(), &facts.modules),
        allocators,
        growth,
        census: None,
    }
}

/// What planning and attaching found stays as it is.
fn of_plan(finding: &PlanFinding) -> Finding {
    Finding {
        code: finding.code.clone(),
        severity: Severity::Info,
        profile: None,
        instance: None,
        message: finding.message.clone(),
    }
}

fn probe(facts: &ProbeFacts) -> Probe {
    Probe {
        profile: facts.profile.clone(),
        role: facts.role.to_owned(),
        symbol: facts.symbol.clone(),
        object: facts.object.clone(),
        at_return: facts.at_return,
        entries: facts.entries,
        returns: facts.returns,
        rejected: facts.rejected,
        faults: facts.faults,
        cost_seconds: facts.cost_seconds(),
    }
}

fn cost(probes: &[Probe], snapshot: &Snapshot) -> Cost {
    let cpu_seconds = probes.iter().map(|probe| probe.cost_seconds).sum();
    let window = snapshot.window.as_secs_f64();
    Cost {
        hits: probes.iter().fold(0, |hits, probe| {
            hits.saturating_add(probe.entries).saturating_add(probe.returns)
        }),
        cpu_seconds,
        cpu_ratio: (window > 0.0).then(|| cpu_seconds / window),
        measured: snapshot.prices_measured,
    }
}

fn allocator(facts: &AllocatorFacts, now_ns: u64, ended: bool, options: &Options) -> Allocator {
    let known = Known::of(facts);
    let totals = &facts.totals;
    let kind = facts.profile.kind;
    let (lifetimes, overdue, is_overdue) =
        lifetimes::judge(facts, (!ended).then_some(now_ns), known);
    Allocator {
        profile: facts.profile.name.clone(),
        kind,
        instance: hex(facts.instance),
        destroyed: facts.destroyed,
        level: facts.level,
        not_measurable: facts.not_measurable.clone(),
        granules: granules(facts),
        dsr: dsr(kind, totals.drainable, totals.pinned),
        sampling: None,
        objects: known.objects.then(|| objects(facts, known)),
        pins: Pins {
            objects: totals.pinned_objects,
            bytes: known.bytes.then_some(totals.pinned_bytes),
        },
        retention: retention(facts, known),
        live_over_time: None,
        lifetimes,
        open_granules: open_granules(facts, now_ns, known, options, &is_overdue),
        pinned_granules: pinned_granules(facts, now_ns, known, options),
        overdue,
        census: (kind == Kind::Slab && known.objects).then(|| census::census(facts, known)),
        sites: None,
        sites_total: None,
    }
}

fn retention(facts: &AllocatorFacts, known: Known) -> Retention {
    if !known.objects || facts.not_measurable.is_some() {
        return Retention { pin_delay_seconds: spread(&facts.pin_delays), ..Retention::default() };
    }
    let bytes = |bytes: u64| (known.bytes || facts.pages_known).then_some(bytes);
    Retention {
        granules: Some(facts.retained_granules),
        bytes: bytes(facts.retained_bytes),
        late_drained: Some(facts.totals.late_drained),
        left_granules: Some(facts.left_retained),
        left_bytes: bytes(facts.left_retained_bytes),
        pin_delay_seconds: spread(&facts.pin_delays),
        ..Retention::default()
    }
}

fn granules(facts: &AllocatorFacts) -> Granules {
    let totals = &facts.totals;
    Granules {
        opened: totals.opened,
        opened_before: totals.opened_before,
        closed: totals.closed(),
        drainable: totals.drainable,
        pinned: totals.pinned,
        unknown: totals.unknown,
        resets: totals.resets,
        reopened: totals.reopened,
        destroyed: facts.destroyed_open,
        left_open: facts.left_open,
        migrated: totals.migrated,
        ended_with_parent: totals.ended_with_parent,
        open_now: facts.open_now,
        open_peak: facts.open_peak,
    }
}

/// `live` stops at 0: a negative count is a bug of ours, and the finding `invariant` says so.
fn objects(facts: &AllocatorFacts, known: Known) -> Objects {
    let totals = &facts.totals;
    let freed = totals.gone();
    let gone_bytes = totals.freed_bytes.saturating_add(facts.left_object_bytes);
    Objects {
        allocated: totals.allocated,
        freed,
        left: facts.left_objects,
        migrated: totals.migrated_objects,
        live: totals.allocated.saturating_sub(freed.saturating_add(facts.left_objects)),
        allocated_bytes: known.sizes.then_some(totals.allocated_bytes),
        left_bytes: known.sizes.then_some(facts.left_object_bytes),
        live_bytes: known.sizes.then_some(totals.allocated_bytes.saturating_sub(gone_bytes)),
    }
}

fn open_granules(
    facts: &AllocatorFacts,
    now_ns: u64,
    known: Known,
    options: &Options,
    is_overdue: &dyn Fn(&GranuleFacts) -> bool,
) -> Vec<OpenGranule> {
    // An open that was not seen (0) is older than every one that was.
    // Of a page that was there before nothing is known, not even that anything old is in it.
    let is_listed = |granule: &&GranuleFacts| !(facts.profile.implicit && granule.opened_ns == 0);
    oldest(facts, false, |granule| granule.opened_ns, now_ns, options, is_listed)
        .map(|granule| OpenGranule {
            id: format!("{:#x}", granule.id),
            generation: granule.generation,
            age_seconds: since(granule.opened_ns, now_ns),
            // What was put in before the attach was not counted.
            live: (known.objects && !granule.before).then_some(granule.live),
            live_bytes: (known.sizes && !granule.before).then_some(granule.live_bytes),
            bytes: non_zero(granule.bytes),
            label: label(granule),
            parent: hex(granule.parent),
            place: hex(granule.place),
            opened_by: None,
            overdue: is_overdue(granule),
        })
        .collect()
}

fn pinned_granules(
    facts: &AllocatorFacts,
    now_ns: u64,
    known: Known,
    options: &Options,
) -> Vec<PinnedGranule> {
    oldest(facts, true, |granule| granule.closed_ns, now_ns, options, |_| true)
        .map(|granule| PinnedGranule {
            id: format!("{:#x}", granule.id),
            generation: granule.generation,
            closed_for_seconds: since(granule.closed_ns, now_ns),
            live: granule.live,
            live_bytes: known.sizes.then_some(granule.live_bytes),
            bytes: non_zero(granule.bytes),
            label: label(granule),
            parent: hex(granule.parent),
            place: hex(granule.place),
            opened_by: None,
        })
        .collect()
}

/// The closed or open granules that are to be listed, those that have been so for longest first.
fn oldest<'a>(
    facts: &'a AllocatorFacts,
    closed: bool,
    since: fn(&GranuleFacts) -> u64,
    now_ns: u64,
    options: &Options,
    is_listed: impl Fn(&&GranuleFacts) -> bool,
) -> impl Iterator<Item = &'a GranuleFacts> {
    let granules = facts.granules.iter().filter(|granule| granule.closed == closed);
    let granules = granules.filter(is_listed);
    let mut granules: Vec<_> =
        granules.filter(|granule| listed(granule, since(granule), now_ns, options)).collect();
    granules.sort_by_key(|granule| (since(granule), granule.id, granule.generation));
    granules.truncate(options.top);
    granules.into_iter()
}

/// `--min-age` and `--min-size`; what is not known passes.
fn listed(granule: &GranuleFacts, since_ns: u64, now_ns: u64, options: &Options) -> bool {
    let old =
        since_ns == 0 || Duration::from_nanos(now_ns.saturating_sub(since_ns)) >= options.min_age;
    let held = granule.bytes.max(granule.live_bytes);
    old && (held == 0 || held >= options.min_bytes)
}

fn label(granule: &GranuleFacts) -> Option<String> {
    (!granule.label.is_empty()).then(|| granule.label.clone())
}

fn since(then_ns: u64, now_ns: u64) -> Option<f64> {
    (then_ns != 0).then(|| seconds(now_ns.saturating_sub(then_ns)))
}
