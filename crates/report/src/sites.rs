//! From facts on call paths to the sites of a report: joined, ranked, cut to what is listed.
//!
//! What is reported under several ids but is one call path and one place of opening is one site. Names are added
//! afterwards (`frame`). Called once per allocator and report, with some hundred thousand sites at most, so
//! only those that are listed are made.

use std::{
    cmp::{Ordering, Reverse},
    collections::HashMap,
};

use drainprof_common::hist::Hist;
use drainprof_profile::Level;

use crate::{
    facts::{AllocatorFacts, CallPath, SiteFacts, Snapshot, Survivors},
    kind::Kind,
    known::{Known, hex, seconds, spread},
    lifetimes,
    model::{
        allocator::Allocator,
        site::{Cohort, LiveAllocation, OpenedAt, PinClasses, Site, SiteEstimates, SiteFrame},
    },
    sampling, trend,
};

/// Names of threads that a site carries at most.
const THREADS: usize = 8;

/// Adds the sites to an allocator's part of a report: at most `top` of them. Other levels have none.
pub(super) fn add(
    allocator: &mut Allocator,
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
    ended: bool,
    top: usize,
) {
    if facts.level != Level::Stacks {
        return;
    }
    let mut joined: HashMap<(&CallPath, u64), Vec<&SiteFacts>> = HashMap::new();
    for site in &facts.sites {
        joined.entry((&site.path, site.opened_at)).or_default().push(site);
    }
    let total = joined.len() as u64;
    let known = Known::of(facts);
    let mut ranked: Vec<Joined<'_>> = joined
        .into_values()
        .map(|parts| Joined {
            estimated: sampling::of_site(&parts, facts, snapshot.sample, known.sizes),
            parts,
            allocator: facts,
        })
        .collect();
    let order = |a: &Joined<'_>, b: &Joined<'_>| a.rank().cmp(&b.rank()).then(a.by_path(b));
    if top < ranked.len() && top > 0 {
        ranked.select_nth_unstable_by(top - 1, order);
    }
    ranked.truncate(top);
    ranked.sort_by(order);
    let reported = ranked.iter().map(|site| site.reported(known, snapshot, ended));
    allocator.sites = Some(reported.collect());
    allocator.sites_total = Some(total);
}

/// Everything that is known of one call path and one place of opening.
struct Joined<'a> {
    /// At least one.
    parts: Vec<&'a SiteFacts>,
    allocator: &'a AllocatorFacts,
    /// Where pages are sampled.
    estimated: Option<SiteEstimates>,
}

impl<'a> Joined<'a> {
    fn sum(&self, count: impl Fn(&SiteFacts) -> u64) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(count(part)))
    }

    /// A count of granules: where several parts have a granule in common, their sum has it more than once,
    /// but never more granules than there are.
    fn granules(&self, count: impl Fn(&SiteFacts) -> u64, all: u64) -> u64 {
        let sum = self.sum(count);
        if self.parts.len() > 1 { sum.min(all) } else { sum }
    }

    fn pinned(&self) -> u64 {
        self.granules(|part| part.granules_pinned, self.allocator.totals.pinned)
    }

    fn retained_bytes(&self) -> u64 {
        self.granules(|part| part.retained_bytes, self.allocator.retained_bytes)
    }

    /// `None` where objects have no ids.
    fn live(&self) -> Option<u64> {
        self.parts.iter().try_fold(0u64, |sum, part| Some(sum.saturating_add(part.live?)))
    }

    /// What pins most comes first. Without pins, what holds most.
    fn rank(&self) -> Reverse<[u64; 7]> {
        let holds = self.allocator.profile.kind != Kind::Drain;
        let held = |count: u64| if holds { count } else { 0 };
        Reverse([
            self.pinned(),
            self.sum(|part| part.pins),
            self.retained_bytes(),
            // Of a sample of pages the large objects, which hold none, count with them.
            self.estimated.map_or_else(
                || self.sum(|part| part.granules_held),
                |estimated| estimated.live_bytes.unwrap_or(estimated.live),
            ),
            held(self.sum(|part| part.live_bytes)),
            held(self.live().unwrap_or_default()),
            self.sum(|part| part.allocated_bytes),
        ])
    }

    fn by_path(&self, other: &Self) -> Ordering {
        let key =
            |joined: &Joined<'a>| joined.parts.first().map(|&part| (&part.path, part.opened_at));
        key(self).cmp(&key(other))
    }

    fn reported(&self, known: Known, snapshot: &Snapshot, ended: bool) -> Site {
        let begin = snapshot.begin_ns();
        let Some(&first) = self.parts.first() else { return Site::default() };
        let sizes = |bytes: u64| known.sizes.then_some(bytes);
        let (pinned, all) = (self.pinned(), self.allocator.totals.pinned);
        let live = self.live();
        let classes = PinClasses {
            near_miss: self.sum(|part| part.lateness.near),
            moderate: self.sum(|part| part.lateness.moderate),
            fundamental: self.sum(|part| part.lateness.fundamental),
            undecided: self.sum(|part| part.lateness.undecided),
        };
        let holds = live.filter(|_| self.allocator.profile.kind == Kind::Slab);
        let held = |count: fn(&SiteFacts) -> u64| {
            holds.map(|_| self.granules(count, self.allocator.open_now))
        };
        let mut delays = Hist::new();
        self.parts.iter().for_each(|part| delays.merge(&part.delays));
        let mut lives = Hist::new();
        self.parts.iter().for_each(|part| lives.merge(&part.lives));
        let since = |ns: u64| seconds(ns.saturating_sub(begin));
        let seen = self.parts.iter().map(|part| part.first_ns).filter(|&ns| ns != 0).min();
        let (threads, more_threads) = self.threads();
        let live_over_time = match self.parts[..] {
            [only] => trend::live_of_site(only, self.allocator, snapshot, ended, known.sizes),
            _ => None,
        };
        let (verdict, verdict_reason) = match (&self.parts[..], &live_over_time) {
            // Sites share granules, so each is judged by its own live objects.
            _ if self.allocator.profile.kind == Kind::Slab => match &live_over_time {
                Some(live) => (live.verdict, live.verdict_reason.clone()),
                None => (None, None),
            },
            ([only], _) => trend::of_site(only, self.allocator, snapshot, ended).unzip(),
            // Time series of parts cannot be added up: they may have granules in common.
            _ => (None, None),
        };
        Site {
            id: None,
            granules_pinned: pinned,
            share: (all > 0).then(|| pinned as f64 / all as f64),
            pins: self.sum(|part| part.pins),
            pin_bytes: sizes(self.sum(|part| part.pin_bytes)),
            pins_live: self.sum(|part| part.pins_live),
            pin_bytes_live: sizes(self.sum(|part| part.pins_live_bytes)),
            granules_retained: self
                .granules(|part| part.granules_retained, self.allocator.retained_granules),
            retained_bytes: (known.bytes && self.allocator.left_retained == 0)
                .then(|| self.retained_bytes()),
            pin_delay_seconds: spread(&delays),
            pin_delay_total_seconds: seconds(delays.sum),
            class: classes.class(),
            classes,
            verdict,
            verdict_reason,
            allocated: self.sum(|part| part.allocated),
            allocated_bytes: sizes(self.sum(|part| part.allocated_bytes)),
            live,
            live_bytes: live.and_then(|_| sizes(self.sum(|part| part.live_bytes))),
            granules_held: held(|part| part.granules_held),
            granules_held_alone: held(|part| part.granules_held_alone),
            estimated: self.estimated,
            live_over_time,
            survivors: self.survivors(begin, known),
            life_seconds: (lives.count > 0).then(|| spread(&lives)),
            life_histogram: lifetimes::buckets(&lives),
            oldest: self.oldest(begin, known),
            selected: None,
            first_seen_seconds: since(seen.unwrap_or_default()),
            last_seen_seconds: since(self.parts.iter().map(|part| part.last_ns).max().unwrap_or(0)),
            threads,
            more_threads,
            opened_at: OpenedAt { place: hex(first.opened_at), ..OpenedAt::default() },
            path_end: first.path.end,
            frames: first
                .path
                .addresses
                .iter()
                .map(|&address| SiteFrame { address: hex(address), ..SiteFrame::default() })
                .collect(),
        }
    }

    /// What is live, by the time of allocation.
    fn survivors(&self, begin: u64, known: Known) -> Vec<Cohort> {
        let mut all = Survivors::default();
        self.parts.iter().for_each(|part| all.join(&part.survivors));
        let since = |ns: u64| seconds(ns.saturating_sub(begin));
        all.bins()
            .filter(|bin| bin.objects > 0)
            .map(|bin| Cohort {
                from_seconds: since(bin.at_ns),
                to_seconds: since(bin.at_ns.saturating_add(all.bin_ns())),
                objects: bin.objects,
                bytes: known.sizes.then_some(bin.bytes),
            })
            .collect()
    }

    fn oldest(&self, begin: u64, known: Known) -> Vec<LiveAllocation> {
        let mut all = SiteFacts::default();
        self.parts.iter().flat_map(|part| &part.oldest).for_each(|object| all.note(*object));
        all.oldest
            .iter()
            .map(|object| LiveAllocation {
                id: format!("{:#x}", object.id),
                bytes: known.sizes.then_some(object.bytes),
                allocated_seconds: seconds(object.born_ns.saturating_sub(begin)),
            })
            .collect()
    }

    fn threads(&self) -> (Vec<String>, bool) {
        let mut names: Vec<String> = Vec::new();
        let mut more = self.parts.iter().any(|part| part.more_threads);
        for name in self.parts.iter().flat_map(|part| &part.threads) {
            if names.contains(name) {
                continue;
            }
            if names.len() == THREADS {
                more = true;
                break;
            }
            names.push(name.clone());
        }
        (names, more)
    }
}

#[cfg(test)]
mod tests;
