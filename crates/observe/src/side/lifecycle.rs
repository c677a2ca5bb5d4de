//! What a kernel side does when processes fork, exec and exit.

use std::collections::BTreeMap;

use drainprof_common::{
    event::{Event, EventKind},
    loss::Loss,
};
use drainprof_probe::bpf::Arming;
use drainprof_process::{
    Process, ProcessError, Stuck, executed_image,
    readers::{ask, each, open},
};
use drainprof_profile::Finding;
use drainprof_report::facts::{Began, Ended};

use super::{
    Ending, Side,
    targets::{Probed, Target},
};
use crate::ObserveError;

/// Children that were opened together, by process.
pub(super) type Children = BTreeMap<u32, Process>;

/// How often a process is examined that executes programs while its probes are put in place.
const MAX_EXAMINATIONS: u32 = 3;

impl Side {
    /// Takes notice of one event.
    pub(super) fn notice(
        &mut self,
        kind: EventKind,
        event: &Event,
        children: &mut Children,
    ) -> Ending {
        match kind {
            EventKind::Fork => self.forked(event, children),
            EventKind::Exec => self.executed(event),
            EventKind::Exit | EventKind::Close | EventKind::LateDrain | EventKind::PinFreed => {
                Ending::Nothing
            }
        }
    }

    fn forked(&mut self, event: &Event, children: &mut Children) -> Ending {
        let (pid, number) = (event.tgid, event.target_b);
        let parent = self.targets.get(event.target).map(Target::program).unwrap_or_default();
        let process = children.remove(&pid).or_else(|| self.opened(pid));
        let began = Began::Forked { from_target: event.target };
        let mut target =
            Target::new(number, pid, began, process.as_ref()).inside(self.container_of(pid));
        // A child of vfork has an image of its own by now.
        let has_own_image = event.tid == 0;
        match &process {
            Some(process) if has_own_image => self.follow_image(process, &mut target, false),
            Some(_) => target.inherit(parent),
            None => {
                target.inherit(parent);
                self.let_go(pid, number, has_own_image);
            }
        }
        self.targets.push(target);
        if process.is_some() { Ending::Follow(pid) } else { Ending::Nothing }
    }

    fn executed(&mut self, event: &Event) -> Ending {
        let (pid, number) = (event.tgid, event.target_b);
        // The old image's curves end here.
        self.end_curves(event.target);
        if let Some(old) = self.targets.get_mut(event.target) {
            old.end(Ended::Exec);
        }
        let process = self.opened(pid);
        // Of a process that was no target before: nothing was missed of it.
        let is_newcomer = event.target == 0;
        let began =
            if is_newcomer { Began::FromStart } else { Began::Exec { from_target: event.target } };
        let mut target =
            Target::new(number, pid, began, process.as_ref()).inside(self.container_of(pid));
        if let Some(program) = self.programs.of(event).filter(|_| is_newcomer) {
            target.assume(program.clone());
        }
        let lost = event.tid != pid && !self.follows();
        if lost {
            // The kernel binds a process's probes to its first thread, which is gone when another thread
            // calls exec: they have to be put in place again.
            self.probes.forget(pid);
            self.session.count_loss(Loss::AttachedLate, 1);
        }
        match process {
            Some(process) => self.follow_image(&process, &mut target, lost),
            // A newcomer executes a program that is known.
            None => self.let_go(pid, number, !is_newcomer),
        }
        let ending = if target.is_running() { Ending::Follow(pid) } else { Ending::Nothing };
        self.targets.push(target);
        ending
    }

    /// A process is gone before it could be examined: no end of it comes that would take out what the kernel side has
    /// entered. `unexamined`: what it executed is not known.
    fn let_go(&mut self, pid: u32, number: u32, unexamined: bool) {
        self.session.disarm_target(pid, number);
        if unexamined {
            self.session.count_loss(Loss::ProgramUnexamined, 1);
        }
    }

    /// The process that an event names; `None`: it is gone. One that the kernel does not answer for is let go, too, which
    /// is counted.
    fn opened(&mut self, pid: u32) -> Option<Process> {
        let opened = open(pid);
        if matches!(opened, Err(ProcessError::Silent(_))) {
            self.session.count_loss(Loss::ProcessMissed, 1);
        }
        opened.ok()
    }

    /// Examines programs whose files took long to read, if they are read by now.
    pub(super) fn examine_later(&mut self) {
        for number in std::mem::take(&mut self.unexamined) {
            let Some((at, mut target)) = self.targets.take(number) else { continue };
            if let Some(process) = target.process().filter(|_| target.is_running()).cloned() {
                self.follow_image(&process, &mut target, true);
            }
            self.targets.put_back((at, target));
        }
    }

    /// Whether a process has executed yet another program meanwhile: that one is followed when its turn comes. To the
    /// kernel side the process is the later target.
    fn has_left(&mut self, process: &Process, target: &mut Target) -> bool {
        let now = self.session.target_of(process.pid);
        let has_left = now.is_some_and(|now| now != target.number());
        if has_left {
            self.session.count_loss(Loss::ProgramUnexamined, 1);
            target.findings().push(Finding {
                code: "exec".to_owned(),
                message: "it executed another program before it could be examined".to_owned(),
            });
        }
        has_left
    }

    /// Looks at what a process executes now, until it is the same before probes are put in place and behind it: what it
    /// executes meanwhile is not announced.
    fn follow_image(&mut self, process: &Process, target: &mut Target, late: bool) {
        let pid = process.pid;
        let executes = || ask(pid, move || executed_image(pid)).ok().flatten();
        let (mut is_late, known) = (late, target.findings().len());
        for _ in 0..MAX_EXAMINATIONS {
            let before = executes();
            let is_placed = self.follow_once(process, target, is_late);
            if !is_placed || executes().is_none_or(|after| Some(after) == before) {
                return;
            }
            self.session.count_loss(Loss::ProgramUnexamined, 1);
            target.findings().truncate(known);
            is_late = true;
        }
    }

    /// Looks at what a process executes now. Probes that are in place stay; the rest comes late, which is
    /// counted unless it was already (`late`). Whether probes were put in place.
    fn follow_once(&mut self, process: &Process, target: &mut Target, late: bool) -> bool {
        if self.has_left(process, target) {
            return false;
        }
        let (plans, findings) = match self.planner.plan(process) {
            Ok(planned) => planned,
            Err(error) => {
                self.unplanned(error, target, late);
                return false;
            }
        };
        target.findings().extend(findings);
        if self.probes.all_in_place(process.pid, &plans) {
            self.meet_paths(target.number(), process.pid);
            target.set_probed(Probed::by(&plans));
            return false;
        }
        if self.has_left(process, target) {
            return false;
        }
        // It runs already: what it has done so far was not seen. From now on it counts as attached.
        if !late {
            self.session.count_loss(Loss::AttachedLate, 1);
        }
        // Nothing counts while probes are put in place one after the other: a call whose entry alone is
        // probed would look abandoned.
        self.session.disarm(process.pid);
        self.meet_paths(target.number(), process.pid);
        match self.probes.place(&mut self.session, process.pid, &plans) {
            Ok(unplanned) => {
                target.set_probed(Probed::by(&plans));
                target.findings().extend(unplanned);
                let arming = Arming { from_start: false, follow: self.follows() };
                if let Err(error) = self.session.arm(process.pid, target.number(), arming) {
                    tracing::warn!(pid = process.pid, %error, "cannot follow the new program");
                }
            }
            Err(error) => target.findings().push(Finding {
                code: "exec".to_owned(),
                message: format!("the program that it executes now cannot be probed: {error}"),
            }),
        }
        true
    }

    /// No probes are planned for what a process executes now.
    fn unplanned(&mut self, error: ObserveError, target: &mut Target, late: bool) {
        let message = match error {
            // Its memory is reported without any profile; or it may not have mapped everything yet, and is what its
            // name says.
            ObserveError::NoMatch { .. }
                if self.growth.is_some() || !target.probed().allocators().is_empty() =>
            {
                return self.meet_paths(target.number(), target.pid());
            }
            ObserveError::NoMatch { .. } => {
                "no profile matches the program that it executes now".to_owned()
            }
            ObserveError::Files(Stuck::Slow { .. }) => {
                if !late {
                    self.session.count_loss(Loss::AttachedLate, 1);
                }
                return self.unexamined.push(target.number());
            }
            error => format!("the program that it executes now cannot be examined: {error}"),
        };
        target.findings().push(Finding { code: "exec".to_owned(), message });
    }
}

/// Opens the children that events announce, all in one go: each of them alone would cost the loop a wait for a thread.
/// Those of vfork have an image of their own, which is examined when it is their turn.
pub(super) fn open_children(events: &[(EventKind, Event)]) -> Children {
    let forks = events.iter().filter(|(kind, event)| *kind == EventKind::Fork && event.tid != 0);
    let pids: Vec<(u32, ())> = forks.map(|(_, event)| (event.tgid, ())).collect();
    if pids.len() < 2 {
        return Children::new();
    }
    let opened = each(pids, |pid, ()| Process::open(pid));
    opened.into_iter().filter_map(|(pid, found)| Some((pid, found.ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use drainprof_process::testing::Waiting;

    use super::*;

    /// Children that come together are opened together: all but those of vfork, and those that are gone.
    #[test]
    fn children_are_opened_together() {
        let sleepers = [(); 3].map(|()| Waiting::start(Path::new("/bin/cat")));
        let fork = |tgid, tid| (EventKind::Fork, Event { tgid, tid, ..Event::default() });
        let [first, second, of_vfork] = sleepers.each_ref().map(Waiting::pid);
        let gone = u32::MAX >> 1;
        let events = [fork(first, 1), fork(second, 1), fork(of_vfork, 0), fork(gone, 1)];
        let children = open_children(&events);
        assert!(children.keys().copied().eq([first.min(second), first.max(second)]));
        assert!(children.values().all(|child| child.comm == "cat"));
        assert!(open_children(&events[..1]).is_empty(), "one alone waits no longer by itself");
    }
}
