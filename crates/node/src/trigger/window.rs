//! When a diagnostic window may be opened.
//!
//! One at a time per process and so many on the node, for rules and users alike. What rules ask for must also wait for
//! the process's cool-down and must fit into the node's budget of seconds per hour. What a user asks for need not, but
//! counts: the daemon need not open another one beside it. The budget holds in every hour, so what was spent is kept
//! with its times: an account could save, and spend twice as much in one hour.

use std::collections::{BTreeMap, VecDeque};

use drainprof_report::units;

use crate::{Refusal, config::Window as WindowConfig};

/// Who asks for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A rule.
    Rule,
    /// A user, over the command line, a signal, the socket or HTTP.
    User,
}

/// A window that may be opened, and is counted as open from now on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grant {
    /// When it ends, on the clock of the question.
    pub until: f64,
    /// How long it lasts, seconds.
    pub seconds: f64,
}

/// Why no window may be opened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// Not now.
    #[error("{why}; it can be tried again {}", again(*.seconds))]
    NotNow {
        /// Why.
        why: String,
        /// In so many seconds it can be tried again; `None`: that depends on others.
        seconds: Option<f64>,
    },
    /// Never as it was asked for.
    #[error("{0}")]
    Wrong(String),
}

fn again(seconds: Option<f64>) -> String {
    match seconds {
        Some(seconds) => format!("in {}", units::duration(seconds.max(0.0).ceil())),
        None => "after the configuration was changed".to_owned(),
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::NotNow { .. } => Self::NotNow { message },
            Refused::Wrong(_) => Self::Failed { message },
        }
    }
}

/// The windows of the node: those that run, and what is remembered of those that have. `K` names a process.
#[derive(Clone, Debug)]
pub struct Windows<K> {
    running: Vec<Running<K>>,
    /// When each process's last window ended.
    ended: BTreeMap<K, f64>,
    /// The windows of the last hour, the oldest first.
    spent: VecDeque<Spent>,
    /// The number of the last one.
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running<K> {
    key: K,
    number: u64,
    began: f64,
    until: f64,
}

#[derive(Clone, Copy, Debug)]
struct Spent {
    number: u64,
    began: f64,
    seconds: f64,
}

const HOUR_SECONDS: f64 = 3600.0;
/// Windows that are remembered one by one; of more in an hour, the oldest two count as one.
const MAX_REMEMBERED: usize = 1024;

impl<K> Default for Windows<K> {
    fn default() -> Self {
        Self { running: Vec::new(), ended: BTreeMap::new(), spent: VecDeque::new(), number: 0 }
    }
}

impl<K: Copy + Ord> Windows<K> {
    /// No windows yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for a window at `now` (seconds on a monotonic clock). A window that is granted is open until [`Windows::end`] is called, even past its time.
    ///
    /// # Errors
    /// Why not, and when it can be tried again.
    pub fn ask(
        &mut self,
        config: &WindowConfig,
        now: f64,
        key: K,
        by: By,
        seconds: Option<f64>,
    ) -> Result<Grant, Refused> {
        let seconds = length(config, by, seconds)?;
        if !now.is_finite() {
            return Err(Refused::Wrong("the time of the question is no time".to_owned()));
        }
        self.forget(config, now);
        if let Some(running) = self.running.iter().find(|running| running.key == key) {
            let why = "a diagnostic window of this process is running".to_owned();
            return Err(Refused::NotNow { why, seconds: Some(running.until - now) });
        }
        if self.running.len() >= config.at_once as usize {
            let first = self.running.iter().map(|running| running.until).reduce(f64::min);
            let why = format!(
                "{}, and no more than {} may run at once",
                units::counted(
                    self.running.len() as u64,
                    "diagnostic window is running",
                    "diagnostic windows are running"
                ),
                config.at_once
            );
            return Err(Refused::NotNow { why, seconds: first.map(|until| until - now) });
        }
        if by == By::Rule {
            self.cool(config, now, key)?;
            self.afford(config, now, seconds)?;
        }
        self.charge(now, seconds);
        let until = now + seconds;
        self.running.push(Running { key, number: self.number, began: now, until });
        Ok(Grant { until, seconds })
    }

    /// A window has ended, in time or not; the time that it did not take is given back.
    pub fn end(&mut self, now: f64, key: K) {
        let Some(place) = self.running.iter().position(|running| running.key == key) else {
            return;
        };
        let running = self.running.swap_remove(place);
        if !now.is_finite() {
            return;
        }
        self.ended.insert(key, now);
        let left = (running.until - now).clamp(0.0, running.until - running.began);
        if let Some(spent) = self.spent.iter_mut().find(|spent| spent.number == running.number) {
            spent.seconds = (spent.seconds - left).max(0.0);
        }
    }

    /// When the running window of a process ends.
    #[must_use]
    pub fn until(&self, key: K) -> Option<f64> {
        self.running.iter().find(|running| running.key == key).map(|running| running.until)
    }

    /// Windows that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    fn cool(&self, config: &WindowConfig, now: f64, key: K) -> Result<(), Refused> {
        let Some(ended) = self.ended.get(&key) else { return Ok(()) };
        let left = ended + config.cooldown.as_seconds() - now;
        if left <= 0.0 {
            return Ok(());
        }
        let why = format!(
            "the last diagnostic window of this process ended {} ago, and the cool-down is {}",
            units::duration((now - ended).max(0.0).round()),
            config.cooldown
        );
        Err(Refused::NotNow { why, seconds: Some(left) })
    }

    /// Whether `seconds` more fit into the budget.
    fn afford(&self, config: &WindowConfig, now: f64, seconds: f64) -> Result<(), Refused> {
        let budget = config.budget_per_hour.as_seconds();
        let mut spent: f64 = self.spent.iter().map(|spent| spent.seconds).sum();
        if spent + seconds <= budget {
            return Ok(());
        }
        let why = format!(
            "windows of the last hour took {} of the budget of {}, and this one would take {}",
            units::duration(spent),
            config.budget_per_hour,
            units::duration(seconds)
        );
        let mut again = None;
        for old in &self.spent {
            spent -= old.seconds;
            if spent + seconds <= budget {
                again = Some(old.began + HOUR_SECONDS - now);
                break;
            }
        }
        Err(Refused::NotNow { why, seconds: again })
    }

    fn charge(&mut self, now: f64, seconds: f64) {
        if self.spent.len() >= MAX_REMEMBERED
            && let (Some(oldest), Some(next)) = (self.spent.pop_front(), self.spent.front_mut())
        {
            next.seconds += oldest.seconds;
        }
        self.number += 1;
        self.spent.push_back(Spent { number: self.number, began: now, seconds });
    }

    /// Forgets what no longer counts.
    fn forget(&mut self, config: &WindowConfig, now: f64) {
        let cooldown = config.cooldown.as_seconds();
        self.ended.retain(|_, ended| now - *ended < cooldown);
        while self.spent.front().is_some_and(|spent| now - spent.began >= HOUR_SECONDS) {
            self.spent.pop_front();
        }
    }
}

fn length(config: &WindowConfig, by: By, asked: Option<f64>) -> Result<f64, Refused> {
    let Some(seconds) = asked else { return Ok(config.length.as_seconds()) };
    let longest = match by {
        By::User => config.longest,
        By::Rule => config.length,
    };
    if seconds >= 1.0 && seconds <= longest.as_seconds() {
        return Ok(seconds);
    }
    Err(Refused::Wrong(format!(
        "a diagnostic window lasts from 1s to {longest}, not {seconds} seconds; `longest` in the configuration allows longer ones"
    )))
}

#[cfg(test)]
mod tests;
