//! Which processes came and ended, as the kernel sides saw it.

use std::time::{Duration, Instant};

use drainprof_common::event::{Event, EventKind};
use drainprof_observe::Ending;
use drainprof_profile::Level;

use super::pool::Kernel;

/// Longest time of a turn, and the events between two readings of the clock.
const MAX_TURN_TIME: Duration = Duration::from_millis(250);
const EVENTS_BATCH: usize = 64;

/// A process that a kernel side counts since it saw it come.
pub(super) struct Followed {
    pub(super) pid: u32,
    pub(super) level: Level,
    /// The kernel side.
    pub(super) kernel: u64,
    /// Its target there, where its program is watched; `None`: its parent is.
    pub(super) target: Option<u32>,
}

/// What came of the events of one turn.
#[derive(Default)]
pub(super) struct Lifecycle {
    pub(super) followed: Vec<Followed>,
    /// Processes of watched programs that have ended, and were not observed; when, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) unseen: Vec<(u32, u64)>,
    /// Processes that were observed, and have ended.
    pub(super) ended: Vec<u32>,
}

impl Lifecycle {
    /// Takes what the rings have now, and no more, for a while: processes may come faster than they are examined. What comes meanwhile, and what is left, is taken at the next turn.
    pub(super) fn take(kernels: &mut [Kernel]) -> Self {
        let mut all = Self::default();
        let began = Instant::now();
        for kernel in kernels {
            let (id, level) = (kernel.id, kernel.level);
            let most = kernel.observer.most_events();
            drain(most, || {
                if began.elapsed() > MAX_TURN_TIME {
                    return 0;
                }
                kernel.observer.some_events(EVENTS_BATCH, |_, kind, event, ending| {
                    if let Ending::Follow(pid) = ending {
                        let target = (event.target == 0).then_some(event.target_b);
                        all.followed.push(Followed { pid, level, kernel: id, target });
                    }
                    all.note(kind, event);
                })
            });
        }
        all
    }

    fn note(&mut self, kind: EventKind, event: &Event) {
        match (kind, event.target) {
            (EventKind::Exit, 0) => self.unseen.push((event.tgid, event.ns)),
            (EventKind::Exit, _) => self.ended.push(event.tgid),
            _ => {}
        }
    }
}

/// Takes batches until there is none, or as many events were taken as there can have been at the start.
fn drain(most: usize, mut take: impl FnMut() -> usize) {
    let mut taken = 0;
    while taken < most {
        match take() {
            0 => return,
            count => taken += count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::drain;

    /// Events that come as fast as they are taken end a turn all the same; what was there at its start is taken.
    #[test]
    fn turns_end() {
        let mut taken = 0;
        drain(1000, || {
            taken += 300;
            300
        });
        assert_eq!(taken, 1200);
        let mut left = [300, 300, 0, 300].into_iter();
        drain(1000, || left.next().unwrap());
        assert_eq!(left.next(), Some(300), "an empty ring ends it");
    }
}
