//! The kernel sides of the processes that are observed: one for all that are examined equally deep, as long as it has
//! room for newcomers.
//!
//! Some tables of a kernel side never give an entry back. So it takes newcomers only until one is three quarters full; then
//! a new one is loaded for these, and the old one goes with the last of its processes. Where many old ones wait for that,
//! few processes move on to the new one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drainprof_common::loss::Loss;
use drainprof_observe::{ObserveError, Side, SideOptions};
use drainprof_probe::bpf::{Detaching, Leftover, SessionConfig, is_detach_put_off};
use drainprof_process::{Process, Stuck};
use drainprof_profile::{Level, Library};
use drainprof_report::facts::Snapshot;

/// How far a kernel side may be worn and still take newcomers.
const WORN_SHARE: f64 = 0.75;

/// Kernel sides that may wait for their processes to end: each takes tens of megabytes.
const MAX_KERNELS_IN_USE: usize = 8;

/// How much of a kernel side its processes hold at most when they move to another one. Together with [`WORN_SHARE`] it is all that
/// one has.
const SPARSE_SHARE: f64 = 0.25;

/// Probes that may wait to be taken out before newcomers wait, too. The kernel takes out about ten a second.
const MAX_LEFTOVER_PROBES: usize = 64;

/// The same while a process is in the way of taking them out: newcomers are not to blame, but each takes descriptors.
const MAX_LEFTOVER_PROBES_PUT_OFF: usize = 1_024;

/// For how long the end of the daemon waits for such a process.
const DETACH_PATIENCE: Duration = Duration::from_secs(20);

/// One kernel side.
pub(super) struct Kernel {
    /// Its number; never used again.
    pub(super) id: u64,
    /// The level of its probes.
    pub(super) level: Level,
    /// What counts and collects.
    pub(super) observer: Side,
    /// Whether it takes no newcomers any more: it had no room, it knows other profiles than are in force, or a process is to
    /// be observed again whose probes are on their way out.
    stale: bool,
}

/// All of them.
pub(super) struct Pool {
    config: SessionConfig,
    library: Library,
    options: SideOptions,
    kernels: Vec<Kernel>,
    next: u64,
    leftover: Leftover,
    detaching: Vec<Detaching>,
    leaving: Leaving,
}

/// Processes, each with the number of a kernel side, whose probes are on their way out of it: there, they would count
/// twice now. Probes go in batches.
#[derive(Default)]
struct Leaving {
    /// Whose probes wait.
    waiting: BTreeSet<(u64, u32)>,
    /// Whose probes are in the batch that goes.
    going: BTreeSet<(u64, u32)>,
}

impl Leaving {
    fn contains(&self, process: (u64, u32)) -> bool {
        self.waiting.contains(&process) || self.going.contains(&process)
    }

    /// The batch is gone: all that waits is the next.
    fn next_batch(&mut self) {
        self.going = std::mem::take(&mut self.waiting);
    }
}

impl Pool {
    /// No kernel side yet. `options.level` does not matter.
    #[must_use]
    pub(super) fn new(config: SessionConfig, library: Library, options: SideOptions) -> Self {
        Self {
            config,
            library,
            options,
            kernels: Vec::new(),
            next: 1,
            leftover: Leftover::default(),
            detaching: Vec::new(),
            leaving: Leaving::default(),
        }
    }

    /// The kernel sides, oldest first.
    #[must_use]
    pub(super) fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel sides, oldest first.
    pub(super) fn kernels_mut(&mut self) -> &mut [Kernel] {
        &mut self.kernels
    }

    /// Loads a kernel side for a level where there is none with room. Returns its number.
    pub(super) fn prepare(&mut self, level: Level) -> Result<u64, ObserveError> {
        let has_room = |kernel: &&Kernel| {
            kernel.level == level && !kernel.stale && kernel.observer.wear() < WORN_SHARE
        };
        if let Some(kernel) = self.kernels.iter().rev().find(has_room) {
            return Ok(kernel.id);
        }
        let options = SideOptions { level: Some(level), ..self.options.clone() };
        let mut observer = Side::new(&self.config, self.library.clone(), options)?;
        observer.plan_beside();
        // They may have room again later, when there is no need of it.
        for kernel in self.kernels.iter_mut().filter(|kernel| kernel.level == level) {
            kernel.stale = true;
        }
        let id = self.next;
        self.next += 1;
        self.kernels.push(Kernel { id, level, observer, stale: false });
        Ok(id)
    }

    /// Other profiles are in force for newcomers from now on.
    pub(super) fn renew(&mut self, library: Option<Library>, profiles: Vec<String>) {
        self.library = library.unwrap_or_else(|| self.library.clone());
        self.options.profiles = profiles;
        for kernel in &mut self.kernels {
            kernel.stale = true;
            kernel.observer.forget_programs();
        }
    }

    /// Whether other profiles are in force than those of `library`.
    #[must_use]
    pub(super) fn library_differs(&self, library: &Library) -> bool {
        let texts = |library: &Library| -> Vec<String> {
            library.iter().map(|profile| format!("{profile:?}")).collect()
        };
        texts(&self.library) != texts(library)
    }

    /// Whether something has ended that was not reported yet.
    #[must_use]
    pub(super) fn has_ended(&self) -> bool {
        self.kernels.iter().any(|kernel| kernel.observer.has_ended())
    }

    /// Counts that the final counts of what has ended may miss something.
    pub(super) fn count_unsettled(&mut self) {
        for kernel in self.kernels.iter_mut().filter(|kernel| kernel.observer.has_ended()) {
            kernel.observer.count_loss(Loss::CountsUnsettled, 1);
        }
    }

    /// Has a process observed: its probes are in place and count when this returns.
    pub(super) fn add(&mut self, pid: u32, level: Level) -> Result<(), ObserveError> {
        let mut id = self.prepare(level)?;
        if self.leaving.contains((id, pid)) {
            if let Some(kernel) = self.kernels.iter_mut().find(|kernel| kernel.id == id) {
                kernel.stale = true;
            }
            id = self.prepare(level)?;
        }
        match self.kernels.iter_mut().find(|kernel| kernel.id == id) {
            Some(kernel) => kernel.observer.add(pid, false),
            None => Ok(()),
        }
    }

    /// From now on, the kernel side that takes newcomers of a level notices further processes of the program that `pid`
    /// executes, and no other kernel side does: they would count twice.
    pub(super) fn watch_program(&mut self, pid: u32, level: Level) -> Result<(), ObserveError> {
        let id = self.prepare(level)?;
        for kernel in &mut self.kernels {
            if kernel.id == id {
                kernel.observer.watch_program(pid)?;
            } else {
                kernel.observer.forget_programs();
            }
        }
        Ok(())
    }

    /// No kernel side notices newcomers any more.
    pub(super) fn forget_programs(&mut self) {
        for kernel in &mut self.kernels {
            kernel.observer.forget_programs();
        }
    }

    /// Whether another kernel side than `id` observes a process.
    pub(super) fn observes_elsewhere(&self, pid: u32, id: u64) -> bool {
        let mut others = self.kernels.iter().filter(|kernel| kernel.id != id);
        others.any(|kernel| kernel.observer.running().contains(&pid))
    }

    /// Takes a newcomer back that a kernel side has noticed.
    pub(super) fn discard(&mut self, id: u64, pid: u32, target: u32) {
        if let Some(kernel) = self.kernels.iter_mut().find(|kernel| kernel.id == id) {
            kernel.observer.discard(pid, target);
        }
    }

    /// Counts a process of which something was missed.
    pub(super) fn count_process(&mut self, loss: Loss) {
        if let Some(kernel) = self.kernels.last_mut() {
            kernel.observer.count_loss(loss, 1);
        }
    }

    /// Whether a profile matches a process and offers a level; attaches nothing.
    pub(super) fn matches(&mut self, process: &Process, level: Level) -> Result<(), ObserveError> {
        let id = self.prepare(level)?;
        match self.kernels.iter_mut().find(|kernel| kernel.id == id) {
            Some(kernel) => kernel.observer.plan(process).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Whether a process is observed.
    #[must_use]
    pub(super) fn is_observing(&self, pid: u32) -> bool {
        self.kernels.iter().any(|kernel| kernel.observer.running().contains(&pid))
    }

    /// Whether a process has more to be probed than is: it has mapped more since.
    pub(super) fn lacks_probes(&mut self, pid: u32) -> Result<bool, Stuck> {
        let mut kernels = self.kernels.iter_mut();
        let kernel = kernels.find(|kernel| kernel.observer.running().contains(&pid));
        kernel.map_or(Ok(false), |kernel| kernel.observer.lacks_probes(pid))
    }

    /// Processes that get no probes for now, since their files take too long to read, with the files.
    pub(super) fn slow(&self) -> BTreeMap<u32, &str> {
        self.kernels.iter().flat_map(|kernel| kernel.observer.slow()).collect()
    }

    /// Processes that alone keep a worn kernel side, where too many are: if they are attached again, they find room in another
    /// one. Those of one kernel side at a time.
    pub(super) fn stranded(&self) -> Vec<u32> {
        let in_use = |kernel: &&Kernel| !kernel.observer.running().is_empty();
        let kernels: Vec<&Kernel> = self.kernels.iter().filter(in_use).collect();
        if kernels.len() <= MAX_KERNELS_IN_USE {
            return Vec::new();
        }
        let mut worn = kernels.into_iter().filter(|kernel| kernel.stale);
        let sparse = worn.find(|kernel| kernel.observer.use_share() <= SPARSE_SHARE);
        sparse.map_or_else(Vec::new, |kernel| kernel.observer.running())
    }

    /// Whether probes of processes that have ended wait to be taken out: as many as may. Only [`Pool::tidy`] changes that.
    #[must_use]
    pub(super) fn is_behind(&self) -> bool {
        self.leftover.len()
            >= if is_detach_put_off() { MAX_LEFTOVER_PROBES_PUT_OFF } else { MAX_LEFTOVER_PROBES }
    }

    /// Stops counting in a process that runs on.
    pub(super) fn release(&mut self, pid: u32) {
        for kernel in &mut self.kernels {
            kernel.observer.release(pid);
        }
    }

    /// A process has ended.
    pub(super) fn ended(&mut self, pid: u32) {
        for kernel in &mut self.kernels {
            kernel.observer.ended(pid, None);
        }
    }

    /// Gives back what was read of files: it is needed only while newcomers are examined.
    pub(super) fn forget_files(&mut self) {
        for kernel in &mut self.kernels {
            kernel.observer.forget_files();
        }
    }

    /// Makes room in all maps.
    pub(super) fn reclaim(&mut self) {
        for kernel in &mut self.kernels {
            kernel.observer.reclaim();
        }
    }

    /// What is known now, by kernel side.
    pub(super) fn snapshots(&mut self) -> Vec<(u64, Snapshot)> {
        let mut all = Vec::with_capacity(self.kernels.len());
        for kernel in &mut self.kernels {
            kernel.observer.sample();
            all.push((kernel.id, kernel.observer.snapshot()));
        }
        all
    }

    /// Forgets what has ended and was reported: `is_over` answers for a kernel side's number and a target's. A kernel
    /// side without targets goes if it takes no newcomers. Probes go in the background, those of one call after those of the
    /// calls before. Returns the numbers of the kernel sides that have gone.
    pub(super) fn tidy(&mut self, is_over: impl Fn(u64, u32) -> bool) -> Vec<u64> {
        for kernel in &mut self.kernels {
            let id = kernel.id;
            let (leftover, pids) = kernel.observer.forget(|target| is_over(id, target));
            self.leftover.add(leftover);
            self.leaving.waiting.extend(pids.into_iter().map(|pid| (id, pid)));
        }
        let mut gone = Vec::new();
        let mut kept = Vec::with_capacity(self.kernels.len());
        for kernel in self.kernels.drain(..) {
            let is_done = kernel.stale || kernel.observer.wear() >= WORN_SHARE;
            if is_done && kernel.observer.is_idle() {
                gone.push(kernel.id);
                self.detaching.push(kernel.observer.end());
            } else {
                kept.push(kernel);
            }
        }
        self.kernels = kept;
        self.detaching.retain(|detaching| !detaching.is_over());
        if self.detaching.is_empty() {
            self.leaving.next_batch();
            if self.leftover.is_empty() {
                self.leaving.going.clear();
            } else {
                self.detaching.push(std::mem::take(&mut self.leftover).detach());
            }
        }
        gone
    }

    /// Takes all probes out, in the background, with their kernel sides.
    pub(super) fn end_all(&mut self) {
        for kernel in self.kernels.drain(..) {
            self.detaching.push(kernel.observer.end());
        }
        if !self.leftover.is_empty() {
            self.detaching.push(std::mem::take(&mut self.leftover).detach());
        }
    }

    /// Waits until all probes are gone, unless a process is in their way for long.
    pub(super) fn wait(self) {
        for detaching in self.detaching {
            detaching.wait_for(DETACH_PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Leaving;

    /// While processes never cease to end, each is known until its batch is gone, and no longer: its number is given to
    /// another one before long.
    #[test]
    fn none_leaves_for_ever() {
        let mut leaving = Leaving::default();
        for pid in 0..1_000 {
            leaving.waiting.insert((1, pid));
            assert!(leaving.contains((1, pid)) && !leaving.contains((2, pid)));
            leaving.next_batch();
            assert!(leaving.contains((1, pid)));
            assert_eq!(leaving.waiting.len() + leaving.going.len(), 1);
        }
    }
}
