//! Whether what was counted of a profile can be relied on at all.
//!
//! A profile describes one build of an allocator. On another build its probes may be hit while nothing that they
//! compute is true: every open is rejected, closes name granules that were not opened, live counts cannot be read.
//! The few counts that get through prove nothing, so all verdicts are taken back. Called by `build`, before anything
//! else is made of the facts.

use std::borrow::Cow;

use drainprof_common::maps::Totals;
use drainprof_profile::{Key, Kind, Level, Role};

use crate::facts::{AllocatorFacts, GranuleState, ProbeFacts, Snapshot, TargetFacts};

/// Calls before a share of them says anything.
const MIN_CALLS: u64 = 16;

/// Whether `part` is nearly all of `whole`, and `whole` is enough to say so.
const fn nearly_all(part: u64, whole: u64) -> bool {
    whole >= MIN_CALLS && part.saturating_mul(10) >= whole.saturating_mul(9)
}

/// The snapshot without the verdicts of profiles that are not measurable.
pub(super) fn judge(snapshot: &Snapshot) -> Cow<'_, Snapshot> {
    let mut judged = Cow::Borrowed(snapshot);
    for (index, target) in snapshot.targets.iter().enumerate() {
        for (number, allocator) in target.allocators.iter().enumerate() {
            if let Some(because) = reason(snapshot, target, allocator) {
                let target = &mut judged.to_mut().targets[index];
                target.allocators[number].undecide(because);
                // Nor is it known which memory is in its granules.
                if let Some(growth) = &mut target.growth {
                    for state in [GranuleState::Open, GranuleState::Pinned, GranuleState::Drained] {
                        growth.unplaced.entry(state).or_default();
                    }
                }
            }
        }
    }
    judged
}

/// Why nothing can be said of an allocator's granules. All instances of a profile share its probes.
fn reason(snapshot: &Snapshot, target: &TargetFacts, allocator: &AllocatorFacts) -> Option<String> {
    if let Some(known) = &allocator.not_measurable {
        return Some(known.clone());
    }
    let profile = &allocator.profile;
    let of_profile = |probe: &&ProbeFacts| probe.profile == profile.name;
    // Probes on files are listed at the first process, with the hits of all.
    let own: Vec<&ProbeFacts> = target.probes.iter().filter(of_profile).collect();
    let probes = if own.is_empty() {
        snapshot.targets.iter().flat_map(|target| &target.probes).filter(of_profile).collect()
    } else {
        own
    };
    let same = |other: &&AllocatorFacts| {
        other.profile.name == profile.name && other.level == allocator.level
    };
    let mut counts = Totals::default();
    target.allocators.iter().filter(same).for_each(|facts| counts.add(&facts.totals));
    let opens = allocator.level != Level::Close
        && profile.probes.iter().any(|probe| probe.role == Role::Open);
    let reads_live = !allocator.level.has_objects()
        && profile.kind == Kind::Drain
        && profile.probes.iter().any(|probe| probe.has(Key::Live));
    uncomputed(&probes, reads_live)
        .or_else(|| if reads_live { uncounted(&counts) } else { None })
        .or_else(|| rejected(&probes, &counts))
        .or_else(|| if opens { unmatched(&counts) } else { None })
}

/// Calls of all probes of one role.
#[derive(Default)]
struct Calls {
    judged: u64,
    rejected: u64,
    faults: u64,
    symbols: Vec<String>,
}

impl Calls {
    fn of(probes: &[&ProbeFacts], role: Role) -> Self {
        let mut calls = Self::default();
        for probe in probes.iter().filter(|probe| probe.role == role.name()) {
            calls.judged += if probe.at_return { probe.returns } else { probe.entries };
            calls.rejected += probe.rejected;
            calls.faults += probe.faults;
            let symbol =
                drainprof_process::printable(drainprof_process::elf::readable(&probe.symbol));
            if probe.fired() && !calls.symbols.contains(&symbol) {
                calls.symbols.push(symbol);
            }
        }
        calls
    }

    fn named(&self) -> String {
        self.symbols.join(", ")
    }
}

/// Expressions of a needed role fault nearly always: what they read is not where the profile says.
fn uncomputed(probes: &[&ProbeFacts], reads_live: bool) -> Option<String> {
    [Role::Open, Role::Close, Role::Alloc, Role::Free].into_iter().find_map(|role| {
        let calls = Calls::of(probes, role);
        nearly_all(calls.faults, calls.judged).then(|| {
            let (what, so) = if reads_live && role == Role::Close {
                ("the live count could not be read at", "attach with --level objects")
            } else {
                (
                    "memory could not be read as the profile says at",
                    "the profile is for another build",
                )
            };
            format!(
                "{what} {} of {} `{}` calls ({}); {so}",
                calls.faults,
                calls.judged,
                role.name(),
                calls.named()
            )
        })
    })
}

/// Nearly all opens are rejected, and granules are closed all the same.
fn rejected(probes: &[&ProbeFacts], counts: &Totals) -> Option<String> {
    let calls = Calls::of(probes, Role::Open);
    let failed = calls.rejected.saturating_add(calls.faults);
    let closes = counts.closed() + counts.unmatched_closes;
    (nearly_all(failed, calls.judged) && closes >= MIN_CALLS && closes > 2 * counts.opened).then(|| {
        format!(
            "{failed} of {} opens were rejected by the profile's `when` ({}), while {closes} granules were closed; \
             the profile is for another build",
            calls.judged,
            calls.named()
        )
    })
}

/// Live counts that say nothing: the program does not count.
fn uncounted(counts: &Totals) -> Option<String> {
    nearly_all(counts.unknown, counts.closed()).then(|| {
        format!(
            "{} of {} closes came without a live count; attach with --level objects",
            counts.unknown,
            counts.closed()
        )
    })
}

/// Closes name other granules than opens do. A program may close twice, and what was open before the attach
/// is closed once; neither leaves opens without a close.
fn unmatched(counts: &Totals) -> Option<String> {
    let Totals { opened, opened_before, reopened, unmatched_closes: unmatched, .. } = *counts;
    let closed = counts.closed();
    let twice = nearly_all(unmatched, closed + unmatched) && 2 * opened < closed;
    let elsewhere =
        nearly_all(opened_before, closed) && 2 * reopened > opened && opened >= MIN_CALLS;
    if twice {
        return Some(format!(
            "{unmatched} of {} closes are of granules whose open was not seen; the profile misses an open \
             function, or is for another build",
            closed + unmatched
        ));
    }
    elsewhere.then(|| {
        format!(
            "{opened_before} of {closed} closes are of other granules than those that were opened; the profile \
             is for another build"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Report, Verdict, samples, verdict};

    fn reported(change: impl FnOnce(&mut TargetFacts)) -> Report {
        let mut snapshot = samples::drain_snapshot();
        change(&mut snapshot.targets[0]);
        Report::build(&snapshot, &Options::default())
    }

    fn probe<'t>(target: &'t mut TargetFacts, role: &str) -> &'t mut ProbeFacts {
        target.probes.iter_mut().find(|probe| probe.role == role).unwrap()
    }

    fn reason(report: &Report) -> Option<&str> {
        report.targets[0].allocators[0].not_measurable.as_deref()
    }

    /// Every open rejected and 984 of 1000 closes unmatched: the 16 that were decided prove nothing.
    fn other_build(target: &mut TargetFacts) {
        let open = probe(target, "open");
        (open.at_return, open.entries, open.rejected) = (false, 1_000, 1_000);
        target.allocators[0].lifetimes.clear();
        target.allocators[0].totals = Totals {
            opened: 1,
            opened_before: 15,
            drainable: 11,
            pinned: 5,
            pinned_objects: 5,
            unmatched_closes: 984,
            allocated: 1_000,
            freed: 749,
            ..Totals::default()
        };
    }

    /// No DSR and no other verdict, not complete, exit code 5, and the reason as a finding of the profile.
    #[test]
    fn rejected_opens_take_verdicts_back() {
        let report = reported(other_build);
        let allocator = &report.targets[0].allocators[0];
        let because = reason(&report).unwrap();
        assert!(because.starts_with("1000 of 1000 opens were rejected"), "{because}");
        assert_eq!(
            (allocator.dsr, allocator.granules.unknown, allocator.pins.objects),
            (None, 16, 0)
        );
        assert_eq!(allocator.retention.verdict, None);
        assert_eq!(allocator.retention.granules, None);
        assert!(!report.complete);
        assert_eq!(verdict(&report, None), Verdict::Incomplete);
        let codes: Vec<_> =
            report.targets[0].findings.iter().map(|found| found.code.as_str()).collect();
        assert_eq!(codes, ["not_measurable"]);
        assert_eq!(report.findings, []);
    }

    /// Closes that match no open are enough, and so is memory that cannot be read.
    #[test]
    fn other_reasons() {
        let unmatched = reported(|target| {
            other_build(target);
            probe(target, "open").rejected = 0;
        });
        assert!(reason(&unmatched).unwrap().starts_with("984 of 1000 closes"));
        let elsewhere = reported(|target| {
            let totals = &mut target.allocators[0].totals;
            (totals.opened_before, totals.reopened) = (10_000, 9_984);
        });
        assert!(reason(&elsewhere).unwrap().contains("other granules than those that were opened"));
        for role in ["open", "close", "alloc", "free"] {
            let faults = reported(|target| probe(target, role).faults = 20_000);
            let because = reason(&faults).unwrap().to_owned();
            assert!(because.contains(&format!("20000 of 20000 `{role}` calls")), "{because}");
        }
        let planned = reported(|target| {
            target.allocators[0].not_measurable = Some("objects lie in caches".to_owned());
        });
        assert_eq!(reason(&planned), Some("objects lie in caches"));
    }

    /// What was touched in its granules is not known either.
    #[test]
    fn memory_is_not_known() {
        let mut snapshot = samples::growth_snapshot();
        other_build(&mut snapshot.targets[0]);
        let report = Report::build(&snapshot, &Options::default());
        let touched = &report.targets[0].growth.as_ref().unwrap().touched;
        assert_eq!(
            (touched.open_bytes, touched.pinned_bytes, touched.elsewhere_bytes),
            (None, None, None)
        );
    }

    /// What only looks like it: few calls, closes repeated on purpose, granules from before the attach, opens of
    /// other things that a `when` sorts out while no granule is closed.
    #[test]
    fn what_is_measurable() {
        let good: [fn(&mut TargetFacts); 5] = [
            |_| {},
            |target| {
                other_build(target);
                let open = probe(target, "open");
                (open.entries, open.rejected) = (15, 15);
                target.allocators[0].totals.unmatched_closes = 0;
            },
            |target| target.allocators[0].totals.unmatched_closes = 1_000_000,
            |target| {
                let totals = &mut target.allocators[0].totals;
                (totals.opened, totals.opened_before, totals.unknown) = (20, 10_000, 0);
            },
            |target| {
                let open = probe(target, "open");
                (open.entries, open.rejected) = (1_000_000, 999_980);
                target.allocators[0].totals =
                    Totals { opened: 20, drainable: 15, ..Totals::default() };
            },
        ];
        for (number, change) in good.into_iter().enumerate() {
            assert_eq!(reason(&reported(change)), None, "{number}");
        }
    }
}
