//! Windows: the driver's side of a duty cycle, and of detaching in the background.
//!
//! Talks on stderr when a window begins, and when the last of its probes is gone.

use drainprof_observe::Resting;
use drainprof_probe::bpf::Detaching;
use drainprof_report::facts::Duty;
use tokio::{task::JoinHandle, time::Instant};

use super::drive::{Driver, Rings, Stage};

/// Probes on their way out; by default there are none.
#[derive(Default)]
pub(super) struct Leaving(Option<JoinHandle<()>>);

impl Leaving {
    /// Waits on a thread of the runtime's.
    pub(super) fn of(detaching: Detaching) -> Self {
        Self(Some(tokio::task::spawn_blocking(move || detaching.wait())))
    }

    /// Returns once the probes are gone.
    pub(super) async fn wait(mut self) {
        self.gone().await;
    }

    async fn gone(&mut self) {
        if let Some(task) = &mut self.0 {
            // It only waits for a thread.
            let _ = task.await;
        }
    }
}

/// Where a duty cycle stands.
pub(super) struct Cycle {
    duty: Duty,
    /// When the last window began.
    began: Instant,
    /// When the next change is due.
    turn: Option<Instant>,
    /// The probes of the last window, as long as they are not gone.
    leaving: Option<Leaving>,
}

impl Cycle {
    /// Nothing happens before [`Cycle::began`].
    pub(super) fn new(duty: Duty) -> Self {
        Self { duty, began: Instant::now(), turn: None, leaving: None }
    }

    /// The probes of the last window, as long as they are not gone.
    pub(super) fn leaving(self) -> Option<Leaving> {
        self.leaving
    }

    fn began(&mut self) {
        self.began = Instant::now();
        self.turn = Some(self.began + self.duty.on);
    }

    /// Returns when the next window is to begin or this one to end; when the probes are gone, with
    /// `false`. Not before all probes of a window are gone does the next begin.
    async fn due(&mut self) -> bool {
        if let Some(leaving) = &mut self.leaving {
            leaving.gone().await;
            self.leaving = None;
            return false;
        }
        super::drive::until(self.turn).await;
        true
    }
}

/// Waits for the next change of a duty cycle; without one, for ever.
pub(super) async fn due(cycle: &mut Option<Cycle>) -> bool {
    match cycle {
        Some(cycle) => cycle.due().await,
        None => std::future::pending().await,
    }
}

impl Driver {
    /// The first window begins.
    pub(super) fn first_window(&mut self) {
        if let Some(cycle) = &mut self.cycle {
            cycle.began();
            self.say_begin();
        }
    }

    fn say_begin(&self) {
        let (Stage::Watching { observer, .. }, Some(cycle)) = (&self.stage, &self.cycle) else {
            return;
        };
        eprintln!(
            "drainprof: window {} begins, for {:?}: {} probes in {}",
            observer.windows(),
            cycle.duty.on,
            observer.attached(),
            observer.running().iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        );
    }

    /// The probes of the last window are gone.
    pub(super) fn say_end(&self) {
        let (Stage::Resting(resting), Some(cycle)) = (&self.stage, &self.cycle) else { return };
        let left = cycle.turn.map(|turn| turn.saturating_duration_since(Instant::now()));
        eprintln!(
            "drainprof: window {} has ended, no probe is left; the next begins in {:.1} s",
            resting.windows(),
            left.unwrap_or_default().as_secs_f64()
        );
    }

    /// Ends the window, or begins the next.
    pub(super) async fn turn(&mut self) -> anyhow::Result<()> {
        if matches!(self.stage, Stage::Watching { .. }) {
            self.stop().await?;
            self.interval()?;
        }
        let Some(cycle) = &mut self.cycle else { return Ok(()) };
        match std::mem::replace(&mut self.stage, Stage::Changing) {
            Stage::Watching { observer, rings } => {
                drop(rings);
                let (resting, detaching) = observer.rest();
                cycle.leaving = Some(Leaving::of(detaching));
                cycle.turn = Some(cycle.began + cycle.duty.period);
                self.stage = Stage::Resting(Box::new(resting));
            }
            Stage::Resting(resting) => {
                self.stage = begin(resting);
                if matches!(self.stage, Stage::Watching { .. }) {
                    cycle.began();
                    self.say_begin();
                } else {
                    cycle.turn = Some(Instant::now() + cycle.duty.period);
                }
            }
            Stage::Changing => {}
        }
        Ok(())
    }
}

/// Begins a window. A machine that cannot give the kernel side now may be able to later: what was measured
/// so far is not given up for it.
fn begin(resting: Box<Resting>) -> Stage {
    let loaded = resting.load().map_err(anyhow::Error::from).and_then(|session| {
        let rings = Rings::of(&session)?;
        Ok((session, rings))
    });
    match loaded {
        Ok((session, rings)) => {
            Stage::Watching { observer: Box::new(resting.wake(session)), rings }
        }
        Err(error) => {
            eprintln!("drainprof: a window is left out, the next is tried: {error:#}");
            Stage::Resting(resting)
        }
    }
}
