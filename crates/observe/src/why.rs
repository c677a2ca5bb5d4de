//! What `drainprof why` measures: memory all of the time, probes as deep as the budget allows, and where memory grows also
//! by which call stacks.
//!
//! Probes are placed at level `boundary` first. If they find something to explain, level `stacks` follows for the rest
//! of the time, in windows where it costs too much. Where no profile matches, one is drafted, and has the first part of
//! the time to prove itself.

mod trial;

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use drainprof_probe::bpf::Detaching;
use drainprof_profile::{Kind, Level};
use drainprof_report::{self as report, Report, why::Drafted};

use self::trial::{Judgement, Trial};
use crate::{
    Observation, ObserveError,
    observation::{Options, Saving, Step},
};

/// The part of the time for level `boundary`, if another follows.
const SHALLOW: f64 = 1.0 / 3.0;
/// Call stacks are taken where resident memory has grown by so many bytes in that time.
const GROWN: u64 = 256 << 10;

/// The measurement.
pub struct Inquiry {
    memory: Observation,
    /// Growth by call stack; begins when there is some.
    growth: Option<Observation>,
    probes: Option<Observation>,
    /// How growth is observed; `None` once that was decided.
    growing: Option<Options>,
    /// How to go deeper; `None` once that was done or is not wanted.
    deeper: Option<Options>,
    pids: Vec<u32>,
    began: Instant,
    duration: Duration,
    reports: Vec<Report>,
    /// Probes on their way out.
    detaching: Vec<Detaching>,
    /// The draft whose probes are in place, while it is not proven.
    trial: Option<Trial>,
    draft: Option<Drafted>,
    undrafted: Option<String>,
    unseen: Vec<String>,
}

/// How each part is observed.
#[derive(Clone, Debug)]
pub struct Parts {
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
    /// Begins: all processes are observed when this returns. Drafts of profiles are saved in `drafts`; `None`: there are
    /// none.
    ///
    /// # Errors
    /// If the kernel side cannot be loaded, or none of the processes is there.
    pub fn begin(
        pids: &[u32],
        duration: Duration,
        Parts { memory, growth, probes }: Parts,
        drafts: Option<&Path>,
    ) -> Result<Self, ObserveError> {
        let probes = &probes;
        let memory = begun(pids, memory)?;
        let mut unseen = Vec::new();
        // Whoever waits for names reads no memory meanwhile.
        let shallow = Options { symbols: None, ..at(probes, Level::Boundary) };
        let pids = memory.running();
        let mut placed = place(&pids, shallow, &mut unseen);
        let (mut trial, mut undrafted) = (None, None);
        if let (None, true, Some(directory)) = (&placed, unseen.is_empty(), drafts) {
            match tried(&pids, probes, directory) {
                Ok((begun, options)) => {
                    placed = place(&pids, options, &mut unseen);
                    trial = placed.as_ref().map(|_| begun);
                }
                Err(why) => undrafted = Some(why),
            }
        }
        Ok(Self {
            pids,
            memory,
            growth: None,
            growing: Some(growth),
            deeper: placed.as_ref().map(|_| at(probes, Level::Stacks)),
            probes: placed,
            began: Instant::now(),
            duration,
            reports: Vec::new(),
            detaching: Vec::new(),
            trial,
            draft: None,
            undrafted,
            unseen,
        })
    }

    /// Observes until the time is up, or all processes have ended. Dropped earlier, nothing is lost.
    ///
    /// # Errors
    /// If the kernel side cannot be read.
    pub async fn run(&mut self) -> io::Result<()> {
        let end = tokio::time::Instant::from_std(self.began + self.duration);
        let mut nobody = ();
        loop {
            let deepen = self.began + self.duration.mul_f64(SHALLOW);
            let deepen = tokio::time::Instant::from_std(deepen);
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
                () = tokio::time::sleep_until(deepen), if self.growing.is_some() => {
                    self.look_closer();
                    self.deepen()?;
                }
                () = tokio::time::sleep_until(end) => return Ok(()),
            }
        }
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
            Step::OverBudget(share) if probes.spend_less(&mut (), share)? == Saving::Nothing => {
                let share = report::units::percent(share);
                self.unseen.push(format!("probes cost {share} of one CPU, and were taken out"));
                drop(self.end_probes()?);
            }
            Step::CycleSkipped(error) => tracing::debug!(%error, "a window was skipped"),
            _ => {}
        }
        Ok(())
    }

    /// Observes growth by call stack, if there is some.
    fn look_closer(&mut self) {
        let Some(options) = self.growing.take() else { return };
        let so_far = Report::build(&self.memory.snapshot(), &report::Options::default());
        let memories = so_far.targets.iter().filter_map(|target| target.memory.as_ref());
        let grown =
            |memory: &report::Memory| memory.last.rss_bytes.saturating_sub(memory.first.rss_bytes);
        if memories.map(grown).sum::<u64>() < GROWN {
            return;
        }
        match begun(&self.memory.running(), options) {
            Ok(growth) => self.growth = Some(growth),
            Err(error) => self.unseen.push(format!("call stacks of growth: {error}")),
        }
    }

    /// Replaces the probes by those of level `stacks`, if there is something to explain.
    fn deepen(&mut self) -> io::Result<()> {
        let Some(mut options) = self.deeper.take() else { return Ok(()) };
        let Some(probes) = &mut self.probes else { return Ok(()) };
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
        self.probes = place(&pids, options, &mut self.unseen);
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
            Judgement::Proven if !self.reports.iter().any(wants_more) => return Ok(()),
            Judgement::Proven => trial.options(options, Some(Level::Stacks)),
        };
        match next {
            Ok(options) => {
                let options = Options { duration: Some(self.left()), ..options };
                self.probes = place(&pids, options, &mut self.unseen);
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
        let against = match &judgement {
            Judgement::Proven => {
                self.reports.push(report);
                None
            }
            Judgement::Bulk { pinned } => Some(format!(
                "{pinned} closes left live objects: freed by the close (kind bulk), or pins (kind drain)?"
            )),
            Judgement::Refused(why) => Some(why.clone()),
        };
        self.draft = Some(trial.told(against));
        Ok(Some((trial, judgement)))
    }

    /// Ends, and waits for names and until no probe is left.
    ///
    /// # Errors
    /// If the kernel side cannot be read.
    pub fn finish(mut self) -> io::Result<Inquired> {
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

/// Observes processes, of which some may have ended.
fn begun(pids: &[u32], options: Options) -> Result<Observation, ObserveError> {
    let mut observation = Observation::new(options)?;
    let mut gone = None;
    for &pid in pids {
        match observation.add(pid, false) {
            Err(ObserveError::Target(error)) => gone = Some(error),
            added => added?,
        }
    }
    if let Some(error) = gone.filter(|_| observation.running().is_empty()) {
        return Err(error.into());
    }
    observation.start();
    Ok(observation)
}

fn at(options: &Options, level: Level) -> Options {
    let mut options = options.clone();
    options.observer.level = Some(level);
    options
}

/// Drafts a profile for the first of the processes.
fn tried(pids: &[u32], probes: &Options, directory: &Path) -> Result<(Trial, Options), String> {
    let first = pids.first().copied().unwrap_or_default();
    let trial = Trial::begin(first, directory)?;
    let options = Options { symbols: None, ..trial.options(probes, None)? };
    Ok((trial, options))
}

/// Places probes in all processes that a profile matches; `None` where there is none.
fn place(pids: &[u32], options: Options, unseen: &mut Vec<String>) -> Option<Observation> {
    let mut say = |error: &ObserveError| {
        let text = format!("no probes: {error}");
        tracing::debug!("{text}");
        if !unseen.contains(&text) {
            unseen.push(text);
        }
    };
    let mut probes = match Observation::new(options) {
        Ok(probes) => probes,
        Err(error) => {
            say(&error);
            return None;
        }
    };
    for &pid in pids {
        match probes.add(pid, false) {
            Ok(()) | Err(ObserveError::NoMatch { .. } | ObserveError::Target(_)) => {}
            Err(error) => say(&error),
        }
    }
    (probes.attached() > 0).then(|| {
        probes.start();
        probes
    })
}

/// Whether a deeper level would say more: something is pinned, or could not be decided.
fn wants_more(report: &Report) -> bool {
    let allocators = report.targets.iter().flat_map(|target| &target.allocators);
    allocators.filter(|allocator| allocator.not_measurable.is_none()).any(|allocator| {
        let granules = &allocator.granules;
        let undecided = granules.decided() == 0 && granules.unknown > 0;
        allocator.kind == Kind::Drain && (granules.pinned > 0 || undecided)
            || allocator.overdue.granules > 0
    })
}

async fn next(probes: &mut Option<Observation>) -> io::Result<Step> {
    match probes {
        Some(probes) => probes.next(&mut ()).await,
        None => std::future::pending().await,
    }
}
