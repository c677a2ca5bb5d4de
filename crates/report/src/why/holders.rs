//! What holds memory, and who made that: of heaps, and of granules that probes have counted.

use std::cmp::Reverse;

use drainprof_census::{Census, ContextKind, Heap, HeapSummary, Summary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::measured::Measured;
use crate::{
    export::escape::shown,
    finding::who_pins,
    kind::Kind,
    memory::MemoryVerdict,
    model::{Report, Target, allocator::Allocator, growth::GrowthPath, series::Growth},
    units,
};

/// Rows that are kept of each list.
const MAX_ROWS: usize = 5;
/// Characters of a name.
const NAME: usize = 80;
/// Libraries whose functions allocate for others.
const RUNTIME: [&str; 5] = ["libc.so", "libc-", "ld-linux", "libstdc++", "libjemalloc"];
/// A cause with a smaller share is none.
const MIN_SHARE: f64 = 0.1;

/// In which way memory is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HolderKind {
    /// A heap that stays resident because of live objects, which are smaller than what they keep.
    Sparse,
    /// A heap with free memory that it could give back.
    Free,
    /// Granules that probes have counted: pinned, overdue, or more and more.
    Granules,
}

/// Something that holds memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Holder {
    /// The allocator: a heap's, or a profile's name.
    pub allocator: String,
    /// In which way.
    pub kind: HolderKind,
    /// Bytes that it holds.
    pub held_bytes: u64,
    /// Of these, bytes in which nothing lives.
    pub excess_bytes: u64,
    /// Whether it is sure enough to be the answer. False where so much of a heap is unknown that what it could give back, and
    /// what live objects keep, cannot be distinguished.
    #[serde(default = "yes")]
    pub certain: bool,
    /// Whether it grows without an end in sight.
    pub grows: bool,
    /// Bytes of granules that were pinned when they were closed, per second; where the profile knows no sizes of granules,
    /// of what was allocated in as many on average; null where that is not known either.
    pub pinned_bytes_per_second: Option<f64>,
    /// The same in a sentence.
    pub text: String,
}

/// What a document without that field means.
const fn yes() -> bool {
    true
}

pub(super) fn of(measured: &Measured<'_>) -> Vec<Holder> {
    let mut holders: Vec<Holder> = heaps(measured.censuses);
    holders.extend(allocators(measured).filter_map(|(of, seconds)| granules(of, seconds)));
    holders.sort_by_key(|holder| (Reverse(holder.grows), Reverse(holder.excess_bytes)));
    holders.truncate(MAX_ROWS);
    holders
}

/// What was counted of each allocator, by the deepest level that has decided something.
/// With it the seconds for which that was.
fn allocators<'a>(measured: &Measured<'a>) -> impl Iterator<Item = (&'a Allocator, f64)> {
    let reports = measured.probes;
    let says = |allocator: &Allocator| {
        allocator.not_measurable.is_none()
            && (allocator.kind != Kind::Drain || allocator.granules.decided() > 0)
    };
    let deepest = reports
        .iter()
        .rposition(|report| report.targets.iter().flat_map(|target| &target.allocators).any(says));
    let report = deepest.or(reports.len().checked_sub(1)).and_then(|index| reports.get(index));
    let of = |report: &'a Report| {
        let seconds = report.window.observed();
        let allocators = report.targets.iter().flat_map(|target| &target.allocators);
        allocators.map(move |allocator| (allocator, seconds))
    };
    report.into_iter().flat_map(of)
}

/// What can be given back is known of these alone, where enough of them was read; others have no call for it.
const TRIMMED: [&str; 1] = ["glibc"];

/// The heaps of all processes, summed by allocator, and by whether what they could give back is known.
fn heaps(censuses: &[Census]) -> Vec<Holder> {
    let mut sums: Vec<(HeapSummary, bool)> = Vec::new();
    for mut heap in censuses.iter().flat_map(|census| Summary::of(census).heaps) {
        if heap.is_partial() {
            heap.trimmable_bytes = None;
        }
        let is_trimmed = TRIMMED.contains(&heap.allocator.as_str());
        let certain = !is_trimmed || heap.trimmable_bytes.is_some();
        let is_same = |(sum, is_certain): &&mut (HeapSummary, bool)| {
            sum.allocator == heap.allocator && *is_certain == certain
        };
        match sums.iter_mut().find(is_same) {
            None => sums.push((heap, certain)),
            Some((sum, _)) => {
                let add = u64::saturating_add;
                sum.resident_bytes = add(sum.resident_bytes, heap.resident_bytes);
                sum.unknown_bytes = add(sum.unknown_bytes, heap.unknown_bytes);
                sum.live_bytes = add(sum.live_bytes, heap.live_bytes);
                sum.trimmable_bytes = match (sum.trimmable_bytes, heap.trimmable_bytes) {
                    (None, None) => None,
                    (one, other) => Some(add(one.unwrap_or_default(), other.unwrap_or_default())),
                };
            }
        }
    }
    let holders =
        sums.iter().flat_map(|(heap, certain)| [Some(sparse(heap, *certain)), free(heap)]);
    holders.flatten().collect()
}

/// What could not be given back, although nothing lives in it.
fn sparse(heap: &HeapSummary, certain: bool) -> Holder {
    let kept = heap.resident_bytes.saturating_sub(heap.trimmable_bytes.unwrap_or_default());
    let unknown = heap.unknown_bytes.min(kept);
    let mut text = format!(
        "{}: {} of live objects keep {} resident",
        shown(&heap.allocator, NAME),
        units::bytes(heap.live_bytes),
        units::bytes(kept - unknown)
    );
    if unknown > 0 {
        text = format!("{text}, {} more are unknown", units::bytes(unknown));
    }
    if !certain {
        text.push_str("; what it could give back is not known");
    }
    Holder {
        allocator: heap.allocator.clone(),
        kind: HolderKind::Sparse,
        held_bytes: kept - unknown,
        excess_bytes: (kept - unknown).saturating_sub(heap.live_bytes),
        certain,
        grows: false,
        pinned_bytes_per_second: None,
        text,
    }
}

fn free(heap: &HeapSummary) -> Option<Holder> {
    let bytes = heap.trimmable_bytes.filter(|bytes| *bytes > 0)?;
    let text = format!(
        "{}: {} are free, and malloc_trim(0) would give them back",
        shown(&heap.allocator, NAME),
        units::bytes(bytes)
    );
    Some(Holder {
        allocator: heap.allocator.clone(),
        kind: HolderKind::Free,
        held_bytes: bytes,
        excess_bytes: bytes,
        certain: true,
        grows: false,
        pinned_bytes_per_second: None,
        text,
    })
}

/// What probes say of an allocator, if they say that it holds something.
fn granules(allocator: &Allocator, seconds: f64) -> Option<Holder> {
    if allocator.not_measurable.is_some() || allocator.destroyed {
        return None;
    }
    let verdict = allocator.retention.verdict;
    let grows =
        allocator.kind != Kind::Slab && matches!(verdict, Some(Growth::LinearLeak | Growth::Mixed));
    let is_drain = allocator.kind == Kind::Drain && seconds > 0.0;
    let of = |granules| allocated_in(allocator, granules);
    let pinned_bytes = allocator.pins.bytes.or_else(|| of(allocator.granules.pinned));
    let pinned = pinned_bytes.filter(|_| is_drain).map(|bytes| bytes as f64 / seconds);
    let counts = counts(allocator, pinned, grows)?;
    let retention = &allocator.retention;
    let retained = retention.bytes.or_else(|| of(retention.granules?)).unwrap_or_default();
    let bytes = retained.max(allocator.overdue.bytes.unwrap_or_default());
    // Whether what is held comes back is the next question.
    let trend = match verdict {
        _ if grows => Some("growing"),
        Some(Growth::Bounded) => Some("bounded"),
        _ => None,
    };
    let reason = allocator.retention.verdict_reason.as_ref().zip(trend);
    let reason = reason.map(|(reason, trend)| format!("; {trend}: {}", shown(reason, 2 * NAME)));
    let name = shown(&allocator.profile, NAME);
    Some(Holder {
        allocator: allocator.profile.clone(),
        kind: HolderKind::Granules,
        held_bytes: bytes,
        excess_bytes: bytes,
        certain: true,
        grows,
        pinned_bytes_per_second: pinned,
        text: format!("{name}: {counts}{}", reason.unwrap_or_default()),
    })
}

/// What is allocated in so many granules on average, where that is seen.
fn allocated_in(allocator: &Allocator, granules: u64) -> Option<u64> {
    let bytes = u128::from(allocator.objects.as_ref()?.allocated_bytes?);
    let opened = u128::from(allocator.granules.opened.max(1));
    u64::try_from(bytes * u128::from(granules) / opened).ok()
}

/// What is pinned, overdue or open; `None` where nothing of that says that memory is held.
fn counts(allocator: &Allocator, pinned: Option<f64>, grows: bool) -> Option<String> {
    let (granules, retention) = (&allocator.granules, &allocator.retention);
    let overdue = allocator.overdue.granules;
    if granules.pinned > 0 && allocator.kind == Kind::Drain {
        let mut counts = format!(
            "{} of {} closes were pinned (DSR {})",
            granules.pinned,
            granules.decided(),
            units::dsr(allocator.dsr)
        );
        if let Some(rate) = pinned.filter(|rate| *rate > 0.0) {
            let known = allocator.pins.bytes.is_some();
            counts.push_str(if known { ", " } else { ", at least " });
            counts.push_str(&units::byte_rate(rate));
            counts.push_str(" before late drains");
        }
        if let Some(retained) = retention.granules.filter(|granules| *granules > 0) {
            counts.push_str(", retained ");
            counts.push_str(&units::counted(retained, "granule", "granules"));
        }
        if let Some(bytes) = retention.bytes.filter(|bytes| *bytes > 0) {
            counts.push_str(" of ");
            counts.push_str(&units::bytes(bytes));
        }
        // What windows left is not followed; how much there was at once says how much it can be.
        let most = retention.series.iter().flatten().filter_map(|point| point.2).max();
        if let Some(most) = most.filter(|most| retention.is_cut() && *most > 0) {
            counts.push_str(", up to ");
            counts.push_str(&units::bytes(most));
            counts.push_str(" of address space retained at once");
        }
        return Some(counts);
    }
    if overdue > 0 {
        let overdue = units::counted(overdue, "granule is", "granules are");
        return Some(format!("{overdue} open far longer than others of the same call"));
    }
    grows.then(|| units::counted(granules.open_now, "granule is open", "granules are open"))
}

/// What the probes did not see.
pub(super) fn unseen(measured: &Measured<'_>) -> Vec<String> {
    let mut unseen = Vec::new();
    let mut say = |text: String| {
        if !unseen.contains(&text) {
            unseen.push(text);
        }
    };
    let is_idle = |allocator: &Allocator| {
        let granules = &allocator.granules;
        granules.opened == 0 && granules.opened_before == 0 && granules.closed == 0
    };
    // A server's master rests while its workers work.
    let works = |profile: &str| {
        allocators(measured).any(|(other, _)| other.profile == profile && !is_idle(other))
    };
    for (allocator, _) in allocators(measured) {
        let name = shown(&allocator.profile, NAME);
        let granules = &allocator.granules;
        let undecided =
            allocator.kind == Kind::Drain && granules.decided() == 0 && granules.unknown > 0;
        if let Some(because) = &allocator.not_measurable {
            say(format!("{name} is not measurable: {}", shown(because, 3 * NAME)));
        } else if is_idle(allocator) && !works(&allocator.profile) {
            say(format!("{name}: no granule opened or closed meanwhile"));
        } else if undecided {
            say(format!("{name}: whether closes are pinned is only seen at level objects"));
        }
    }
    if measured.probes.iter().any(|report| !report.complete) {
        say("the probes' counts are incomplete".to_owned());
    }
    unseen
}

/// Who made what grows, or what holds most.
pub(super) fn who(measured: &Measured<'_>, verdict: MemoryVerdict) -> Vec<String> {
    let mut who = Vec::new();
    if verdict == MemoryVerdict::Growing {
        who.extend(growth(&measured.growth.targets));
    }
    who.extend(allocators(measured).filter_map(|(allocator, _)| pins(allocator)));
    let largest = measured.censuses.iter().max_by_key(|census| census.rss_bytes);
    who.extend(largest.iter().flat_map(|census| census.heaps.iter().filter_map(objects)));
    who.extend(largest.and_then(contexts));
    who.truncate(MAX_ROWS);
    who
}

/// The call stack that has added most to resident memory.
fn growth(targets: &[Target]) -> Option<String> {
    let paths = targets.iter().filter_map(|target| target.growth.as_ref());
    let all: i64 = paths.clone().map(|growth| growth.rss.by_paths.anon_bytes.max(0)).sum();
    let bytes = |path: &GrowthPath| path.rss.anon_bytes;
    let most = paths.flat_map(|growth| &growth.paths).max_by_key(|path| bytes(path))?;
    let share = bytes(most) as f64 / all.max(1) as f64;
    let is_runtime = |module: Option<&String>| {
        module.is_some_and(|path| {
            let name = path.rsplit('/').next().unwrap_or(path);
            RUNTIME.iter().any(|prefix| name.starts_with(prefix))
        })
    };
    let own = most.frames.iter().position(|frame| !is_runtime(frame.frame.module.as_ref()));
    let frames = &most.frames[own.unwrap_or_default()..];
    (bytes(most) > 0 && share >= MIN_SHARE && !frames.is_empty()).then(|| {
        format!(
            "{} of the growth was first touched in {}",
            units::percent(share),
            shown(&who_pins::frames(frames), 2 * NAME)
        )
    })
}

/// The call stack that pins most.
fn pins(allocator: &Allocator) -> Option<String> {
    let site = allocator.sites.as_ref()?.first().filter(|site| site.granules_pinned > 0)?;
    Some(format!(
        "{} of the pinned closes of {} are pinned by objects of {}",
        units::percent(site.share?),
        shown(&allocator.profile, NAME),
        shown(&who_pins::path(site), 2 * NAME)
    ))
}

/// The type, or else the size class, that holds most of a heap alone.
fn objects(heap: &Heap) -> Option<String> {
    let name = shown(&heap.allocator, NAME);
    let of_types = heap.types.iter().filter(|one| share(one.bytes, heap.live_bytes) >= MIN_SHARE);
    if let Some(most) = of_types.max_by_key(|one| one.bytes) {
        return Some(format!(
            "{name}: {} `{}` take {}, and lie in {} arenas",
            most.objects,
            shown(&most.name, NAME),
            units::bytes(most.bytes),
            most.arenas
        ));
    }
    let most = heap.classes.iter().max_by_key(|class| class.alone_bytes)?;
    let alone = share(most.alone_bytes, heap.resident_bytes);
    (alone >= MIN_SHARE).then(|| {
        format!(
            "{name}: {} of up to {} ({}) alone hold {}",
            units::counted(most.objects, "object", "objects"),
            units::bytes(most.size),
            units::bytes(most.bytes),
            units::bytes(most.alone_bytes)
        )
    })
}

/// The memory context with most bytes of its own.
fn contexts(census: &Census) -> Option<String> {
    let most = census.contexts.iter().max_by_key(|context| context.total_bytes)?;
    let free = most.free_bytes.map(|free| format!(", {} of them free", units::bytes(free)));
    (share(most.total_bytes, census.rss_bytes) >= MIN_SHARE).then(|| {
        let what = if most.kind == ContextKind::Pool { "pool" } else { "memory context" };
        format!(
            "{what} {} has {}{}",
            shown(&most.name, NAME),
            units::bytes(most.total_bytes),
            free.unwrap_or_default()
        )
    })
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
