//! Call paths: unwinds what the kernel side could not, teaches it how, and keeps what was found.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use drainprof_common::{
    paths::{CODE_RANGES, SPACES, SnapshotHead, SpaceRanges, end},
    unwind::{MAX_PATH, Rule, rule_key},
};
use drainprof_probe::bpf::{Session, StackSnapshot};
use drainprof_process::{
    PathEnd, unwind,
    unwind::{Unwinder, UnwinderOptions},
};
use drainprof_report::facts::CallPath;

/// A stack whose code is not mapped as far as is known is examined again after this time: a library may have just
/// been loaded.
const AGAIN: Duration = Duration::from_millis(400);
/// How often, until the code is given up.
const TRIES: u32 = 3;
/// Stacks that wait for that at once.
const MAX_WAITING: usize = 256;
/// Paths that were found and not taken notice of: usually none, since they are taken at once.
const MAX_FRESH: usize = 4096;

/// All that is known of call paths.
pub(super) struct Paths {
    unwinder: Unwinder,
    /// Spaces that were examined, and where their code lies.
    met: HashMap<u32, SpaceRanges>,
    /// Paths whose end was found here, by number, with the address spaces that they were found in.
    found: BTreeMap<u32, (u32, Arc<CallPath>)>,
    /// Those of them that were not taken yet, with the target in which they were found.
    fresh: Vec<(u32, Arc<CallPath>)>,
    /// Stacks that could not be unwound yet: when to try again, and how often it was tried.
    waiting: Vec<(Instant, u32, StackSnapshot)>,
}

impl Paths {
    /// None yet.
    pub(super) fn new(debug_dirs: &[PathBuf]) -> Self {
        Self {
            unwinder: Unwinder::new(UnwinderOptions {
                debug_dirs: debug_dirs.to_vec(),
                ..UnwinderOptions::default()
            }),
            met: HashMap::new(),
            found: BTreeMap::new(),
            fresh: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// The call paths that were found since this was last asked, each with its target.
    pub(super) fn take_new(&mut self) -> Vec<(u32, Arc<CallPath>)> {
        std::mem::take(&mut self.fresh)
    }

    /// A process is about to be observed as a target: its address space is its own, or shared.
    pub(super) fn meet(&mut self, session: &mut Session, target: u32, pid: u32) {
        let space = session.stacks.space(target);
        if let Err(error) = self.unwinder.meet(space, pid) {
            tracing::debug!(pid, %error, "its mappings cannot be read: call paths will be cut");
            return;
        }
        self.tell_ranges(session, space);
    }

    /// Tells the kernel side where code lies, if that has changed.
    fn tell_ranges(&mut self, session: &mut Session, space: u32) {
        let ranges = ranges(space, &self.unwinder.code_ranges(space));
        if self.met.insert(space, ranges) != Some(ranges) {
            session.stacks.set_ranges(space, &ranges);
        }
    }

    /// Unwinds a few of the stacks that have come, and teaches the kernel side how. Returns how many there were.
    pub(super) fn learn(&mut self, session: &mut Session) -> usize {
        let snapshots = session.stacks.drain_snapshots();
        let number = snapshots.len();
        for snapshot in snapshots {
            self.unwind(session, snapshot, 0);
        }
        number
    }

    /// Tries again what could not be unwound; called now and then.
    pub(super) fn retry(&mut self, session: &mut Session) {
        let now = Instant::now();
        let (due, later) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(at, ..)| *at <= now);
        self.waiting = later;
        let due: Vec<_> = due;
        for (_, tries, snapshot) in due {
            self.unwind(session, snapshot, tries);
        }
    }

    /// Walks up a stack.
    fn walk(&mut self, snapshot: &StackSnapshot) -> unwind::Walk {
        let head = &snapshot.head;
        let returns: Vec<_> =
            head.calls.iter().filter(|call| call[1] != 0).map(|call| (call[0], call[1])).collect();
        let stack = unwind::Snapshot {
            start: head.at,
            base: head.at.sp,
            bytes: &snapshot.stack,
            returns: &returns,
        };
        self.unwinder.unwind(head.space, &stack)
    }

    /// A forked child shares the rules of the process that it was forked by, until it has code elsewhere: then its address
    /// space is its own. Whether that is so now.
    fn part(&mut self, session: &mut Session, head: &SnapshotHead) -> Option<u32> {
        let own = head.target & (SPACES as u32 - 1);
        if own == head.space || self.unwinder.meet(own, head.tgid).is_err() {
            return None;
        }
        if self.unwinder.code_ranges(own) == self.unwinder.code_ranges(head.space) {
            self.unwinder.forget(own);
            return None;
        }
        session.stacks.set_space(head.target, own);
        Some(own)
    }

    fn unwind(&mut self, session: &mut Session, mut snapshot: StackSnapshot, tries: u32) {
        if !self.unwinder.knows(snapshot.head.space) {
            self.meet(session, snapshot.head.target, snapshot.head.tgid);
        }
        let mut walk = self.walk(&snapshot);
        let is_lost = walk.too_early || walk.rules.iter().any(|(_, rule)| *rule == Rule::NO_CODE);
        if is_lost && let Some(own) = self.part(session, &snapshot.head) {
            snapshot.head.space = own;
            walk = self.walk(&snapshot);
        }
        let head = &snapshot.head;
        if self.unwinder.take_moved(head.space) {
            session.stacks.unteach(head.space);
            // Their stacks look as they did: they would not be sent again.
            let own = self.found.iter().filter(|(_, (space, _))| *space == head.space);
            own.for_each(|(path, _)| session.stacks.ask_again(*path));
        }
        self.tell_ranges(session, head.space);
        for (key, rule) in &walk.rules {
            session.stacks.teach(*key, *rule);
        }
        let known = session.stacks.read_path(head.path);
        let mut addresses = known.and_then(|path| path.addresses).unwrap_or_default();
        if !walk.starts_in_code && head.at.interrupted == 0 {
            addresses.pop();
        }
        addresses.extend(&walk.addresses);
        let end = if addresses.len() > MAX_PATH { PathEnd::TooDeep } else { walk.end };
        addresses.truncate(MAX_PATH);
        let found = Arc::new(CallPath { addresses, end });
        if self.fresh.len() < MAX_FRESH {
            self.fresh.push((head.target, Arc::clone(&found)));
        }
        self.found.insert(head.path, (head.space, found));
        // Without a rule the kernel side would ask again with every allocation.
        let key = rule_key(head.space, &head.at);
        let is_known = walk.rules.iter().any(|(known, _)| *known == key);
        if is_known && !walk.too_early {
            return;
        }
        if tries < TRIES && self.waiting.len() < MAX_WAITING {
            self.waiting.push((Instant::now() + AGAIN, tries + 1, snapshot));
        } else if !is_known {
            session.stacks.teach(key, Rule::STOP);
        }
    }

    /// A path by its number.
    pub(super) fn path(&self, session: &Session, number: u32) -> Arc<CallPath> {
        if let Some((_, found)) = self.found.get(&number) {
            return Arc::clone(found);
        }
        let Some(record) = session.stacks.read_path(number) else { return Arc::default() };
        let end = match record.end {
            end::START => PathEnd::Start,
            end::STOP => PathEnd::NoUnwindInfo,
            end::UNREADABLE => PathEnd::Unreadable,
            end::TOO_DEEP => PathEnd::TooDeep,
            _ => PathEnd::NotCaptured,
        };
        match record.addresses {
            Some(addresses) => Arc::new(CallPath { addresses, end }),
            None => Arc::default(),
        }
    }
}

/// At most as many ranges as the kernel side takes: those that are nearest to each other become one.
fn ranges(space: u32, code: &[(u64, u64)]) -> SpaceRanges {
    let mut ranges = code.to_vec();
    ranges.sort_unstable();
    while ranges.len() > CODE_RANGES {
        let gap = |at: &usize| ranges[at + 1].0.saturating_sub(ranges[*at].1);
        let Some(nearest) = (0..ranges.len() - 1).min_by_key(gap) else { break };
        ranges[nearest].1 = ranges[nearest].1.max(ranges[nearest + 1].1);
        ranges.remove(nearest + 1);
    }
    let mut all = SpaceRanges { space: u64::from(space), ..SpaceRanges::default() };
    for (slot, (from, to)) in all.ranges.iter_mut().zip(ranges) {
        *slot = [from, to.saturating_sub(from)];
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few ranges stay as they are; of many, the nearest become one, and none gets lost.
    #[test]
    fn near_ranges_become_one() {
        let few = ranges(7, &[(0x9000, 0xa000), (0x1000, 0x2000)]);
        assert_eq!(
            (few.space, few.ranges[0], few.ranges[1]),
            (7, [0x1000, 0x1000], [0x9000, 0x1000])
        );
        assert_eq!(few.ranges[2], [0, 0]);

        let code: Vec<(u64, u64)> =
            (0..20).map(|n| (n * 0x1_0000 * (n + 1), n * 0x1_0000 * (n + 1) + 0x1000)).collect();
        let many = ranges(1, &code);
        for (from, to) in code {
            assert!(
                many.ranges.iter().any(|[at, length]| *at <= from && to <= at + length),
                "{from:#x} is lost: {many:x?}"
            );
        }
        assert!(many.ranges.windows(2).all(|two| two[0][0] + two[0][1] <= two[1][0]));
    }
}
