//! Memory as allocation samples: pieces that come and go, each with a call stack.
//!
//! The pieces that stay until the end add up to what the report says is held at the end, to the byte. Where the times of
//! single granules are not known, readings over time are split so that what goes is what came last: of a range, the
//! pieces never show more as new than is.

use std::collections::HashMap;

use super::{
    super::stack,
    recording::{Key, Recording},
};
use crate::{Allocator, Kind, PathEnd, SiteFrame, Target};

/// Memory that came at one time and went at another, or not.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    /// Names of functions, the outermost first.
    pub(super) stack: Vec<String>,
    pub(super) granule: Option<u64>,
    /// Objects that pin it; 0: unknown.
    pub(super) pins: u64,
    pub(super) bytes: u64,
    pub(super) from: f64,
    pub(super) to: Option<f64>,
}

/// The pieces of an allocator: of kind `drain` pinned granules, of the others live objects by call stack. `end` is the
/// end of the report.
pub(super) fn of_allocator(
    target: &Target,
    allocator: &Allocator,
    recording: Option<&Recording>,
    end: f64,
) -> Vec<Piece> {
    if allocator.kind != Kind::Drain {
        return live(allocator, end);
    }
    // Where granules have no sizes, the pieces have none: they are markers only.
    let retained = allocator.retention.bytes.unwrap_or_default();
    if let Some(pieces) = recording.and_then(|all| recorded(target, allocator, all))
        && sum(&pieces) == retained
    {
        return pieces;
    }
    let mut pieces: Vec<Piece> = allocator
        .pinned_granules
        .iter()
        .map(|granule| Piece {
            stack: vec![match &granule.opened_by {
                Some(frame) => stack::outer(&SiteFrame { address: None, frame: frame.clone() }),
                None => granule.place.clone().unwrap_or_else(|| "[unknown]".to_owned()),
            }],
            granule: granule.id.strip_prefix("0x").and_then(|id| u64::from_str_radix(id, 16).ok()),
            pins: granule.live,
            bytes: granule.bytes.unwrap_or_default(),
            from: granule.closed_for_seconds.map_or(end, |age| (end - age).max(0.0)),
            to: None,
        })
        .collect();
    if sum(&pieces) > retained {
        pieces.clear();
    }
    let rest = retained - sum(&pieces);
    pieces.extend(unlisted("granules", rest, end));
    pieces
}

/// What stays of the pieces.
pub(super) fn sum(pieces: &[Piece]) -> u64 {
    let stays = pieces.iter().filter(|piece| piece.to.is_none());
    stays.fold(0, |sum, piece| sum.saturating_add(piece.bytes))
}

/// Pieces from the events; `None` without them.
fn recorded(target: &Target, allocator: &Allocator, recording: &Recording) -> Option<Vec<Piece>> {
    let key: Key = (target.target, allocator.profile.clone(), allocator.instance.clone());
    let closes = recording.closes(&key).filter(|closes| closes.left_out == 0)?;
    let frames = target.allocators.iter().flat_map(|own| own.sites.iter().flatten());
    let names: HashMap<&str, &SiteFrame> = frames
        .flat_map(|site| &site.frames)
        .filter_map(|frame| Some((frame.address.as_deref()?, frame)))
        .collect();
    let stack_of = |path: Option<u64>| {
        let Some(path) = path.and_then(|number| recording.call_path(number)) else {
            return vec!["[unknown]".to_owned()];
        };
        let frame = |address: &u64| {
            let address = format!("{address:#x}");
            match names.get(address.as_str()) {
                Some(&frame) => frame.clone(),
                None => SiteFrame { address: Some(address), ..SiteFrame::default() },
            }
        };
        names_of(path.end, &path.addresses.iter().map(frame).collect::<Vec<_>>())
    };
    let mut stacks: HashMap<Option<u64>, Vec<String>> = HashMap::new();
    let pieces = closes.pinned.iter().map(|pinned| Piece {
        stack: stacks.entry(pinned.path).or_insert_with(|| stack_of(pinned.path)).clone(),
        granule: Some(pinned.granule),
        pins: pinned.pins,
        bytes: pinned.bytes,
        from: pinned.closed,
        to: pinned.drained,
    });
    Some(pieces.collect())
}

/// What call stacks hold over time.
fn live(allocator: &Allocator, end: f64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for site in allocator.sites.iter().flatten() {
        let series = site.live_over_time.as_ref().map_or(&[][..], |live| &live.series);
        let bytes = series.iter().filter_map(|&(at, _, bytes, _)| Some((at, bytes?)));
        pieces.extend(layers(&names_of(site.path_end, &site.frames), bytes));
    }
    let all = allocator.objects.and_then(|objects| objects.live_bytes);
    // The readings of a sample are estimates.
    if allocator.sampling.is_none()
        && let Some(rest) = all.and_then(|all| all.checked_sub(sum(&pieces)))
    {
        pieces.extend(unlisted("call stacks", rest, end));
    }
    pieces
}

/// What call stacks have added to resident memory.
pub(super) fn grown(target: &Target) -> Vec<Piece> {
    let paths = target.growth.iter().flat_map(|growth| &growth.paths);
    paths
        .flat_map(|path| {
            let added = path.over_time.iter().map(|&(at, bytes)| (at, bytes.max(0).unsigned_abs()));
            layers(&names_of(path.path_end, &path.frames), added)
        })
        .collect()
}

/// What the report has no times of.
fn unlisted(what: &str, bytes: u64, end: f64) -> Option<Piece> {
    (bytes > 0).then(|| Piece {
        stack: vec![format!("[{what} without times in the report]")],
        granule: None,
        pins: 0,
        bytes,
        from: end,
        to: None,
    })
}

/// A time series as pieces: what goes is what came last.
fn layers(stack: &[String], points: impl Iterator<Item = (f64, u64)>) -> Vec<Piece> {
    let piece =
        |from, to, bytes| Piece { stack: stack.to_vec(), granule: None, pins: 0, bytes, from, to };
    let (mut gone, mut held) = (Vec::new(), Vec::new());
    let mut before = 0u64;
    for (at, now) in points {
        if now > before {
            held.push((at, now - before));
        }
        let mut less = before.saturating_sub(now);
        while less > 0
            && let Some((from, bytes)) = held.pop()
        {
            let part = bytes.min(less);
            gone.push(piece(from, Some(at), part));
            less -= part;
            if part < bytes {
                held.push((from, bytes - part));
            }
        }
        before = now;
    }
    gone.extend(held.into_iter().map(|(from, bytes)| piece(from, None, bytes)));
    gone
}

/// Names of a call stack, the outermost function first.
fn names_of(end: PathEnd, frames: &[SiteFrame]) -> Vec<String> {
    stack::names(end, frames).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What goes is what came last, and parts of it.
    #[test]
    fn what_came_last_goes() {
        let points = [(1.0, 100), (2.0, 150), (3.0, 80), (4.0, 80), (5.0, 90)];
        let pieces = layers(&[], points.into_iter());
        let times: Vec<_> =
            pieces.iter().map(|piece| (piece.from, piece.to, piece.bytes)).collect();
        let gone = [(2.0, Some(3.0), 50), (1.0, Some(3.0), 20)];
        assert_eq!(times, [&gone[..], &[(1.0, None, 80), (5.0, None, 10)]].concat());
    }

    proptest! {
        /// At each reading the pieces add up to what was read.
        #[test]
        fn add_up(values in prop::collection::vec(0u64..1_000, 1..40)) {
            let points = values.iter().enumerate().map(|(at, &value)| (at as f64, value));
            let pieces = layers(&[], points.clone());
            for (at, value) in points {
                let there = |piece: &&Piece| piece.from <= at && piece.to.is_none_or(|to| to > at);
                prop_assert_eq!(pieces.iter().filter(there).map(|piece| piece.bytes).sum::<u64>(), value);
            }
            prop_assert_eq!(Some(&sum(&pieces)), values.last());
        }
    }
}
