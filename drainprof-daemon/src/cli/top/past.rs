//! States of the past, out of a daemon's history.

use std::path::Path;

use drainprof_node::{
    Answer, NodeState, Refusal, Request,
    store::{History, Moment, Readings, StoreError},
};

use crate::ui::{Seen, Source, SourceError, Step, past::state_of};

/// Milliseconds of a long step.
const FAR: u64 = 10 * 60_000;
/// How far back readings are taken for what they say of growth.
const GROWTH: u64 = 30 * 60_000;
/// Windows that are listed at most.
const WINDOWS: u32 = 1000;

/// A history, at one of its states.
#[derive(Debug)]
pub(super) struct Past {
    history: History,
    at: Moment,
}

impl Past {
    /// The history in this file at a time, in milliseconds since 1970: at the last state before it, else at the first.
    pub(super) fn open(path: &Path, unix_ms: u64) -> Result<Self, StoreError> {
        let history = History::open(path)?;
        let at = match history.moment_at(unix_ms)? {
            Some(moment) => Some(moment),
            None => first(&history)?,
        };
        let at = at.ok_or_else(|| StoreError::None { path: path.display().to_string() })?;
        Ok(Self { history, at })
    }

    /// The state that it is at.
    pub(super) fn seen(&self) -> Result<Seen, StoreError> {
        let now = self.at.unix_ms;
        let readings = self.history.readings(now.saturating_sub(GROWTH), now)?;
        let mut windows = self.history.windows(WINDOWS)?;
        windows.retain(|window| window.began_unix_ms <= now);
        windows.reverse();
        // Counters start at zero with each daemon: rates leave out what falls.
        let before = self.history.moment_at(now.saturating_sub(1))?;
        Ok(Seen {
            state: state_of(&self.at, &readings, windows),
            before: before.map(|before| state_of(&before, &Readings::new(), Vec::new())),
        })
    }

    fn go(&mut self, step: Step) -> Result<Result<Seen, &'static str>, StoreError> {
        let now = self.at.unix_ms;
        let there = match step {
            Step::Back => self.history.moment_at(now.saturating_sub(1))?,
            Step::FarBack => match self.history.moment_at(now.saturating_sub(FAR))? {
                Some(moment) => Some(moment),
                None => first(&self.history)?,
            },
            Step::Forth => match self.history.next_after(now)? {
                Some(time) => self.history.moment_at(time)?,
                None => None,
            },
            Step::FarForth => self.history.moment_at(now.saturating_add(FAR))?,
        };
        match there.filter(|moment| moment.unix_ms != now) {
            Some(moment) => {
                self.at = moment;
                Ok(Ok(self.seen()?))
            }
            None if matches!(step, Step::Back | Step::FarBack) => {
                Ok(Err("the history begins here"))
            }
            None => Ok(Err("this is the latest state of the history")),
        }
    }
}

fn first(history: &History) -> Result<Option<Moment>, StoreError> {
    match history.next_after(0)? {
        Some(time) => history.moment_at(time),
        None => Ok(None),
    }
}

fn reported(error: StoreError) -> SourceError {
    SourceError::new(format!("{:#}", anyhow::Error::from(error)))
}

impl Source for Past {
    fn name(&self) -> &'static str {
        "history"
    }

    fn poll(&mut self) -> Result<Option<NodeState>, SourceError> {
        Ok(None)
    }

    fn step(&mut self, step: Step) -> Result<Option<Seen>, SourceError> {
        match self.go(step).map_err(reported)? {
            Ok(seen) => Ok(Some(seen)),
            Err(end) => Err(SourceError::new(end)),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Result<Answer, Refusal>, SourceError> {
        let Request::WindowReport { id } = request else {
            let message = "this is the past, which has no probes: `drainprof top` without --at starts windows; \
                 Tab lists those that there were";
            return Ok(Err(Refusal::NotNow { message: message.to_owned() }));
        };
        let message = || format!("no report of window {id} is kept");
        let report = self.history.window_report(*id).map_err(reported)?;
        Ok(report
            .map(|report| Answer::Report { report: Box::new(report) })
            .ok_or_else(|| Refusal::NotFound { message: message() }))
    }
}
