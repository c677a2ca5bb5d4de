//! Adds what targets have counted, by profile. Sets decide what is added to what.

use std::collections::BTreeMap;

use drainprof_common::hist::{Hist, lower_bound};
use drainprof_report::{Allocator, Kind};

use super::super::view::Seen;
use crate::{Counts, Labels, PinDelays};

/// Counts of one label set, by profile.
pub(super) type ByProfile = BTreeMap<String, Counts>;

/// Adds what a target has counted; `runs`: its gauges, too.
pub(super) fn add(sums: &mut ByProfile, labels: &Labels, (facts, target): Seen<'_>, runs: bool) {
    let mut profiles: Vec<(&str, Kind)> = Vec::new();
    for allocator in &target.allocators {
        let sum = entry(sums, labels, &allocator.profile, allocator.kind.name());
        add_allocator(sum, allocator, runs);
        if !profiles.iter().any(|(known, _)| *known == allocator.profile) {
            profiles.push((&allocator.profile, allocator.kind));
        }
    }
    for one in &facts.allocators {
        let sum = entry(sums, labels, &one.profile.name, one.profile.kind.name());
        add_delays(&mut sum.pin_delays, &one.pin_delays);
    }
    for probe in &target.probes {
        let kind = profiles.iter().find(|(known, _)| *known == probe.profile);
        let kind = kind.map_or(Kind::Drain, |(_, kind)| *kind);
        let sum = entry(sums, labels, &probe.profile, kind.name());
        sum.hits += probe.entries + probe.returns;
        // Whole parts of two: their sum is exact in any order, and so never falls by a rounding.
        sum.cost_seconds +=
            (probe.cost_seconds * COST_PARTS_A_SECOND).round() / COST_PARTS_A_SECOND;
    }
    if runs {
        for (profile, kind) in profiles {
            entry(sums, labels, profile, kind.name()).processes += 1;
        }
    }
}

/// Parts of a second in which costs are added up: about a microsecond each.
const COST_PARTS_A_SECOND: f64 = 1_048_576.0;

pub(super) fn entry<'a>(
    sums: &'a mut ByProfile,
    labels: &Labels,
    profile: &str,
    kind: &str,
) -> &'a mut Counts {
    sums.entry(profile.to_owned()).or_insert_with(|| Counts {
        labels: labels.clone(),
        profile: profile.to_owned(),
        kind: kind.to_owned(),
        ..Counts::default()
    })
}

/// Adds counters to counters; gauges of what has ended are zero.
pub(super) fn fold(sum: &mut Counts, more: &Counts) {
    for (sum, more) in [
        (&mut sum.allocated, more.allocated),
        (&mut sum.freed, more.freed),
        (&mut sum.hits, more.hits),
    ] {
        *sum += more;
    }
    sum.granules.add(more.granules);
    sum.cost_seconds += more.cost_seconds;
    for (sum, more) in sum.pin_delays.buckets.iter_mut().zip(more.pin_delays.buckets) {
        *sum += more;
    }
    let nanoseconds = &mut sum.pin_delays.sum_nanoseconds;
    *nanoseconds = nanoseconds.saturating_add(more.pin_delays.sum_nanoseconds);
}

/// Puts the kernel side's fine buckets into the few of a metric. Each of them lies in one of these.
pub(super) fn add_delays(sum: &mut PinDelays, more: &Hist) {
    let mut bucket = 0;
    for (fine, count) in more.buckets.iter().enumerate() {
        while PinDelays::bound(bucket).is_some_and(|bound| lower_bound(fine) >= bound) {
            bucket += 1;
        }
        sum.buckets[bucket] += u64::from(*count);
    }
    sum.sum_nanoseconds = sum.sum_nanoseconds.saturating_add(more.sum);
}

/// Counters go on for ever; gauges are of those alone that are examined now.
fn add_allocator(sum: &mut Counts, allocator: &Allocator, runs: bool) {
    sum.granules.add(allocator.granules.into());
    if let Some(objects) = &allocator.objects {
        sum.allocated += objects.allocated;
        sum.freed += objects.freed;
    }
    if runs {
        sum.held.add(allocator.into());
    }
}
