//! What widths mean: from a report to stacks with one number each.
//!
//! Called by `folded` and `flamegraph`. All widths of one picture are of one quantity. Where it is not known
//! of an allocator, the allocator is left out and `Stacks::left_out` says so: a width that is a guess would
//! not be seen as one.

use std::collections::{BTreeMap, BTreeSet};

use super::stack::{Root, frames, stack};
use crate::{Allocator, GrowthPath, Kind, Report, Site, Target, units};

/// What the width of a frame is to mean, for allocators whose granules can be pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinWeight {
    /// Pinned closes at which an object of the path was live.
    #[default]
    Granules,
    /// Bytes of the pins.
    Bytes,
    /// Bytes of the granules that the path retains now.
    Retained,
    /// Growth: what call paths have added to resident memory.
    Faults,
    /// Growth: what they have added to the heap.
    Heap,
    /// Growth: what they have mapped that is still mapped.
    Mappings,
}

impl PinWeight {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Granules, Self::Bytes, Self::Retained, Self::Faults, Self::Heap, Self::Mappings];

    /// Whether a report can be drawn so, as far as was recorded; the picture may have no width all the same.
    #[must_use]
    pub fn is_in(self, report: &Report) -> bool {
        if Quantity::of_growth(self).is_some() {
            return report.targets.iter().any(|target| target.growth.is_some());
        }
        let known: Vec<Part<'_>> = parts(report).collect();
        let quantity = quantity(&known, self);
        known.iter().any(|part| is_of(part, quantity) && quantity.is_known(part.sites))
    }
}

/// The one quantity of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    PinnedGranules,
    PinBytes,
    RetainedBytes,
    LiveBytes,
    AllocatedBytes,
    AllocatedObjects,
    SelectedBytes,
    SelectedObjects,
    RssBytes,
    HeapBytes,
    MappedBytes,
}

impl Quantity {
    /// Its name with the unit, for titles.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::PinnedGranules => "pinned granules",
            Self::PinBytes => "bytes of pins",
            Self::RetainedBytes => "bytes of granules retained now",
            Self::LiveBytes => "live bytes",
            Self::AllocatedBytes => "allocated bytes",
            Self::AllocatedObjects => "allocated objects",
            Self::SelectedBytes => "bytes of the objects asked for",
            Self::SelectedObjects => "objects asked for",
            Self::RssBytes => "bytes of resident memory added",
            Self::HeapBytes => "bytes of heap added",
            Self::MappedBytes => "bytes mapped and not unmapped",
        }
    }

    /// What one of it is called.
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::PinnedGranules => "granules",
            Self::AllocatedObjects | Self::SelectedObjects => "objects",
            _ => "bytes",
        }
    }

    /// Whether it is of growth, and not of allocators.
    pub(super) const fn is_of_growth(self) -> bool {
        matches!(self, Self::RssBytes | Self::HeapBytes | Self::MappedBytes)
    }

    /// Whether it is of objects that a filter by time asked for, of any kind of allocator.
    pub(super) const fn is_of_times(self) -> bool {
        matches!(self, Self::SelectedBytes | Self::SelectedObjects)
    }

    /// Whether it says who pins; else it says who holds or allocates.
    pub(super) const fn is_of_pins(self) -> bool {
        matches!(self, Self::PinnedGranules | Self::PinBytes | Self::RetainedBytes)
    }

    /// `None`: not known.
    fn of(self, site: &Site) -> Option<u64> {
        match self {
            Self::SelectedBytes => site.selected?.bytes,
            Self::SelectedObjects => Some(site.selected?.objects),
            Self::PinnedGranules => Some(site.granules_pinned),
            Self::PinBytes => site.pin_bytes,
            Self::RetainedBytes => site.retained_bytes,
            Self::LiveBytes => match &site.estimated {
                Some(estimated) => estimated.live_bytes,
                None => site.live_bytes,
            },
            Self::AllocatedBytes => site.allocated_bytes,
            Self::AllocatedObjects => Some(site.allocated),
            Self::RssBytes | Self::HeapBytes | Self::MappedBytes => None,
        }
    }

    /// What of it is there still; `None` where that is all of it, or not known.
    fn kept(self, site: &Site) -> Option<u64> {
        match self {
            Self::PinnedGranules => Some(site.granules_retained),
            Self::PinBytes => site.pin_bytes_live,
            Self::AllocatedBytes => site.live_bytes,
            Self::AllocatedObjects => site.live,
            _ => None,
        }
    }

    /// What a colour says: of what was counted, what is gone and what is there still; or the only thing that a width is.
    pub(super) const fn colours(self) -> [&'static str; 2] {
        match self {
            Self::PinnedGranules => ["drained since", "retained now"],
            Self::PinBytes | Self::AllocatedBytes | Self::AllocatedObjects => {
                ["freed since", "live now"]
            }
            Self::RetainedBytes => ["", "retained now"],
            Self::LiveBytes => ["", "live now"],
            Self::SelectedBytes | Self::SelectedObjects => ["", "asked for"],
            Self::RssBytes | Self::HeapBytes => ["", "added"],
            Self::MappedBytes => ["", "mapped now"],
        }
    }

    /// A number of it, with its unit.
    pub(super) fn shown(self, value: u64) -> String {
        match self.unit() {
            "bytes" => units::bytes(value),
            _ => value.to_string(),
        }
    }

    /// What a picture of growth weighs; `None` for the others.
    const fn of_growth(weight: PinWeight) -> Option<Self> {
        match weight {
            PinWeight::Granules | PinWeight::Bytes | PinWeight::Retained => None,
            PinWeight::Faults => Some(Self::RssBytes),
            PinWeight::Heap => Some(Self::HeapBytes),
            PinWeight::Mappings => Some(Self::MappedBytes),
        }
    }

    /// What a call path has taken away on balance.
    fn taken(self, path: &GrowthPath) -> u64 {
        match self {
            Self::RssBytes => path.rss.resident().min(0).unsigned_abs(),
            Self::HeapBytes => path.heap_bytes.min(0).unsigned_abs(),
            _ => 0,
        }
    }

    /// What a call path has added; what it has taken is no width.
    fn added(self, path: &GrowthPath) -> u64 {
        match self {
            Self::RssBytes => {
                let all = path.rss.resident();
                path.selected.map_or(all, |selected| selected.bytes).max(0).unsigned_abs()
            }
            Self::HeapBytes => path.heap_bytes.max(0).unsigned_abs(),
            Self::MappedBytes => path.outstanding_bytes,
            _ => 0,
        }
    }

    /// Whether it is known of a site of the allocator; an allocator without sites hides nothing.
    fn is_known(self, sites: &[Site]) -> bool {
        sites.is_empty() || sites.iter().any(|site| self.of(site).is_some())
    }
}

/// What a picture is made of.
#[derive(Debug)]
pub(super) struct Stacks {
    /// What the numbers are.
    pub(super) quantity: Quantity,
    /// Frames, the outermost first, joined by `;`, and the number; none of them 0.
    pub(super) folded: BTreeMap<String, u64>,
    /// What of each is there still, where that is known and is not all.
    pub(super) kept: BTreeMap<String, u64>,
    /// The processes that are in it, `comm (pid)`.
    pub(super) targets: Vec<String>,
    /// The profiles that are in it.
    pub(super) profiles: BTreeSet<String>,
    /// Sentences on what is not in it, and why.
    pub(super) left_out: Vec<String>,
}

/// The stacks of a report.
pub(super) fn weigh(report: &Report, weight: PinWeight) -> Stacks {
    if let Some(quantity) = Quantity::of_growth(weight) {
        return grown(report, quantity);
    }
    let known: Vec<Part<'_>> = parts(report).collect();
    let quantity = quantity(&known, weight);
    let mut left_out = Vec::new();
    let matches = |part: &&Part<'_>| is_of(part, quantity);
    let drawn = known.iter().filter(matches).filter(|part| quantity.is_known(part.sites));
    let drawn: Vec<&Part<'_>> = drawn.collect();
    let others = known.iter().filter(|part| !matches(part)).count();
    if others > 0 {
        left_out.push(format!(
            "{others} allocators of kinds without pins are left out: what they hold is another quantity"
        ));
    }
    let unknown = known.len() - others - drawn.len();
    if unknown > 0 {
        left_out.push(format!(
            "{unknown} allocators are left out: their profile knows no {}",
            quantity.words()
        ));
    }
    let unlisted: u64 = drawn
        .iter()
        .map(|part| part.allocator.sites_total.unwrap_or(0).saturating_sub(part.sites.len() as u64))
        .fold(0, u64::saturating_add);
    if unlisted > 0 {
        left_out.push(format!("{unlisted} call paths are not in the report (--top)"));
    }
    let ids: BTreeSet<u32> = drawn.iter().map(|part| part.target.target).collect();
    let profiles: BTreeSet<String> =
        drawn.iter().map(|part| part.allocator.profile.clone()).collect();
    let mut targets = Vec::new();
    let mut folded: BTreeMap<String, u64> = BTreeMap::new();
    let mut kept: BTreeMap<String, u64> = BTreeMap::new();
    for part in drawn {
        let process = format!("{} ({})", part.target.comm, part.target.pid);
        let root = Root {
            process: (ids.len() > 1).then_some(&process),
            profile: (profiles.len() > 1).then_some(&part.allocator.profile),
        };
        for site in part.sites {
            let value = quantity.of(site).unwrap_or_default();
            if value > 0 {
                let stack = stack(root, site);
                if let Some(own) = quantity.kept(site) {
                    let sum = kept.entry(stack.clone()).or_default();
                    *sum = sum.saturating_add(own.min(value));
                }
                let sum = folded.entry(stack).or_default();
                *sum = sum.saturating_add(value);
            }
        }
        if !targets.contains(&process) {
            targets.push(process);
        }
    }
    Stacks { quantity, folded, kept, targets, profiles, left_out }
}

/// The stacks of growth.
fn grown(report: &Report, quantity: Quantity) -> Stacks {
    let mut stacks = Stacks {
        quantity,
        folded: BTreeMap::new(),
        kept: BTreeMap::new(),
        targets: Vec::new(),
        profiles: BTreeSet::new(),
        left_out: Vec::new(),
    };
    // What has ended has given its memory back: it is no growth of the machine.
    let is_of_now = |own: &&Target| !report.system || own.ended.is_none();
    let grown = || {
        let targets = report.targets.iter().filter(is_of_now);
        targets.filter_map(|own| Some((own, own.growth.as_ref()?)))
    };
    let many = grown().count() > 1;
    let (mut taken, mut unlisted) = (0u64, 0u64);
    for (target, growth) in grown() {
        let process = if report.system {
            command(target)
        } else {
            format!("{} ({})", target.comm, target.pid)
        };
        let root = Root { process: many.then_some(&process), profile: None };
        for path in &growth.paths {
            let value = quantity.added(path);
            if value > 0 {
                let sum =
                    stacks.folded.entry(frames(root, path.path_end, &path.frames)).or_default();
                *sum = sum.saturating_add(value);
            }
            taken = taken.saturating_add(quantity.taken(path));
        }
        unlisted =
            unlisted.saturating_add(growth.paths_total.saturating_sub(growth.paths.len() as u64));
        if !stacks.targets.contains(&process) {
            stacks.targets.push(process);
        }
    }
    let selected = || {
        let paths = grown().flat_map(|(_, growth)| &growth.paths);
        paths.filter_map(|path| path.selected).filter(|_| quantity == Quantity::RssBytes)
    };
    if selected().next().is_some() {
        let from = selected().map(|own| own.from_seconds).fold(f64::INFINITY, f64::min);
        let to = selected().map(|own| own.to_seconds).fold(0.0, f64::max);
        let (from, to) = (units::duration(from), units::duration(to));
        stacks.left_out.push(format!("only what was added from {from} to {to}"));
    }
    if taken > 0 {
        stacks.left_out.push(format!("other paths have taken away {}", units::bytes(taken)));
    }
    if unlisted > 0 {
        stacks.left_out.push(format!("{unlisted} call paths are not in the report (--top)"));
    }
    stacks
}

/// What processes of a machine are distinguished by: command and container.
pub(super) fn command(target: &Target) -> String {
    match &target.container {
        Some(id) => format!("{} [{}]", target.comm, id.get(..CONTAINER).unwrap_or(id)),
        None => target.comm.clone(),
    }
}

/// Digits of a container's id, as its tools show it.
const CONTAINER: usize = 12;

/// An allocator with call paths.
#[derive(Debug)]
struct Part<'a> {
    target: &'a Target,
    allocator: &'a Allocator,
    sites: &'a [Site],
}

fn parts(report: &Report) -> impl Iterator<Item = Part<'_>> {
    report.targets.iter().flat_map(|target| {
        target.allocators.iter().filter_map(move |allocator| {
            Some(Part { target, allocator, sites: allocator.sites.as_deref()? })
        })
    })
}

/// Whether the quantity is one of the allocator's kind.
fn is_of(part: &Part<'_>, quantity: Quantity) -> bool {
    quantity.is_of_times() || (part.allocator.kind == Kind::Drain) == quantity.is_of_pins()
}

/// What a filter by time asked for; else pins where any can be; else what is held; else what was allocated.
fn quantity(parts: &[Part<'_>], weight: PinWeight) -> Quantity {
    let selected = || parts.iter().flat_map(|part| part.sites).filter_map(|site| site.selected);
    match (selected().next(), selected().all(|selected| selected.bytes.is_some())) {
        (Some(_), true) => return Quantity::SelectedBytes,
        (Some(_), false) => return Quantity::SelectedObjects,
        (None, _) => {}
    }
    if parts.is_empty() || parts.iter().any(|part| part.allocator.kind == Kind::Drain) {
        return match weight {
            PinWeight::Granules | PinWeight::Faults | PinWeight::Heap | PinWeight::Mappings => {
                Quantity::PinnedGranules
            }
            PinWeight::Bytes => Quantity::PinBytes,
            PinWeight::Retained => Quantity::RetainedBytes,
        };
    }
    let sites = || parts.iter().flat_map(|part| part.sites);
    [Quantity::LiveBytes, Quantity::AllocatedBytes]
        .into_iter()
        .find(|quantity| sites().any(|site| quantity.of(site).is_some()))
        .unwrap_or(Quantity::AllocatedObjects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, samples};

    fn report(snapshot: &crate::facts::Snapshot) -> Report {
        Report::build(snapshot, &Options::default())
    }

    fn total(stacks: &Stacks) -> u64 {
        stacks.folded.values().sum()
    }

    /// Each weight is the sum of that quantity over the sites.
    #[test]
    fn weights() {
        let report = report(&samples::stacks_snapshot());
        let cases = [
            (PinWeight::Granules, 2_474, "pinned granules"),
            (PinWeight::Bytes, 2_474 * 256, "bytes of pins"),
            (PinWeight::Retained, 2_000 * 4096, "bytes of granules retained now"),
        ];
        for (weight, sum, words) in cases {
            let stacks = weigh(&report, weight);
            assert_eq!((total(&stacks), stacks.quantity.words()), (sum, words));
            assert!(stacks.left_out.is_empty(), "{:?}", stacks.left_out);
        }
    }

    /// Kinds without pins are reported by what is live, else by what they allocate; not beside pins.
    #[test]
    fn kinds_without_pins() {
        let mut snapshot = samples::holders_snapshot();
        let stacks = weigh(&report(&snapshot), PinWeight::Granules);
        assert_eq!((stacks.quantity, total(&stacks)), (Quantity::LiveBytes, 20_000));
        for site in &mut snapshot.targets[0].allocators[0].sites {
            site.live = None;
        }
        let stacks = weigh(&report(&snapshot), PinWeight::Retained);
        assert_eq!((stacks.quantity, total(&stacks)), (Quantity::AllocatedBytes, 320_000));
        let drain = samples::stacks_snapshot().targets[0].allocators[0].clone();
        snapshot.targets[0].allocators.push(drain);
        let stacks = weigh(&report(&snapshot), PinWeight::Granules);
        assert_eq!((stacks.quantity, total(&stacks)), (Quantity::PinnedGranules, 2_474));
        assert!(stacks.left_out[0].starts_with("1 allocators of kinds without pins"));
    }

    /// In a sample of pages the widths are estimates.
    #[test]
    fn sampled_pages() {
        let stacks = weigh(&report(&samples::sampled_pages_snapshot()), PinWeight::Granules);
        assert_eq!((stacks.quantity, total(&stacks)), (Quantity::LiveBytes, 8 * 15_000));
    }

    /// A quantity that is not known is no width; what `--top` cut off is reported.
    #[test]
    fn unknown_is_left_out() {
        let mut report = report(&samples::stacks_snapshot());
        let allocator = &mut report.targets[0].allocators[0];
        allocator.sites_total = Some(9);
        let stacks = weigh(&report, PinWeight::Granules);
        assert_eq!(stacks.left_out, ["5 call paths are not in the report (--top)"]);
        let allocator = &mut report.targets[0].allocators[0];
        allocator.sites.iter_mut().flatten().for_each(|site| site.pin_bytes = None);
        let stacks = weigh(&report, PinWeight::Bytes);
        assert!(stacks.folded.is_empty());
        assert_eq!(
            stacks.left_out,
            ["1 allocators are left out: their profile knows no bytes of pins"]
        );
    }

    /// A report knows what it can be drawn by.
    #[test]
    fn weights_of_reports() {
        let of = |snapshot: &crate::facts::Snapshot| -> Vec<PinWeight> {
            let report = report(snapshot);
            PinWeight::ALL.into_iter().filter(|weight| weight.is_in(&report)).collect()
        };
        let (pins, growth) = PinWeight::ALL.split_at(3);
        assert_eq!(of(&samples::stacks_snapshot()), pins);
        let mut grown = samples::growth_snapshot();
        grown.targets[0].allocators.clear();
        assert_eq!(of(&grown), growth);
        assert_eq!(of(&samples::drain_snapshot()), []);
        assert_eq!(of(&samples::holders_snapshot()), pins, "what is held, whichever is named");
    }

    /// Several processes and profiles are distinguished by frames at the root; one is not.
    #[test]
    fn roots() {
        let mut snapshot = samples::stacks_snapshot();
        let alone = weigh(&report(&snapshot), PinWeight::Granules);
        assert!(alone.folded.keys().all(|stack| !stack.contains("svc (4242)")));
        let mut other = snapshot.targets[0].clone();
        (other.target, other.pid) = (1, 4243);
        snapshot.targets.push(other);
        let both = weigh(&report(&snapshot), PinWeight::Granules);
        assert_eq!(total(&both), 2 * total(&alone));
        assert!(both.folded.keys().any(|stack| stack.starts_with("svc (4243);_start;")));
        assert_eq!(both.targets, ["svc (4242)", "svc (4243)"]);
    }
}
