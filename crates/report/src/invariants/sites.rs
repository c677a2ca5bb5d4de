//! What must hold of call paths and their pins.

use drainprof_profile::Level;

use super::{Check, sum};
use crate::model::site::Site;

impl Check<'_> {
    pub(super) fn sites(&mut self) {
        let allocator = self.allocator;
        let (sites, total) = match (&allocator.sites, allocator.sites_total) {
            (Some(sites), Some(total)) if allocator.level == Level::Stacks => (sites, total),
            (None, None) if allocator.level != Level::Stacks => return,
            _ => {
                let level = allocator.level.name();
                self.broken.push(format!("sites stand at level stacks and only there: at {level}"));
                return;
            }
        };
        self.at_most(0, "listed sites ≤ all sites", sites.len() as u64, total);
        for pair in sites.windows(2) {
            if let [before, after] = pair {
                let what = "sites are listed by the granules that they pin";
                self.at_most(0, what, after.granules_pinned, before.granules_pinned);
            }
        }
        for site in sites {
            self.site(site);
        }
        // What was lost is not counted, or by one side alone.
        if !self.report.complete {
            return;
        }
        let slack = self.slack.saturating_add(self.stragglers());
        let pins = sum(sites.iter().map(|site| site.pins));
        self.at_most(slack, "pins of sites ≤ all pins", pins, allocator.pins.objects);
        if let Some(objects) = allocator.objects {
            let allocated = sum(sites.iter().map(|site| site.allocated));
            let what = "allocated by sites ≤ allocated";
            self.at_most(self.slack, what, allocated, objects.allocated);
        }
    }

    fn site(&mut self, site: &Site) {
        let pinned = self.allocator.granules.pinned;
        let what = "granules pinned by a site ≤ pinned closes";
        self.at_most(self.slack, what, site.granules_pinned, pinned);
        self.share(site, pinned);
        if site.class != site.classes.class() {
            self.broken.push(format!("the class is the largest: {:?} is not", site.class));
        }
        if !self.report.complete {
            return;
        }
        let what = "a granule that a site pins holds a pin of it";
        self.at_most(self.slack, what, site.granules_pinned, site.pins);
        self.at_most(self.slack, "live pins ≤ pins", site.pins_live, site.pins);
        self.at_most(self.slack, "pins ≤ objects of a site", site.pins, site.allocated);
        if let Some(live) = site.live {
            self.at_most(self.slack, "live pins ≤ live objects", site.pins_live, live);
            self.at_most(self.slack, "live objects of a site ≤ its objects", live, site.allocated);
        }
        if let Some(held) = site.granules_held {
            let alone = site.granules_held_alone.unwrap_or_default();
            self.at_most(self.slack, "granules held alone ≤ held", alone, held);
            self.at_most(self.slack, "granules held ≤ live objects", held, site.live.unwrap_or(0));
        }
        let classes = site.classes;
        let counted =
            sum([classes.near_miss, classes.moderate, classes.fundamental, classes.undecided]);
        self.equal(self.slack, "pins of a site = their sum over classes", site.pins, counted);
        let what = "granules retained by a site ≤ those that it pinned";
        let slack = self.slack.saturating_add(self.stragglers());
        self.at_most(slack, what, site.granules_retained, site.granules_pinned);
        let what = "granules retained by a site ≤ retained granules";
        let retained = self.allocator.retention.granules.unwrap_or(u64::MAX);
        self.at_most(slack, what, site.granules_retained, retained);
    }

    fn share(&mut self, site: &Site, pinned: u64) {
        let expected = (pinned > 0).then(|| site.granules_pinned as f64 / pinned as f64);
        let same = match (site.share, expected) {
            (None, None) => true,
            // A stored report was through decimal text.
            (Some(reported), Some(expected)) => (reported - expected).abs() < 1e-9,
            _ => false,
        };
        if !same {
            let reported = site.share;
            self.broken
                .push(format!("share = granules pinned / all: {reported:?} is not {expected:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Allocator, Options, PinClass, Report, Site, invariants, samples};

    fn report() -> Report {
        Report::build(&samples::stacks_snapshot(), &Options::default())
    }

    /// Each rule about sites is found broken by the smallest change that breaks it, and named.
    #[test]
    fn every_rule_can_fail() {
        type Change = fn(&mut Site);
        let cases: &[(&str, Change)] = &[
            ("granules pinned by a site ≤", |s| s.granules_pinned = 2_475),
            ("share =", |s| s.share = Some(0.5)),
            ("share =", |s| s.share = None),
            ("the class is", |s| s.class = Some(PinClass::NearMiss)),
            ("holds a pin", |s| s.pins = 1_999),
            ("pins of a site = their sum", |s| s.classes.undecided += 1),
            ("live pins ≤ pins", |s| s.pins_live = 2_001),
            ("live pins ≤ live", |s| s.live = Some(1_999)),
            ("live objects of a site", |s| s.live = Some(1 << 40)),
            ("pins ≤ objects", |s| s.allocated = 1_999),
            ("retained by a site", |s| s.granules_retained = 2_001),
            ("allocated by sites", |s| s.allocated = 1 << 40),
            ("pins of sites ≤", |s| s.pins = 2_001),
            ("are listed by", |s| s.granules_pinned = 1),
        ];
        for (rule, change) in cases {
            let mut report = report();
            change(&mut report.targets[0].allocators[0].sites.as_mut().unwrap()[0]);
            let broken = invariants(&report);
            assert!(broken.iter().any(|text| text.contains(rule)), "{rule}: {broken:?}");
        }
        let of_all: &[fn(&mut Allocator)] = &[
            |a| a.sites_total = Some(3),
            |a| a.sites_total = None,
            |a| (a.sites, a.sites_total) = (None, None),
            |a| a.level = drainprof_profile::Level::Objects,
        ];
        for change in of_all {
            let mut report = report();
            change(&mut report.targets[0].allocators[0]);
            assert!(!invariants(&report).is_empty());
        }
    }
}
