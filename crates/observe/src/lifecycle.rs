//! What the observer does when processes fork, exec and exit.

use std::collections::BTreeMap;

use drainprof_common::{
    event::{Event, EventKind},
    loss::Loss,
};
use drainprof_probe::bpf::Arming;
use drainprof_process::{
    Process, ProcessError, Stuck, executed_image, printable,
    readers::{ask, each, open},
};
use drainprof_profile::Finding;
use drainprof_report::facts::{Began, Ended};

use super::observer::{Ending, ObserveError, Observer, Target};

/// Children that were opened together, by process.
pub(super) type Children = BTreeMap<u32, Process>;

/// How often a process is examined that executes programs while its probes are put in place.
const MAX_LOOKS: u32 = 3;

impl Observer {
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
        let parent = self.targets.iter().find(|target| target.target == event.target);
        let (comm, exe, allocators, not_measurable) = parent
            .map(|parent| {
                let Target { comm, exe, allocators, not_measurable, .. } = parent;
                (comm.clone(), exe.clone(), allocators.clone(), not_measurable.clone())
            })
            .unwrap_or_default();
        let process = children.remove(&event.tgid).or_else(|| self.opened(event.tgid));
        let gone = process.is_none();
        let mut target = Target {
            comm: process.as_ref().map_or(comm, |process| process.comm.clone()),
            exe,
            allocators,
            not_measurable,
            container: self.container_of(event.tgid),
            ..successor(event, process.as_ref(), Began::Forked(event.target))
        };
        if let Some(process) = process {
            // A child of vfork has an image of its own by now.
            if event.tid == 0 {
                target.allocators.clear();
                target.not_measurable.clear();
                target.exe = printable(process.exe.as_os_str().as_encoded_bytes());
                self.follow_image(&process, &mut target, false);
            }
            target.process = Some(process);
        } else {
            // Gone before it could be examined: nobody would take out later what the kernel side has entered.
            self.session.disarm_target(event.tgid, event.target_b);
            if event.tid == 0 {
                self.session.count_loss(Loss::ProgramUnexamined, 1);
            }
        }
        self.targets.push(target);
        if gone { Ending::Nothing } else { Ending::Follow(event.tgid) }
    }

    fn executed(&mut self, event: &Event) -> Ending {
        // The old image's curves end here.
        self.sample();
        self.end_sites(event.target);
        if let Some(old) = self.targets.iter_mut().find(|target| target.target == event.target) {
            old.ended.get_or_insert(Ended::Exec);
        }
        let process = self.opened(event.tgid);
        // Of a process that was no target before: nothing was missed of it.
        let is_newcomer = event.target == 0;
        let began = if is_newcomer { Began::FromStart } else { Began::Exec(event.target) };
        let mut target = successor(event, process.as_ref(), began);
        if let Some(program) = self.program_of(event).filter(|_| is_newcomer) {
            target.allocators = program.allocators;
            target.not_measurable = program.not_measurable;
            if process.is_none() {
                (target.comm, target.exe) = (program.comm, program.exe);
            }
        }
        target.container = self.container_of(event.tgid);
        let lost = event.tid != event.tgid && !self.options.follow;
        if lost {
            // The kernel binds a process's probes to its first thread, which is gone when another thread
            // calls exec: they have to be put in place again.
            self.placed.retain(|placed| placed.pid != Some(event.tgid));
            self.session.count_loss(Loss::AttachedLate, 1);
        }
        if let Some(process) = process {
            self.follow_image(&process, &mut target, lost);
            target.process = Some(process);
        } else {
            // Gone before it could be examined: nobody would take out later what the kernel side has entered.
            self.session.disarm_target(event.tgid, event.target_b);
            // A newcomer executes a program that is known.
            if !is_newcomer {
                self.session.count_loss(Loss::ProgramUnexamined, 1);
            }
        }
        let ending =
            if target.ended.is_some() { Ending::Nothing } else { Ending::Follow(event.tgid) };
        self.targets.push(target);
        ending
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
            let is_meant = |one: &Target| one.target == number && one.ended.is_none();
            let Some(at) = self.targets.iter().position(is_meant) else { continue };
            let mut target = self.targets.remove(at);
            if let Some(process) = target.process.clone() {
                self.follow_image(&process, &mut target, true);
            }
            self.targets.insert(at, target);
        }
    }

    /// Whether a process has executed yet another program meanwhile: that one is followed when its turn comes. To the
    /// kernel side the process is the later target.
    fn has_left(&mut self, process: &Process, target: &mut Target) -> bool {
        let now = self.session.target_of(process.pid);
        let has_left = now.is_some_and(|now| now != target.target);
        if has_left {
            self.session.count_loss(Loss::ProgramUnexamined, 1);
            target.findings.push(Finding {
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
        let (mut is_late, known) = (late, target.findings.len());
        for _ in 0..MAX_LOOKS {
            let before = executes();
            let is_placed = self.follow_once(process, target, is_late);
            if !is_placed || executes().is_none_or(|after| Some(after) == before) {
                return;
            }
            self.session.count_loss(Loss::ProgramUnexamined, 1);
            target.findings.truncate(known);
            is_late = true;
        }
    }

    /// Looks at what a process executes now. Probes that are in place stay; the rest comes late, which is
    /// counted unless it was already (`late`). Whether probes were put in place.
    fn follow_once(&mut self, process: &Process, target: &mut Target, late: bool) -> bool {
        let follow = self.options.follow;
        if self.has_left(process, target) {
            return false;
        }
        let planned = self.plan(process);
        let (plans, findings) = match planned {
            Ok(planned) => planned,
            // Its memory is reported without any profile.
            Err(ObserveError::NoMatch { .. }) if self.growth.is_some() => {
                self.meet_paths(target.target, process.pid);
                return false;
            }
            // It may not have mapped everything yet, and is what its name says.
            Err(ObserveError::NoMatch { .. }) if !target.allocators.is_empty() => {
                self.meet_paths(target.target, process.pid);
                return false;
            }
            Err(ObserveError::Files(Stuck::Slow { .. })) => {
                if !late {
                    self.session.count_loss(Loss::AttachedLate, 1);
                }
                self.unexamined.push(target.target);
                return false;
            }
            Err(error) => {
                let message = match error {
                    ObserveError::NoMatch { .. } => {
                        "no profile matches the program that it executes now".to_owned()
                    }
                    error => {
                        format!("the program that it executes now cannot be examined: {error}")
                    }
                };
                target.findings.push(Finding { code: "exec".to_owned(), message });
                return false;
            }
        };
        target.findings.extend(findings);
        target.not_measurable = super::place::not_measurable(&plans);
        if self.all_in_place(process, &plans) {
            self.meet_paths(target.target, process.pid);
            target.allocators = plans.iter().map(|plan| plan.allocator).collect();
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
        self.meet_paths(target.target, process.pid);
        match self.place(process, &plans) {
            Ok((allocators, unplanned)) => {
                target.allocators = allocators;
                target.findings.extend(unplanned);
                let arming = Arming { from_start: false, follow };
                if let Err(error) = self.session.arm(process.pid, target.target, arming) {
                    tracing::warn!(pid = process.pid, %error, "cannot follow the new program");
                }
            }
            Err(error) => target.findings.push(Finding {
                code: "exec".to_owned(),
                message: format!("the program that it executes now cannot be probed: {error}"),
            }),
        }
        true
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

/// The target that an event begins. A process that is gone already has ended; its counts are in the maps.
fn successor(event: &Event, process: Option<&Process>, began: Began) -> Target {
    Target {
        target: event.target_b,
        pid: event.tgid,
        start_time: process.map_or(0, |process| process.start_time),
        comm: process.map_or_else(String::new, |process| process.comm.clone()),
        exe: process.map_or_else(String::new, |process| {
            printable(process.exe.as_os_str().as_encoded_bytes())
        }),
        container: None,
        began,
        ended: process.is_none().then_some(Ended::Exit(None)),
        process: None,
        allocators: Vec::new(),
        not_measurable: BTreeMap::new(),
        findings: Vec::new(),
    }
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
