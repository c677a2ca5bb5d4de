//! Sites of a comparison: call paths are the same where their names are.
//!
//! A path is the list of its functions, those that were inlined among them, each with its file's name and
//! module: no address, line or directory, which another build has others of. A frame without a function is
//! known by module and offset. Paths of one report that are the same by names are one. What then has no
//! counterpart is searched for without the files' names, since one of the builds may lack debug information.

use std::collections::BTreeMap;

use drainprof_process::Frame;

use super::{
    model::{Change, DiffFrame, SiteDiff, Status},
    sums::{add, per_second},
};
use crate::{
    kind::Kind,
    model::site::{PinClass, Site},
};

/// What stands for the target's own executable, which another build may call otherwise.
const OWN: &str = "[executable]";
/// A change below this share of the larger value is none.
const MATERIAL: f64 = 0.1;
/// A change of counted things is one beyond so many standard deviations of chance.
const DEVIATIONS: f64 = 2.0;

/// The sites of one side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed<'a> {
    pub(super) sites: &'a Sites,
    /// One of so many granules was examined.
    pub(super) one_in: u64,
    /// Whether all of its sites are listed.
    pub(super) is_whole: bool,
}

/// The names of a path and of the place of opening.
type Key = (Vec<DiffFrame>, Vec<DiffFrame>);

/// The sites of one allocator of one report.
#[derive(Clone, Debug, Default)]
pub(super) struct Sites(BTreeMap<Key, Sum>);

/// What the sites of one key come to.
#[derive(Clone, Debug, Default)]
struct Sum {
    granules_pinned: u64,
    objects: u64,
    bytes: Option<u64>,
    retained_bytes: Option<u64>,
    live: Option<u64>,
    live_bytes: Option<u64>,
    /// Not known of a sample of pages: larger objects are all in it.
    allocated: Option<u64>,
    allocated_bytes: Option<u64>,
    /// Of the site with the most pins.
    most: u64,
    delay: Option<f64>,
    class: Option<PinClass>,
    frames: Vec<DiffFrame>,
    opened_at: Vec<DiffFrame>,
}

impl Sites {
    /// Adds a site; its counts are of one of `one_in` granules.
    pub(super) fn add(&mut self, site: &Site, exe: &str, one_in: u64) {
        let all = |count: u64| count.saturating_mul(one_in);
        let frames = site.frames.iter().flat_map(|frame| functions(&frame.frame));
        let frames: Vec<_> = frames.collect();
        let opened_at: Vec<_> = functions(&site.opened_at.frame).collect();
        let own = exe.rsplit('/').next().unwrap_or(exe);
        let key = (key(&frames, own), key(&opened_at, own));
        let sum = self.0.entry(key).or_default();
        for (sum, count) in
            [(&mut sum.granules_pinned, site.granules_pinned), (&mut sum.objects, site.pins)]
        {
            *sum = sum.saturating_add(all(count));
        }
        add(&mut sum.bytes, site.pin_bytes.map(all));
        add(&mut sum.retained_bytes, site.retained_bytes.map(all));
        if let Some(estimated) = site.estimated {
            add(&mut sum.live, Some(estimated.live));
            add(&mut sum.live_bytes, estimated.live_bytes);
        } else {
            add(&mut sum.live, site.live.map(all));
            add(&mut sum.live_bytes, site.live_bytes.map(all));
            add(&mut sum.allocated, Some(all(site.allocated)));
            add(&mut sum.allocated_bytes, site.allocated_bytes.map(all));
        }
        if site.pins > sum.most || sum.frames.is_empty() {
            sum.most = site.pins;
            sum.delay = site.pin_delay_seconds.p50.filter(|delay| delay.is_finite());
            sum.class = site.class;
            (sum.frames, sum.opened_at) = (frames, opened_at);
        }
    }
}

/// The functions of a frame, the innermost first.
pub(super) fn functions(frame: &Frame) -> impl Iterator<Item = DiffFrame> + '_ {
    let name = |file: &Option<String>| {
        file.as_ref().map(|file| file.rsplit('/').next().unwrap_or(file).to_owned())
    };
    let inlined = frame.inlined.iter().rev().map(move |inlined| DiffFrame {
        function: Some(inlined.function.clone()),
        file: name(&inlined.file),
        module: frame.module.clone(),
        module_offset: None,
    });
    let own = DiffFrame {
        function: frame.function.clone(),
        file: name(&frame.file),
        module: frame.module.clone(),
        module_offset: frame.module_offset.clone().filter(|_| frame.function.is_none()),
    };
    let known = own != DiffFrame::default();
    inlined.chain(known.then_some(own))
}

fn key(frames: &[DiffFrame], own: &str) -> Vec<DiffFrame> {
    let mut frames = frames.to_vec();
    for frame in &mut frames {
        if frame.module.as_deref() == Some(own) {
            frame.module = Some(OWN.to_owned());
        }
    }
    frames
}

/// The same without the files' names.
fn bare((frames, opened_at): &Key) -> Key {
    let without = |frames: &[DiffFrame]| {
        frames.iter().map(|frame| DiffFrame { file: None, ..frame.clone() }).collect()
    };
    (without(frames), without(opened_at))
}

/// All sites, by how much they changed; none unless both have some.
pub(super) fn compare(listed: [Listed<'_>; 2], kind: Kind, seconds: [f64; 2]) -> Vec<SiteDiff> {
    let [before, after] = listed.map(|side| side.sites);
    let mut pairs: Vec<[Option<&Sum>; 2]> = Vec::new();
    let mut gone: BTreeMap<&Key, &Sum> =
        before.0.iter().filter(|(key, _)| !after.0.contains_key(*key)).collect();
    let mut gone_bare: BTreeMap<Key, Option<&Key>> = BTreeMap::new();
    for key in gone.keys() {
        gone_bare.entry(bare(key)).and_modify(|key| *key = None).or_insert(Some(*key));
    }
    let mut new_bare: BTreeMap<Key, u32> = BTreeMap::new();
    for key in after.0.keys().filter(|key| !before.0.contains_key(*key)) {
        *new_bare.entry(bare(key)).or_default() += 1;
    }
    for (key, sum) in &after.0 {
        let earlier = before.0.get(key).or_else(|| {
            let bare = bare(key);
            let other = gone_bare.get(&bare).copied().flatten()?;
            if new_bare.get(&bare) == Some(&1) { gone.remove(other) } else { None }
        });
        pairs.push([earlier, Some(sum)]);
    }
    pairs.extend(gone.into_values().map(|sum| [Some(sum), None]));
    let mut sites: Vec<_> = pairs
        .into_iter()
        .map(|pair| {
            let (status, change) = judge(pair, listed, kind, seconds);
            (change, diff(pair, status, listed, seconds))
        })
        .collect();
    sites.sort_by(|(a, first), (b, second)| {
        let size = |site: &SiteDiff| site.granules_pinned.after.max(site.granules_pinned.before);
        b.total_cmp(a)
            .then_with(|| size(second).cmp(&size(first)))
            .then_with(|| first.frames.cmp(&second.frames))
    });
    sites.into_iter().map(|(_, site)| site).collect()
}

/// What became of a site, and by how much its measure changed.
fn judge(
    pair: [Option<&Sum>; 2],
    listed: [Listed<'_>; 2],
    kind: Kind,
    seconds: [f64; 2],
) -> (Status, f64) {
    let mut values = [0.0; 2];
    let mut variance = 0.0;
    for ((value, sum), (side, seconds)) in
        values.iter_mut().zip(pair).zip(listed.into_iter().zip(seconds))
    {
        let Some(sum) = sum else { continue };
        let (measure, counted) = sum.measure(kind);
        if counted {
            let rate = per_second(measure, seconds).unwrap_or_default();
            *value = rate;
            // A count varies by chance like its root; one in a sample more.
            variance += per_second(side.one_in, seconds).unwrap_or_default() * rate;
        } else {
            *value = measure as f64;
        }
    }
    let [before, after] = values;
    let change = (after - before).abs();
    let status = match (before > 0.0, after > 0.0) {
        (false, true) => Status::New,
        (true, false) => Status::Gone,
        (false, false) => Status::Same,
        (true, true) => {
            if change <= before.max(after) * MATERIAL || change <= DEVIATIONS * variance.sqrt() {
                Status::Same
            } else if after > before {
                Status::Grown
            } else {
                Status::Shrunk
            }
        }
    };
    (status, change)
}

impl Sum {
    /// By what it is judged, and whether that was counted over the window (else it is how things stand at the
    /// end).
    fn measure(&self, kind: Kind) -> (u64, bool) {
        match kind {
            Kind::Drain => (self.granules_pinned, true),
            Kind::Bulk | Kind::Slab => match self.live_bytes.or(self.live) {
                Some(live) => (live, false),
                None => (self.allocated.unwrap_or_default(), true),
            },
        }
    }
}

fn diff(
    pair: [Option<&Sum>; 2],
    status: Status,
    listed: [Listed<'_>; 2],
    seconds: [f64; 2],
) -> SiteDiff {
    let [before, after] = pair;
    let change = |of: fn(&Sum) -> Option<u64>| Change {
        before: before.and_then(of),
        after: after.and_then(of),
    };
    let rate = |of: fn(&Sum) -> Option<u64>| Change {
        before: before.and_then(of).and_then(|count| per_second(count, seconds[0])),
        after: after.and_then(of).and_then(|count| per_second(count, seconds[1])),
    };
    let shown = after.or(before);
    SiteDiff {
        status,
        certain: (before.is_some() || listed[0].is_whole)
            && (after.is_some() || listed[1].is_whole),
        granules_pinned: change(|sum| Some(sum.granules_pinned)),
        pinned_per_second: rate(|sum| Some(sum.granules_pinned)),
        objects: change(|sum| Some(sum.objects)),
        bytes: change(|sum| sum.bytes),
        retained_bytes: change(|sum| sum.retained_bytes),
        live: change(|sum| sum.live),
        live_bytes: change(|sum| sum.live_bytes),
        allocated_per_second: rate(|sum| sum.allocated),
        allocated_bytes: change(|sum| sum.allocated_bytes),
        pin_delay_p50_seconds: Change {
            before: before.and_then(|sum| sum.delay),
            after: after.and_then(|sum| sum.delay),
        },
        class: Change {
            before: before.and_then(|sum| sum.class),
            after: after.and_then(|sum| sum.class),
        },
        opened_at: shown.map(|sum| sum.opened_at.clone()).unwrap_or_default(),
        frames: shown.map(|sum| sum.frames.clone()).unwrap_or_default(),
    }
}
