//! The rules of all watched processes: those of one control group share a window.

use std::collections::BTreeMap;

use drainprof_profile::{self as profile, Level};
use drainprof_report::facts::TargetFacts;

use super::{tracked::Tracked, view::View};
use crate::{
    clock::unix_ms,
    trigger::{self, Want},
};

/// Evaluates the rules of every process.
pub(super) fn evaluate(
    tracked: &mut BTreeMap<u32, Tracked>,
    triggers: &trigger::Config,
    seconds: f64,
    view: &View,
) {
    let unix_ms = unix_ms();
    let seen: BTreeMap<u32, _> = view.running().map(|(_, seen)| (seen.1.pid, seen)).collect();
    for (pid, tracked) in tracked {
        let seen = seen.get(pid).copied();
        if let Some((facts, target)) = seen {
            tracked.spend(seconds, &target.cost);
            tracked.possible = possible(facts);
        }
        let signals = tracked.signals(seconds, seen);
        tracked.engine.check(triggers, &signals);
        tracked.alerts = tracked.engine.alerts(unix_ms);
    }
}

/// The levels that the profiles of a process offer.
fn possible(facts: &TargetFacts) -> Vec<Level> {
    let offers = |level: &Level| {
        facts
            .allocators
            .iter()
            .any(|one| profile::judging_levels(&one.profile).any(|offered| offered == *level))
    };
    Level::ALL.into_iter().filter(offers).collect()
}

/// The windows that rules request. Of the processes of a control group that one cause makes fire, the one that grows
/// most requests for all.
pub(super) fn wanted_windows(
    tracked: &BTreeMap<u32, Tracked>,
    triggers: &trigger::Config,
) -> Vec<(u32, Want)> {
    let mut wanted = Vec::new();
    let mut shared: BTreeMap<(&str, Option<&str>), (u32, &Tracked, Want)> = BTreeMap::new();
    for (pid, tracked) in tracked {
        let Some(want) = tracked.engine.wants(triggers) else { continue };
        if !want.shared {
            wanted.push((*pid, want));
            continue;
        }
        let of = (want.rule, tracked.group());
        let less = |(_, other, _): &(u32, &Tracked, Want)| {
            let ((slope, bytes), (most, held)) = (tracked.blame(), other.blame());
            slope.total_cmp(&most).then(bytes.cmp(&held)).is_le()
        };
        if !shared.get(&of).is_some_and(less) {
            shared.insert(of, (*pid, tracked, want));
        }
    }
    wanted.extend(shared.into_values().map(|(pid, _, want)| (pid, want)));
    wanted
}

/// A window has opened on a process: its rules have what they requested, and so have those of its control group that
/// the same cause makes fire.
pub(super) fn served(all: &mut BTreeMap<u32, Tracked>, pid: u32) {
    let Some(tracked) = all.get_mut(&pid) else { return };
    tracked.engine.served();
    let (rules, group) = (tracked.engine.shared_firing(), tracked.group().map(str::to_owned));
    for rule in rules {
        for other in all.values_mut().filter(|one| one.group() == group.as_deref()) {
            other.engine.served_for(rule);
        }
    }
}
