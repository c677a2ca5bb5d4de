//! Allocators of a comparison: how two groups differ.

use super::{
    group::Group,
    matching::Pair,
    model::{AllocatorDiff, Change, Presence, Side},
    sites,
    sums::per_second,
};
use crate::kind::Kind;

/// How the two differ.
pub(super) fn compare(pair: &Pair, windows: [&Side; 2]) -> AllocatorDiff {
    let [before, after] = [pair.before.as_ref(), pair.after.as_ref()];
    let seconds = windows.map(|side| side.observed_seconds);
    let change = |of: &dyn Fn(&Group) -> Option<u64>| Change {
        before: before.and_then(of),
        after: after.and_then(of),
    };
    let number = |of: &dyn Fn(&Group) -> Option<f64>| Change {
        before: before.and_then(of).filter(|value| value.is_finite()),
        after: after.and_then(of).filter(|value| value.is_finite()),
    };
    let rate = |of: &dyn Fn(&Group) -> Option<u64>| Change {
        before: before.and_then(of).and_then(|count| per_second(count, seconds[0])),
        after: after.and_then(of).and_then(|count| per_second(count, seconds[1])),
    };
    let level = |group: &Group| group.level.value();
    let verdict = |group: &Group| group.verdict.value();
    let sites = before.and_then(Group::listed).zip(after.and_then(Group::listed));
    let kind = after.or(before).map_or(Kind::Drain, |group| group.kind);
    let presence = match (before, after) {
        (Some(_), None) => Presence::OnlyBefore,
        (None, _) => Presence::OnlyAfter,
        _ => Presence::Both,
    };
    let shown = after.or(before);
    let text = |of: &dyn Fn(&Group) -> &String| shown.map(of).cloned().unwrap_or_default();
    AllocatorDiff {
        comm: text(&|group| &group.comm),
        exe: text(&|group| &group.exe),
        profile: text(&|group| &group.profile),
        kind,
        presence,
        level: Change { before: before.and_then(level), after: after.and_then(level) },
        sampled: [before, after].into_iter().flatten().any(|group| group.one_in > 1),
        processes: change(&|group| Some(group.targets.len() as u64)),
        instances: change(&|group| Some(group.instances)),
        dsr: number(&|group| group.sums.counts.dsr(group.kind)),
        opens_per_second: rate(&|group| Some(group.sums.counts.opened)),
        closes_per_second: rate(&|group| Some(group.sums.counts.closed())),
        pinned_per_second: rate(&|group| {
            (group.kind == Kind::Drain).then_some(group.sums.counts.pinned)
        }),
        open_granules: change(&|group| Some(group.sums.held.open_now)),
        retained_granules: change(&|group| group.sums.held.retained_granules),
        retained_bytes: change(&|group| group.sums.held.retained_bytes),
        live_objects: change(&|group| group.sums.live),
        live_bytes: change(&|group| group.sums.live_bytes),
        slope_granules_per_second: number(&|group| group.sums.slope_granules),
        slope_bytes_per_second: number(&|group| group.sums.slope_bytes),
        verdict: Change { before: before.and_then(verdict), after: after.and_then(verdict) },
        sites_listed: change(&|group| group.sites_listed),
        sites_total: change(&|group| group.sites_total),
        sites: sites.map(|(before, after)| sites::compare([before, after], kind, seconds)),
    }
}
