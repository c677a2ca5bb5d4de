//! What `drainprof why` measures: memory all of the time, probes as deep as the budget allows, and where memory grows also
//! by which call stacks.
//!
//! Probes are placed at level `boundary` first. If they find something to explain, level `stacks` follows for the rest
//! of the time, in windows where it costs too much. Where no profile matches, one is drafted, and has the first part of
//! the time to prove itself.

mod begin;
mod drafting;
pub mod policy;
mod trial;

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use drainprof_probe::bpf::Detaching;
use drainprof_profile::{Level, Library};
use drainprof_report::{self as report, Report, units, why::Drafted};

use self::{
    begin::{Setting, begun, next, place},
    drafting::{Drafting, drafted},
    policy::{
        FAULTS, GROWN, LATEST_DRAFT, LEAST_DEEP, SHALLOW, growth, memory, probes, wants_more,
    },
    trial::{Judgement, Trial},
};
use crate::{
    ObserveError,
    engine::{Engine, Saving, Step},
    goal::{Growth, Host},
};

/// The measurement: goals in sequence, some of them at a time.
pub struct Sequence {
    setting: Setting,
    memory: Engine,
    /// Growth by call stack; begins when there is some.
    growth: Option<Engine>,
    probes: Option<Engine>,
    /// Whether it is still to be decided if growth is observed.
    may_grow: bool,
    /// Whether probes may still be replaced by deeper ones.
    may_deepen: bool,
    /// When they are.
    deepen_at: Instant,
    drafts: Option<PathBuf>,
    pids: Vec<u32>,
    /// The time counts from here.
    began: Instant,
    duration: Duration,
    reports: Vec<Report>,
    /// Probes on their way out.
    detaching: Vec<Detaching>,
    /// The draft that is being made.
    drafting: Option<Drafting>,
    /// The draft whose probes are in place, while it is not proven.
    trial: Option<Trial>,
    /// Beside the trial, the same closes as granules judge them themselves.
    live: Option<Engine>,
    draft: Option<Drafted>,
    undrafted: Option<String>,
    /// The share of one CPU because of which the draft was tried in parts of the time.
    tried_in_parts: Option<f64>,
    unseen: Vec<String>,
}

/// On which host it is measured, with which profiles, and how long.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The time for all. It counts from when memory is observed, of held processes from when they run.
    pub duration: Duration,
    /// Where drafts of profiles are saved; `None`: there are none.
    pub drafts: Option<PathBuf>,
    /// Whether the first processes stand at their first instructions.
    pub from_start: bool,
    /// What the host gives.
    pub host: Host,
    /// The profiles that there are.
    pub library: Library,
    /// Those that are used; empty: all that match.
    pub profiles: Vec<String>,
}

/// What was found.
#[derive(Debug)]
pub struct Found {
    /// Growth and memory of all processes.
    pub growth: Report,
    /// What the probes counted, at one level after the other.
    pub probes: Vec<Report>,
    /// The profile that was drafted, if there was need for one.
    pub draft: Option<Drafted>,
    /// Why no profile was drafted although none matched.
    pub undrafted: Option<String>,
    /// What could not be measured, in sentences.
    pub unseen: Vec<String>,
}

impl Sequence {
    /// Begins: all processes are observed when this returns.
    ///
    /// # Errors
    /// If the kernel side cannot be loaded, or none of the processes is there.
    pub fn begin(pids: &[u32], parts: Parts) -> Result<Self, ObserveError> {
        let Parts { duration, drafts, from_start, host, library, profiles } = parts;
        let setting = Setting::new(host, library, profiles);
        let memory = begun(pids, setting.without_profiles(&memory()), from_start)?;
        let began = Instant::now();
        let mut sequence = Self {
            pids: memory.running(),
            memory,
            growth: None,
            may_grow: true,
            setting,
            may_deepen: true,
            deepen_at: began + duration.mul_f64(SHALLOW),
            probes: None,
            drafts,
            began,
            duration,
            reports: Vec::new(),
            detaching: Vec::new(),
            drafting: None,
            trial: None,
            live: None,
            draft: None,
            undrafted: None,
            tried_in_parts: None,
            unseen: Vec::new(),
        };
        let pids = sequence.pids.clone();
        sequence.place_first(&pids, from_start);
        sequence.draft_first(&pids, from_start);
        if from_start {
            sequence.began = Instant::now();
            sequence.deepen_at = sequence.began + duration.mul_f64(SHALLOW);
        }
        Ok(sequence)
    }

    /// Places the first probes: those of the profiles that match.
    fn place_first(&mut self, pids: &[u32], from_start: bool) {
        let shallow = self.setting.with_profiles(&probes(Level::Boundary, None));
        self.probes = place(pids, shallow, from_start, &mut self.unseen);
    }

    /// Where no profile matches, has one drafted; a process that is held gets its probes now.
    fn draft_first(&mut self, pids: &[u32], from_start: bool) {
        let is_wanted = self.probes.is_none() && self.unseen.is_empty();
        let (true, Some(directory), Some(&first)) = (is_wanted, &self.drafts, pids.first()) else {
            return;
        };
        if from_start {
            let draft = Trial::begin(first, directory);
            return self.try_draft(draft, pids, from_start);
        }
        match Drafting::begin(first, directory.clone()) {
            Ok(drafting) => self.drafting = Some(drafting),
            Err(error) => self.undrafted = Some(error.to_string()),
        }
    }

    /// A draft is made: it is tried, if there is time for that.
    fn on_draft(&mut self, draft: Result<Trial, String>) {
        if draft.is_ok() && self.progress() > LATEST_DRAFT {
            return self.on_late_draft();
        }
        let pids = self.memory.running();
        self.try_draft(draft, &pids, false);
        self.deepen_at = Instant::now() + self.left().mul_f64(SHALLOW);
    }

    /// No draft is made in time.
    fn on_late_draft(&mut self) {
        self.unseen.push(format!(
            "no profile matches, and the program's functions were not read within {:.0} s, to draft one: observe longer",
            self.began.elapsed().as_secs_f64()
        ));
    }

    /// Places the probes of a draft.
    fn try_draft(&mut self, draft: Result<Trial, String>, pids: &[u32], from_start: bool) {
        let options = |trial: Trial| {
            let options = trial.options(&self.setting, &probes(trial.first_level(), None))?;
            Ok((trial, options))
        };
        match draft.and_then(options) {
            Ok((trial, options)) => {
                self.undrafted = None;
                self.probes = place(pids, options, from_start, &mut self.unseen);
                self.trial = self.probes.as_ref().map(|_| trial);
                self.place_live(pids, from_start);
            }
            Err(why) => self.undrafted = Some(why),
        }
    }

    /// Has closes judged by what granules say of themselves, too, if the draft knows where they say it.
    fn place_live(&mut self, pids: &[u32], from_start: bool) {
        let goal = probes(Level::Boundary, None);
        let options = self.trial.as_ref().map(|trial| trial.live_options(&self.setting, &goal));
        match options {
            Some(Ok(Some(options))) => {
                // Where it cannot be placed, the draft stands without it.
                self.live = place(pids, options, from_start, &mut Vec::new());
            }
            Some(Err(why)) => self.unseen.push(why),
            Some(Ok(None)) | None => {}
        }
    }

    /// Observes one more process, or goes on with one that executes another program now; it is held meanwhile.
    ///
    /// # Errors
    /// If the kernel side cannot be read, or does not take it.
    pub fn join(&mut self, pid: u32, from_start: bool) -> Result<(), ObserveError> {
        let (growth, probes) = (self.growth.as_mut(), self.probes.as_mut());
        let all = [Some(&mut self.memory), growth, probes, self.live.as_mut()];
        for engine in all.into_iter().flatten() {
            if engine.counts(pid) {
                // What it executes now is known to the kernel side.
                engine.turn(&mut ()).map_err(ObserveError::Wait)?;
                continue;
            }
            match engine.add(pid, from_start) {
                Ok(()) | Err(ObserveError::NoMatch { .. } | ObserveError::Target(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if self.probes.is_none() && self.may_deepen {
            self.place_first(&[pid], from_start);
            // What was forked runs its parent's program, of which no draft fits.
            if from_start {
                self.draft_first(&[pid], from_start);
            }
        }
        if !self.pids.contains(&pid) {
            self.pids.push(pid);
        }
        Ok(())
    }

    /// Observes until the time is up, or all processes have ended. Dropped earlier, nothing is lost.
    ///
    /// # Errors
    /// If the kernel side cannot be read.
    pub async fn run(&mut self) -> io::Result<()> {
        let end = tokio::time::Instant::from_std(self.began + self.duration);
        let mut no_sink = ();
        let grown = tokio::time::Instant::from_std(self.began + self.duration.mul_f64(SHALLOW));
        loop {
            let deepen = tokio::time::Instant::from_std(self.deepen_at);
            tokio::select! {
                step = self.memory.next(&mut no_sink) => {
                    if let Step::Ended(pid) = step? {
                        self.memory.ended(pid, None);
                        if self.memory.running().is_empty() {
                            return Ok(());
                        }
                    }
                }
                step = next(&mut self.growth) => {
                    if let (Step::Ended(pid), Some(growth)) = (step?, &mut self.growth) {
                        growth.ended(pid, None);
                    }
                }
                step = next(&mut self.probes) => {
                    let step = step?;
                    self.on_step(step)?;
                }
                step = next(&mut self.live) => match (step?, &mut self.live) {
                    (Step::Ended(pid), Some(live)) => live.ended(pid, None),
                    (Step::OverBudget(_), _) => drop(self.end_live()?),
                    _ => {}
                },
                draft = drafted(&mut self.drafting) => self.on_draft(draft),
                () = tokio::time::sleep_until(grown), if self.may_grow => self.look_closer(),
                () = tokio::time::sleep_until(deepen), if self.may_deepen && self.drafting.is_none() => {
                    self.deepen()?;
                }
                () = tokio::time::sleep_until(end) => return Ok(()),
            }
        }
    }

    /// How long all is observed.
    #[must_use]
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// How much of the time is over, from 0 to 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        (self.began.elapsed().as_secs_f64() / self.duration.as_secs_f64()).min(1.0)
    }

    fn on_step(&mut self, step: Step) -> io::Result<()> {
        let Some(probes) = &mut self.probes else { return Ok(()) };
        match step {
            Step::Ended(pid) => probes.ended(pid, None),
            Step::OverBudget(share) => {
                let saving = probes.spend_less(&mut (), share)?;
                match saving {
                    Saving::Nothing => {
                        let share = units::percent(share);
                        self.unseen
                            .push(format!("probes cost {share} of one CPU, and were taken out"));
                        drop(self.end_probes()?);
                    }
                    Saving::Duty(_) if self.trial.is_some() => self.tried_in_parts = Some(share),
                    _ => {}
                }
            }
            Step::CycleSkipped(error) => tracing::debug!(%error, "a window was skipped"),
            _ => {}
        }
        Ok(())
    }

    /// Observes growth by call stack, if there is some.
    fn look_closer(&mut self) {
        self.may_grow = false;
        let so_far = Report::build(&self.memory.snapshot(), &report::Options::default());
        let (mut grown, mut faults) = (0, 0.0);
        for memory in so_far.targets.iter().filter_map(|target| target.memory.as_ref()) {
            let (first, last) = (&memory.first, &memory.last);
            grown += last.rss_bytes.saturating_sub(first.rss_bytes);
            let seen = last.minor_faults.saturating_sub(first.minor_faults) as f64;
            faults += if memory.seconds > 0.0 { seen / memory.seconds } else { 0.0 };
        }
        if grown < GROWN {
            return;
        }
        let mut by = Growth::Stacks;
        if faults > FAULTS {
            by = Growth::Sums;
            self.unseen
                .push(format!("call stacks of growth: {faults:.0} page faults/s are too many"));
        }
        match begun(&self.memory.running(), self.setting.without_profiles(&growth(by)), false) {
            Ok(growth) => self.growth = Some(growth),
            Err(error) => self.unseen.push(format!("call stacks of growth: {error}")),
        }
    }

    /// Replaces the probes by those of level `stacks`, if there is something to explain.
    fn deepen(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.may_deepen) || self.left() < self.duration.mul_f64(LEAST_DEEP)
        {
            return Ok(());
        }
        let Some(engine) = &mut self.probes else { return Ok(()) };
        if self.trial.is_some() {
            return self.after_trial();
        }
        let so_far = Report::build(&engine.snapshot(), &report::Options::default());
        if !wants_more(&so_far) {
            return Ok(());
        }
        let pids = engine.running();
        drop(self.end_probes()?);
        let options = self.setting.with_profiles(&probes(Level::Stacks, Some(self.left())));
        self.probes = place(&pids, options, false, &mut self.unseen);
        Ok(())
    }

    fn left(&self) -> Duration {
        self.duration.saturating_sub(self.began.elapsed())
    }

    /// Ends the probes of a draft, and goes on with it as far as it was proven.
    fn after_trial(&mut self) -> io::Result<()> {
        let Some(engine) = &self.probes else { return Ok(()) };
        let pids = engine.running();
        let Some((mut trial, judgement)) = self.end_probes()? else { return Ok(()) };
        let (setting, left) = (&self.setting, Some(self.left()));
        let deep = probes(Level::Stacks, left);
        let next = match judgement {
            Judgement::Refused(_) => return Ok(()),
            Judgement::Bulk { .. } => {
                let undecided = self.draft.take().and_then(|draft| draft.against);
                self.unseen.extend(undecided);
                trial
                    .become_bulk()
                    .and_then(|()| trial.options(setting, &probes(trial.first_level(), left)))
            }
            Judgement::WrongBytes => {
                if let Some(draft) = &mut self.draft {
                    draft.against = None;
                }
                trial.leave_out_bytes().and_then(|()| trial.options(setting, &deep))
            }
            Judgement::Proven if !self.reports.iter().any(wants_more) => return Ok(()),
            Judgement::Proven => trial.options(setting, &deep),
        };
        match next {
            Ok(options) => {
                self.probes = place(&pids, options, false, &mut self.unseen);
                // As `bulk`, nothing speaks against it but what was seen already.
                self.draft = self.draft.take().or_else(|| Some(trial.drafted(None)));
            }
            Err(error) => self.unseen.push(error),
        }
        Ok(())
    }

    /// Ends the probes, and keeps what they have counted, unless they were a draft's that does not stand. Returns the
    /// draft and what became of it.
    fn end_probes(&mut self) -> io::Result<Option<(Trial, Judgement)>> {
        let Some(mut probes) = self.probes.take() else { return Ok(None) };
        let (mut snapshot, detaching) = probes.finish(&mut (), |_, _| ())?;
        self.detaching.extend(detaching);
        let report = Report::build(&snapshot, &report::Options::default());
        let Some(trial) = self.trial.take() else {
            self.reports.push(report);
            return Ok(None);
        };
        let judgement = trial.judge(&mut snapshot, &report);
        let stands = matches!(judgement, Judgement::Proven | Judgement::WrongBytes);
        let read = self.end_live()?;
        let live = read.and_then(|read| trial.judge_live(stands.then_some(&report), &read));
        let against = match &judgement {
            Judgement::Proven => {
                self.reports.push(report);
                None
            }
            Judgement::WrongBytes => {
                Some("what it took for the bytes of a granule cannot be that".to_owned())
            }
            Judgement::Bulk { pinned } => Some(format!(
                "{pinned} closes left live objects: freed by the close (kind bulk), or pins (kind drain)?"
            )),
            Judgement::Refused(why) => Some(why.clone()),
        };
        self.draft = Some(Drafted { live, ..trial.drafted(against) });
        Ok(Some((trial, judgement)))
    }

    /// Ends to observe how granules judge themselves, and returns what was counted.
    fn end_live(&mut self) -> io::Result<Option<Report>> {
        let Some(mut live) = self.live.take() else { return Ok(None) };
        let (snapshot, detaching) = live.finish(&mut (), |_, _| ())?;
        self.detaching.extend(detaching);
        Ok(Some(Report::build(&snapshot, &report::Options::default())))
    }

    /// Ends, and waits for names and until no probe is left.
    ///
    /// # Errors
    /// If the kernel side cannot be read.
    pub fn finish(mut self) -> io::Result<Found> {
        if self.drafting.take().is_some() {
            self.on_late_draft();
        }
        drop(self.end_probes()?);
        let (snapshot, detaching) = self.memory.finish(&mut (), |_, _| ())?;
        let mut growth = Report::build(&snapshot, &report::Options::default());
        self.detaching.extend(detaching);
        if let Some(mut by_paths) = self.growth.take() {
            let (snapshot, detaching) = by_paths.finish(&mut (), |_, _| ())?;
            self.detaching.extend(detaching);
            let by_paths = Report::build(&snapshot, &report::Options::default());
            for target in &mut growth.targets {
                let same = by_paths.targets.iter().find(|one| one.pid == target.pid);
                target.growth = same.and_then(|one| one.growth.clone());
            }
        }
        self.detaching.into_iter().for_each(Detaching::wait);
        self.unseen.extend(self.tried_in_parts.map(|share| {
            let share = units::percent(share);
            format!("the draft was tried in parts of the time: its probes cost {share} of one CPU")
        }));
        Ok(Found {
            growth,
            probes: self.reports,
            draft: self.draft,
            undrafted: self.undrafted,
            unseen: self.unseen,
        })
    }

    /// The processes that are observed.
    #[must_use]
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }
}
