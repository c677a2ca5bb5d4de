//! What `drainprof why` measures: memory all of the time, probes as deep as the budget allows, and where memory grows also
//! by which call stacks.
//!
//! Probes are placed at level `boundary` first. If they find something to explain, level `stacks` follows for the rest
//! of the time, in windows where it costs too much. Where no profile matches, one is drafted, and has the first part of
//! the time to prove itself.

mod begin;
mod drafting;
mod trial;

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use drainprof_probe::bpf::Detaching;
use drainprof_profile::Level;
use drainprof_report::{self as report, Report, why::Drafted};

use self::{
    begin::{at, begun, next, place, wants_more},
    drafting::{Drafting, drafted},
    trial::{Judgement, Trial},
};
use crate::{
    Observation, ObserveError,
    observation::{Options, Saving, Step},
};

/// The part of the time for level `boundary`, if another follows.
const SHALLOW: f64 = 1.0 / 3.0;
/// A draft that is made later than at this part of the time is not tried.
const LATEST_DRAFT: f64 = 1.0 / 2.0;
/// Probes are not replaced by deeper ones if less than this part of the time is left.
const LEAST_DEEP: f64 = 1.0 / 4.0;
/// Said once of a draft, however often less is spent on its trial.
const IN_PARTS: &str = "the draft was tried in parts of the time";
/// Call stacks are taken where resident memory has grown by so many bytes in that time.
const GROWN: u64 = 256 << 10;
/// Page faults per second of all processes above which call stacks are not taken: each costs some microseconds.
const FAULTS: f64 = 5_000.0;

/// The measurement.
pub struct Inquiry {
    memory: Observation,
    /// Growth by call stack; begins when there is some.
    growth: Option<Observation>,
    probes: Option<Observation>,
    /// How growth is observed; `None` once that was decided.
    growing: Option<Options>,
    /// How probes are placed.
    placing: Options,
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
    live: Option<Observation>,
    draft: Option<Drafted>,
    undrafted: Option<String>,
    unseen: Vec<String>,
}

/// How each part is observed, and how long.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The time for all. It counts from when memory is observed, of held processes from when they run.
    pub duration: Duration,
    /// Where drafts of profiles are saved; `None`: there are none.
    pub drafts: Option<PathBuf>,
    /// Whether the first processes stand at their first instructions.
    pub from_start: bool,
    /// Memory alone: no profile, no growth.
    pub memory: Options,
    /// Growth by call stack; no profile.
    pub growth: Options,
    /// Probes; with the budget.
    pub probes: Options,
}

/// What came of it.
#[derive(Debug)]
pub struct Inquired {
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

impl Inquiry {
    /// Begins: all processes are observed when this returns.
    ///
    /// # Errors
    /// If the kernel side cannot be loaded, or none of the processes is there.
    pub fn begin(pids: &[u32], parts: Parts) -> Result<Self, ObserveError> {
        let Parts { duration, drafts, from_start, memory, growth, probes } = parts;
        let memory = begun(pids, memory, from_start)?;
        let began = Instant::now();
        let mut inquiry = Self {
            pids: memory.running(),
            memory,
            growth: None,
            growing: Some(growth),
            placing: probes,
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
            unseen: Vec::new(),
        };
        let pids = inquiry.pids.clone();
        inquiry.place_first(&pids, from_start);
        inquiry.draft_first(&pids, from_start);
        if from_start {
            inquiry.began = Instant::now();
            inquiry.deepen_at = inquiry.began + duration.mul_f64(SHALLOW);
        }
        Ok(inquiry)
    }

    /// Places the first probes: those of the profiles that match.
    fn place_first(&mut self, pids: &[u32], from_start: bool) {
        // Whoever waits for names reads no memory meanwhile.
        let shallow = Options { symbols: None, ..at(&self.placing, Level::Boundary) };
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
            let options = trial.options(&self.placing, None)?;
            Ok((trial, Options { symbols: None, ..options }))
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
        let options = self.trial.as_ref().map(|trial| trial.live_options(&self.placing));
        match options {
            Some(Ok(Some(options))) => {
                let options = Options { symbols: None, ..options };
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
        for observation in all.into_iter().flatten() {
            if observation.counts(pid) {
                // What it executes now is known to the kernel side.
                observation.turn(&mut ()).map_err(ObserveError::Wait)?;
                continue;
            }
            match observation.add(pid, from_start) {
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
        let mut nobody = ();
        let grown = tokio::time::Instant::from_std(self.began + self.duration.mul_f64(SHALLOW));
        loop {
            let deepen = tokio::time::Instant::from_std(self.deepen_at);
            tokio::select! {
                step = self.memory.next(&mut nobody) => {
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
                    self.stepped(step)?;
                }
                step = next(&mut self.live) => match (step?, &mut self.live) {
                    (Step::Ended(pid), Some(live)) => live.ended(pid, None),
                    (Step::OverBudget(_), _) => drop(self.end_live()?),
                    _ => {}
                },
                draft = drafted(&mut self.drafting) => self.on_draft(draft),
                () = tokio::time::sleep_until(grown), if self.growing.is_some() => self.look_closer(),
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

    fn stepped(&mut self, step: Step) -> io::Result<()> {
        let Some(probes) = &mut self.probes else { return Ok(()) };
        match step {
            Step::Ended(pid) => probes.ended(pid, None),
            Step::OverBudget(share) => {
                let saving = probes.spend_less(&mut (), share)?;
                let share = report::units::percent(share);
                match saving {
                    Saving::Nothing => {
                        self.unseen
                            .push(format!("probes cost {share} of one CPU, and were taken out"));
                        drop(self.end_probes()?);
                    }
                    Saving::Duty(_) if self.trial.is_some() => {
                        self.unseen.retain(|said| !said.starts_with(IN_PARTS));
                        self.unseen.push(format!("{IN_PARTS}: its probes cost {share} of one CPU"));
                    }
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
        let Some(mut options) = self.growing.take() else { return };
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
        if faults > FAULTS {
            options.session.growth_paths = false;
            self.unseen
                .push(format!("call stacks of growth: {faults:.0} page faults/s are too many"));
        }
        match begun(&self.memory.running(), options, false) {
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
        let Some(probes) = &mut self.probes else { return Ok(()) };
        let mut options = at(&self.placing, Level::Stacks);
        if self.trial.is_some() {
            return self.after_trial(&options);
        }
        let so_far = Report::build(&probes.snapshot(), &report::Options::default());
        if !wants_more(&so_far) {
            return Ok(());
        }
        let pids = probes.running();
        drop(self.end_probes()?);
        options.duration = Some(self.left());
        self.probes = place(&pids, options, false, &mut self.unseen);
        Ok(())
    }

    fn left(&self) -> Duration {
        self.duration.saturating_sub(self.began.elapsed())
    }

    /// Ends the probes of a draft, and goes on with it as far as it was proven.
    fn after_trial(&mut self, options: &Options) -> io::Result<()> {
        let Some(probes) = &self.probes else { return Ok(()) };
        let pids = probes.running();
        let Some((mut trial, judgement)) = self.end_probes()? else { return Ok(()) };
        let next = match judgement {
            Judgement::Refused(_) => return Ok(()),
            Judgement::Bulk { .. } => {
                let undecided = self.draft.take().and_then(|draft| draft.against);
                self.unseen.extend(undecided);
                trial.become_bulk().and_then(|()| trial.options(options, None))
            }
            Judgement::WrongBytes => {
                if let Some(draft) = &mut self.draft {
                    draft.against = None;
                }
                trial.leave_out_bytes().and_then(|()| trial.options(options, Some(Level::Stacks)))
            }
            Judgement::Proven if !self.reports.iter().any(wants_more) => return Ok(()),
            Judgement::Proven => trial.options(options, Some(Level::Stacks)),
        };
        match next {
            Ok(options) => {
                let options = Options { duration: Some(self.left()), ..options };
                self.probes = place(&pids, options, false, &mut self.unseen);
                // As `bulk`, nothing speaks against it but what was seen already.
                self.draft = self.draft.take().or_else(|| Some(trial.told(None)));
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
        self.draft = Some(Drafted { live, ..trial.told(against) });
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
    pub fn finish(mut self) -> io::Result<Inquired> {
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
        Ok(Inquired {
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
