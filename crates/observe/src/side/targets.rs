//! The targets of a kernel side: process incarnations, each program that a process executes one of its own.

use std::collections::{BTreeMap, BTreeSet};

use drainprof_probe::plan::AttachPlan;
use drainprof_process::{Process, printable, readers::each};
use drainprof_profile::Finding;
use drainprof_report::facts::{Began, Ended, Frames, TargetFacts};

/// What is known of a program's processes before they are examined.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    comm: String,
    exe: String,
    probed: Probed,
}

impl Program {
    /// The names that its processes have: each may rename itself after it has begun.
    pub(super) fn names(&self) -> [&str; 2] {
        [&self.comm, self.exe.rsplit('/').next().unwrap_or_default()]
    }
}

/// Which allocators are observed in a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Probed {
    /// Those whose probes are in place.
    allocators: Vec<u32>,
    /// Those of which nothing can be said, with the reasons; no probe is in place for them.
    not_measurable: BTreeMap<u32, String>,
}

impl Probed {
    /// The plans of a process are carried out.
    pub(super) fn by(plans: &[AttachPlan]) -> Self {
        let because = |plan: &AttachPlan| Some((plan.allocator, plan.not_measurable.clone()?));
        Self {
            allocators: plans.iter().map(|plan| plan.allocator).collect(),
            not_measurable: plans.iter().filter_map(because).collect(),
        }
    }

    /// No probe is in place.
    pub(super) fn without_probes(&self) -> Self {
        Self { allocators: Vec::new(), not_measurable: self.not_measurable.clone() }
    }

    pub(super) fn allocators(&self) -> &[u32] {
        &self.allocators
    }

    pub(super) fn why_not(&self, allocator: u32) -> Option<&String> {
        self.not_measurable.get(&allocator)
    }
}

/// One process incarnation.
#[derive(Debug)]
pub(super) struct Target {
    /// What is reported of it, without counts.
    facts: TargetFacts,
    /// `None` for a process that was gone before it could be examined.
    process: Option<Process>,
    probed: Probed,
}

impl Target {
    /// A target under a number. A process that is gone already has ended; its counts are in the maps.
    pub(super) fn new(number: u32, pid: u32, began: Began, process: Option<&Process>) -> Self {
        let facts = TargetFacts {
            target: number,
            pid,
            start_time: process.map_or(0, |process| process.start_time),
            comm: process.map_or_else(String::new, |process| process.comm.clone()),
            exe: process.map_or_else(String::new, shown_exe),
            container: None,
            began,
            ended: process.is_none().then_some(Ended::exit(None)),
            rss_bytes: None,
            memory: None,
            allocators: Vec::new(),
            probes: Vec::new(),
            findings: Vec::new(),
            frames: Frames::new(),
            modules: Vec::new(),
            growth: None,
        };
        Self { facts, process: process.cloned(), probed: Probed::default() }
    }

    /// The same of a process in a container.
    pub(super) fn inside(mut self, container: Option<String>) -> Self {
        self.facts.container = container;
        self
    }

    pub(super) const fn number(&self) -> u32 {
        self.facts.target
    }

    pub(super) const fn pid(&self) -> u32 {
        self.facts.pid
    }

    pub(super) const fn is_running(&self) -> bool {
        self.facts.ended.is_none()
    }

    pub(super) const fn began(&self) -> Began {
        self.facts.began
    }

    pub(super) const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    pub(super) const fn probed(&self) -> &Probed {
        &self.probed
    }

    /// Whether a process is this one: not another with its number.
    pub(super) fn is(&self, process: &Process) -> bool {
        self.facts.start_time == process.start_time
    }

    /// Whether a process still executes this target's program.
    pub(super) fn executes(&self, process: &Process) -> bool {
        self.facts.exe == shown_exe(process)
    }

    /// What is known of its program.
    pub(super) fn program(&self) -> Program {
        let TargetFacts { comm, exe, .. } = &self.facts;
        Program { comm: comm.clone(), exe: exe.clone(), probed: self.probed.clone() }
    }

    /// It executes a known program. What its process itself says of its name comes first.
    pub(super) fn assume(&mut self, program: Program) {
        if self.process.is_none() {
            (self.facts.comm, self.facts.exe) = (program.comm, program.exe);
        }
        self.probed = program.probed;
    }

    /// It was forked, and executes its parent's program.
    pub(super) fn inherit(&mut self, parent: Program) {
        let exe = parent.exe.clone();
        self.assume(parent);
        self.facts.exe = exe;
    }

    /// It was examined again; it may have another name now.
    pub(super) fn meet(&mut self, process: Process) {
        self.facts.comm.clone_from(&process.comm);
        self.process = Some(process);
    }

    pub(super) fn set_probed(&mut self, probed: Probed) {
        self.probed = probed;
    }

    /// It ends, if it has not.
    pub(super) fn end(&mut self, how: Ended) {
        self.facts.ended.get_or_insert(how);
    }

    /// All that was counted is dropped: the observation begins now.
    fn begin_again(&mut self) {
        self.facts.began = Began::Attached;
    }

    pub(super) fn findings(&mut self) -> &mut Vec<Finding> {
        &mut self.facts.findings
    }

    /// Notes something once.
    pub(super) fn note(&mut self, finding: Finding) {
        if !self.facts.findings.contains(&finding) {
            self.facts.findings.push(finding);
        }
    }

    /// What is reported of it, without counts; `rss_bytes` if it runs.
    pub(super) fn facts(&self, rss_bytes: Option<u64>) -> TargetFacts {
        let rss_bytes = rss_bytes.filter(|_| self.is_running());
        TargetFacts { rss_bytes, ..self.facts.clone() }
    }
}

fn shown_exe(process: &Process) -> String {
    printable(process.exe.as_os_str().as_encoded_bytes())
}

/// All targets, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Targets(Vec<Target>);

impl Targets {
    pub(super) fn push(&mut self, target: Target) {
        self.0.push(target);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Target> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        self.0.iter_mut()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, number: u32) -> Option<&Target> {
        self.iter().find(|target| target.number() == number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Target> {
        self.iter_mut().find(|target| target.number() == number)
    }

    /// Those that have not ended.
    pub(super) fn running(&self) -> impl Iterator<Item = &Target> {
        self.iter().filter(|target| target.is_running())
    }

    /// The target that a process is now.
    pub(super) fn of_pid(&self, pid: u32) -> Option<&Target> {
        self.running().find(|target| target.pid() == pid)
    }

    /// Number and process of those that have not ended.
    pub(super) fn living(&self) -> Vec<(u32, u32)> {
        self.running().map(|target| (target.number(), target.pid())).collect()
    }

    pub(super) fn ended(&self) -> BTreeSet<u32> {
        let ended = self.iter().filter(|target| !target.is_running());
        ended.map(Target::number).collect()
    }

    pub(super) fn has_ended(&self, number: u32) -> bool {
        self.get(number).is_some_and(|target| !target.is_running())
    }

    /// A process ends.
    pub(super) fn end(&mut self, pid: u32, how: Ended) {
        let running = |target: &&mut Target| target.pid() == pid && target.is_running();
        if let Some(target) = self.iter_mut().find(running) {
            target.end(how);
        }
    }

    /// Takes a target out, to put it back in its place.
    pub(super) fn take(&mut self, number: u32) -> Option<(usize, Target)> {
        let at = self.0.iter().position(|target| target.number() == number)?;
        Some((at, self.0.remove(at)))
    }

    pub(super) fn put_back(&mut self, (at, target): (usize, Target)) {
        self.0.insert(at, target);
    }

    /// Takes out the targets that are over.
    pub(super) fn extract(&mut self, is_over: impl Fn(&Target) -> bool) -> Vec<Target> {
        let (gone, kept) = std::mem::take(&mut self.0).into_iter().partition(is_over);
        self.0 = kept;
        gone
    }

    /// What has ended is forgotten, and the others begin to be observed now.
    pub(super) fn begin_again(&mut self) {
        self.0.retain(Target::is_running);
        self.0.iter_mut().for_each(Target::begin_again);
    }

    /// The least number that is above all of them.
    pub(super) fn next_number(&self) -> u32 {
        self.iter().map(|target| target.number() + 1).max().unwrap_or_default()
    }

    /// Resident memory of the processes that run, bytes.
    pub(super) fn resident(&self) -> BTreeMap<u32, u64> {
        let running: Vec<Process> =
            self.running().filter_map(|target| target.process().cloned()).collect();
        let numbers: Vec<(u32, usize)> =
            running.iter().enumerate().map(|(at, process)| (process.pid, at)).collect();
        let read = each(numbers, move |_, at| running.get(at)?.rss_bytes().ok());
        read.into_iter().filter_map(|(pid, bytes)| Some((pid, bytes?))).collect()
    }

    /// All of them as they are reported, without counts.
    pub(super) fn facts(&self) -> Vec<TargetFacts> {
        let resident = self.resident();
        let facts = |target: &Target| target.facts(resident.get(&target.pid()).copied());
        self.iter().map(facts).collect()
    }
}
