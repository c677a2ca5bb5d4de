//! Conservation: what must hold in every report, whatever was observed.
//!
//! Run at each build; what does not hold becomes the finding `invariant`. A violation is a bug (of the
//! kernel side, of the ledger or of a profile's probes), never something that the target did.

mod sites;

use crate::{
    health::Health,
    kind::Kind,
    model::{Report, allocator::Allocator, series::Growth},
};

/// All rules, exactly: for reports whose counters no longer moved while they were read.
#[must_use]
pub fn invariants(report: &Report) -> Vec<String> {
    invariants_within(report, 0)
}

/// All rules, where up to `slack` events may have happened while the counters were read.
///
/// Rules that follow from how the report is built (sums, the DSR) are exact all the same.
#[must_use]
pub fn invariants_within(report: &Report, slack: u64) -> Vec<String> {
    let mut broken = Vec::new();
    let measurable = report.not_measurable().next().is_none();
    if report.complete != (measurable && Health::from_names(&report.losses).complete()) {
        broken.push(format!("complete is {}, but the losses say otherwise", report.complete));
    }
    for target in &report.targets {
        for allocator in &target.allocators {
            let mut check = Check { slack, report, allocator, broken: Vec::new() };
            check.granules();
            check.dsr();
            check.objects();
            check.retention();
            check.lists();
            check.curve();
            check.sites();
            let instance = allocator.instance.as_deref().unwrap_or("-");
            broken.extend(check.broken.into_iter().map(|text| {
                format!("{}[{}] {} {instance}: {text}", target.comm, target.pid, allocator.profile)
            }));
        }
    }
    broken
}

/// A stored report may hold any number, so sums must not overflow.
fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

struct Check<'a> {
    slack: u64,
    report: &'a Report,
    allocator: &'a Allocator,
    broken: Vec<String>,
}

impl Check<'_> {
    fn equal(&mut self, slack: u64, what: &str, left: u64, right: u64) {
        if left.abs_diff(right) > slack {
            self.broken.push(format!("{what}: {left} is not {right}"));
        }
    }

    fn at_most(&mut self, slack: u64, what: &str, small: u64, large: u64) {
        if small > large.saturating_add(slack) {
            self.broken.push(format!("{what}: {small} is more than {large}"));
        }
    }

    fn granules(&mut self) {
        let granules = self.allocator.granules;
        let decided = sum([granules.drainable, granules.pinned, granules.unknown]);
        if self.allocator.kind == Kind::Drain {
            let what = "closed = drainable + pinned + unknown";
            self.equal(0, what, granules.closed, decided);
        } else {
            let what = "a kind without verdicts has no drainable or pinned close";
            self.equal(0, what, sum([granules.drainable, granules.pinned]), 0);
            self.at_most(0, "unknown ≤ closed", granules.unknown, granules.closed);
        }
        self.at_most(self.slack, "open_now ≤ open_peak", granules.open_now, granules.open_peak);
        // A granule that was lost was opened but is neither open nor closed for us.
        if self.report.complete {
            self.equal(
                self.slack,
                "opened + opened_before = closed + migrated + ended_with_parent + open_now + reopened + destroyed + \
                 left_open",
                sum([granules.opened, granules.opened_before]),
                sum([
                    granules.closed,
                    granules.migrated,
                    granules.ended_with_parent,
                    granules.open_now,
                    granules.reopened,
                    granules.destroyed,
                    granules.left_open,
                ]),
            );
        }
    }

    fn dsr(&mut self) {
        let granules = self.allocator.granules;
        let expected = granules.dsr(self.allocator.kind);
        let same = match (self.allocator.dsr, expected) {
            (None, None) => true,
            // A stored report was through decimal text.
            (Some(reported), Some(expected)) => (reported - expected).abs() < 1e-12,
            _ => false,
        };
        if !same {
            let reported = self.allocator.dsr;
            self.broken.push(format!(
                "dsr = drainable / (drainable + pinned): {reported:?} is not {expected:?}"
            ));
        }
    }

    fn objects(&mut self) {
        let Some(objects) = self.allocator.objects else { return };
        self.at_most(self.slack, "freed ≤ allocated", objects.freed, objects.allocated);
        let gone = sum([objects.freed, objects.left]);
        self.at_most(self.slack, "freed + left ≤ allocated", gone, objects.allocated);
        let what = "migrated ≤ allocated, and none without a granule that migrated";
        let most = if self.allocator.granules.migrated == 0 { 0 } else { objects.allocated };
        self.at_most(self.slack, what, objects.migrated, most);
        let live = objects.allocated.saturating_sub(gone);
        self.equal(0, "live = allocated − freed − left", objects.live, live);
        if let (Some(live), Some(all)) = (objects.live_bytes, objects.allocated_bytes) {
            self.at_most(0, "live_bytes ≤ allocated_bytes", live, all);
        }
    }

    fn retention(&mut self) {
        let allocator = self.allocator;
        let pinned = allocator.granules.pinned;
        self.at_most(self.slack, "a pinned close has a pin", pinned, allocator.pins.objects);
        let retention = &allocator.retention;
        let (Some(granules), Some(drained)) = (retention.granules, retention.late_drained) else {
            return;
        };
        let granules = sum([granules, retention.left_granules.unwrap_or_default()]);
        let again = self.stragglers();
        if !self.report.complete {
            return;
        }
        let what = "retained + late_drained ≤ pinned";
        self.at_most(self.slack.saturating_add(again), what, sum([granules, drained]), pinned);
        if !allocator.destroyed {
            let what = "pinned ≤ retained + late_drained";
            self.at_most(self.slack, what, pinned, sum([granules, drained]));
        }
    }

    /// The curve ends with what is held back now. The windows of a duty cycle have curves of their own.
    fn curve(&mut self) {
        let allocator = self.allocator;
        let retention = &allocator.retention;
        let now = match allocator.kind {
            Kind::Drain => retention.granules.unwrap_or_default(),
            Kind::Bulk | Kind::Slab => allocator.granules.open_now,
        };
        let last = retention.series.as_ref().and_then(|series| series.last());
        if let (Some(last), None) = (last, self.report.window.duty) {
            self.equal(self.slack, "the series ends with what is held back now", last.1, now);
        }
        if let (Some([low, high]), Some(slope)) =
            (retention.slope_interval, retention.slope_granules_per_second)
            && !(low..=high).contains(&slope)
        {
            self.broken.push(format!("slope {slope} is not in its interval {low} to {high}"));
        }
        if retention.forecast_bytes_per_day.is_some()
            && !matches!(retention.verdict, Some(Growth::LinearLeak | Growth::Mixed))
        {
            self.broken.push(format!("a forecast without growth: {:?}", retention.verdict));
        }
    }

    /// Allocs in closed granules: such a straggler pins a drained granule once more, without a close.
    fn stragglers(&self) -> u64 {
        self.report.losses.get("allocs_after_close").copied().flatten().unwrap_or_default()
    }

    fn lists(&mut self) {
        let allocator = self.allocator;
        let lifetimes = &allocator.lifetimes;
        let granules = allocator.granules;
        let ends = sum([
            granules.closed,
            granules.migrated,
            granules.ended_with_parent,
            granules.resets,
            granules.reopened,
            granules.destroyed,
        ]);
        self.at_most(self.slack, "lifetimes ≤ ends of granules", lifetimes.count, ends);
        let per_place = sum(lifetimes.places.iter().map(|place| place.closed));
        self.equal(0, "lifetimes = their sum over places", lifetimes.count, per_place);
        let overdue = sum(lifetimes.places.iter().map(|place| place.overdue));
        self.equal(0, "overdue = its sum over places", allocator.overdue.granules, overdue);
        if self.report.complete {
            let listed = allocator.open_granules.len() as u64;
            self.at_most(self.slack, "listed open granules ≤ open_now", listed, granules.open_now);
        }
        if let Some(retained) = allocator.retention.granules {
            let listed = allocator.pinned_granules.len() as u64;
            let slack = self.slack.saturating_add(self.stragglers());
            self.at_most(slack, "listed pinned granules ≤ retained", listed, retained);
        }
        if let Some(census) = &allocator.census {
            let classes = census.occupancy.iter().map(|class| class.granules);
            let seen = sum(classes.chain([census.unknown]));
            self.equal(0, "census = its classes + unknown", census.granules_open, seen);
            self.at_most(0, "empty ≤ open", census.drainable_now, census.granules_open);
            if let Some(fill) = &census.fill {
                let seen = sum(fill.iter().map(|class| class.granules).chain([census.unknown]));
                self.equal(
                    0,
                    "census = its classes by bytes + unknown",
                    census.granules_open,
                    seen,
                );
                let bytes = sum(fill.iter().map(|class| class.live_bytes));
                let what = "live bytes = their sum over classes";
                self.equal(0, what, census.live_bytes.unwrap_or_default(), bytes);
            }
            let free = census.compactable_granules.unwrap_or_default();
            self.at_most(0, "compactable ≤ open", free, census.granules_open);
        }
    }
}

#[cfg(test)]
mod tests {
    use drainprof_profile::Level;
    use proptest::prelude::*;

    use super::{
        super::{Options, Report, samples},
        *,
    };

    fn report() -> Report {
        Report::build(&samples::drain_snapshot(), &Options::default())
    }

    /// The synthetic reports of all kinds and levels keep every rule.
    #[test]
    fn samples_keep_the_rules() {
        for (name, snapshot) in samples::all() {
            let report = Report::build(&snapshot, &Options::default());
            assert_eq!(invariants(&report), Vec::<String>::new(), "{name}");
        }
    }

    /// Each rule is found broken by the smallest change that breaks it, and named.
    #[test]
    fn every_rule_can_fail() {
        type Change = fn(&mut Allocator);
        let cases: &[(&str, Change)] = &[
            ("closed = drainable", |a| a.granules.unknown += 1),
            ("open_now ≤ open_peak", |a| a.granules.open_now = 17),
            ("opened + opened_before", |a| a.granules.opened += 1),
            ("dsr =", |a| a.dsr = Some(0.75)),
            ("dsr =", |a| a.dsr = None),
            ("freed ≤ allocated", |a| a.objects.as_mut().unwrap().freed = 1 << 40),
            ("live = allocated", |a| a.objects.as_mut().unwrap().live += 1),
            ("freed + left ≤ allocated", |a| a.objects.as_mut().unwrap().left = 1 << 40),
            ("live_bytes ≤", |a| a.objects.as_mut().unwrap().live_bytes = Some(1 << 40)),
            ("a pinned close has a pin", |a| a.pins.objects = 1),
            ("retained + late_drained ≤ pinned", |a| a.retention.granules = Some(2475)),
            ("retained + late_drained ≤ pinned", |a| a.retention.left_granules = Some(1)),
            ("opened + opened_before", |a| a.granules.left_open = 1),
            ("opened + opened_before", |a| a.granules.migrated = 1),
            ("opened + opened_before", |a| a.granules.ended_with_parent = 1),
            ("migrated ≤ allocated", |a| a.objects.as_mut().unwrap().migrated = 1),
            ("pinned ≤ retained + late_drained", |a| a.retention.granules = Some(2473)),
            ("the series ends", |a| a.retention.series.as_mut().unwrap().last_mut().unwrap().1 = 3),
            ("not in its interval", |a| a.retention.slope_interval = Some([0.0, 1.0])),
            ("a forecast without", |a| a.retention.verdict = Some(Growth::Bounded)),
            ("lifetimes = their sum", |a| a.lifetimes.count -= 1),
            ("lifetimes ≤ ends", |a| a.lifetimes.count += 1 << 40),
            ("overdue =", |a| a.overdue.granules += 1),
            ("a kind without verdicts", |a| a.kind = Kind::Bulk),
        ];
        for (rule, change) in cases {
            let mut report = report();
            change(&mut report.targets[0].allocators[0]);
            let broken = invariants(&report);
            assert!(broken.iter().any(|text| text.contains(rule)), "{rule}: {broken:?}");
        }
        let mut report = report();
        report.complete = false;
        assert!(invariants(&report)[0].contains("complete"));
    }

    /// Counters that moved while they were read are within the slack, and only within it.
    #[test]
    fn slack_is_a_bound() {
        let mut report = report();
        report.targets[0].allocators[0].granules.opened += 3;
        assert_eq!(invariants_within(&report, 3), Vec::<String>::new());
        assert_eq!(invariants_within(&report, 2).len(), 1);
    }

    /// A broken rule is reported in the report itself.
    #[test]
    fn violation_is_a_finding() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.targets[0].allocators[0].totals.freed = 1 << 40;
        let report = Report::build(&snapshot, &Options::default());
        let finding = report.findings.iter().find(|finding| finding.code == "invariant").unwrap();
        assert!(finding.message.contains("freed ≤ allocated"), "{}", finding.message);
        assert_eq!(report.targets[0].allocators[0].objects.unwrap().live, 0);
    }

    proptest! {
        /// Whatever a program does with its granules and objects, totals counted event by event keep
        /// the rules, for every kind and level.
        #[test]
        fn any_history_keeps_the_rules(
            kind in prop_oneof![Just(Kind::Drain), Just(Kind::Bulk), Just(Kind::Slab)],
            level in prop_oneof![Just(Level::Close), Just(Level::Boundary), Just(Level::Objects)],
            steps in prop::collection::vec((0u8..10, 0u64..6, 0u64..20), 0..400),
        ) {
            let facts = samples::history(kind, level, &steps);
            let report = Report::build(&samples::snapshot(vec![facts]), &Options::default());
            prop_assert_eq!(invariants(&report), Vec::<String>::new());
        }
    }
}
