//! The states of all rules for one process.

use super::{
    rule::Condition,
    rules::{Config, RULES, Row, Watch},
    signals::Signals,
};
use crate::{Alert, AlertState};

/// How far a rule has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Its condition does not hold, or is not known.
    #[default]
    Inactive,
    /// It holds, but not yet for long enough.
    Pending,
    /// It has fired, and has not ended.
    Firing,
}

/// A rule's state.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleState {
    /// The rule's name.
    pub rule: &'static str,
    /// How far it has come.
    pub state: State,
    /// Since when it is in this state, in seconds on the clock of [`Signals::at`].
    pub since: f64,
    /// What it has seen last, in one sentence with numbers; empty while inactive.
    pub message: String,
}

/// A diagnostic window that a rule wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The rule's name.
    pub rule: &'static str,
    /// Whether it fires in all processes of a control group at once, and one window serves them all.
    pub shared: bool,
    /// Why, in one sentence.
    pub why: String,
}

/// What watches one process. It remembers a few kilobytes at most.
#[derive(Debug)]
pub struct Engine {
    watches: Vec<Watching>,
    last: Option<f64>,
}

#[derive(Debug)]
struct Watching {
    rule: &'static Row,
    watch: Box<dyn Watch>,
    now: RuleState,
    /// When it last saw anything.
    seen: f64,
    /// Since when what it wants has been given to it.
    served: Option<f64>,
    /// Whether it opens windows.
    window: bool,
}

/// A firing rule that sees nothing any more ends after this time, seconds.
const BLIND_SECONDS: f64 = 600.0;
/// After a gap longer than this between checks, a condition has not been seen to hold, seconds.
const GAP_SECONDS: f64 = 60.0;

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine {
    /// Watches a process of which nothing is known.
    #[must_use]
    pub fn new() -> Self {
        let watches = RULES.iter().map(|rule| Watching {
            rule,
            watch: (rule.start)(),
            now: RuleState {
                rule: rule.name,
                state: State::Inactive,
                since: 0.0,
                message: String::new(),
            },
            seen: 0.0,
            served: None,
            window: false,
        });
        Self { watches: watches.collect(), last: None }
    }

    /// Checks once. The configuration may be another one than last time.
    pub fn check(&mut self, config: &Config, signals: &Signals) {
        let at = signals.at;
        if !at.is_finite() || self.last.is_some_and(|last| at <= last) {
            return;
        }
        let gap = self.last.is_some_and(|last| at - last > GAP_SECONDS);
        self.last = Some(at);
        for watching in &mut self.watches {
            let settings = (watching.rule.settings)(config);
            if !settings.enabled() {
                if watching.now.state != State::Inactive || watching.seen > 0.0 {
                    watching.watch = (watching.rule.start)();
                    watching.seen = 0.0;
                }
                watching.turn(State::Inactive, at, String::new());
                continue;
            }
            watching.window = settings.window();
            let condition = watching.watch.check(config, signals);
            if gap && watching.now.state == State::Pending {
                watching.turn(State::Inactive, at, String::new());
            }
            watching.step(condition, at, settings.hold());
        }
    }

    /// The states of all rules, in the order of [`RULES`].
    pub fn states(&self) -> impl Iterator<Item = &RuleState> {
        self.watches.iter().map(|watching| &watching.now)
    }

    /// The first rule that wants a diagnostic window: it fires, and has not had one for
    /// [`Config::repeat`], or since it fires.
    #[must_use]
    pub fn wants(&self, config: &Config) -> Option<Want> {
        let now = self.last?;
        let due = |watching: &&Watching| {
            let due = |served: f64| now - served >= config.repeat.as_seconds();
            watching.window
                && watching.now.state == State::Firing
                && watching.served.is_none_or(due)
        };
        let watching = self.watches.iter().find(due)?;
        let Row { name, shared, .. } = *watching.rule;
        Some(Want { rule: name, shared, why: watching.now.message.clone() })
    }

    /// Whether a rule that is about memory fires: a window that opens now serves it, too.
    #[must_use]
    pub fn memory_fires(&self) -> bool {
        self.watches.iter().any(|one| one.rule.memory && one.now.state == State::Firing)
    }

    /// The rules that fire, and do so in all processes of a control group at once.
    #[must_use]
    pub fn shared_firing(&self) -> Vec<&'static str> {
        let fires = |one: &&Watching| one.rule.shared && one.now.state == State::Firing;
        self.watches.iter().filter(fires).map(|one| one.rule.name).collect()
    }

    /// A window was opened: it serves every rule that fires now.
    pub fn served(&mut self) {
        self.serve(|_| true);
    }

    /// A window was opened on another process of the control group: it serves this rule here, too.
    pub fn served_for(&mut self, rule: &str) {
        self.serve(|one| one.name == rule);
    }

    fn serve(&mut self, which: impl Fn(&Row) -> bool) {
        for watching in &mut self.watches {
            if watching.now.state == State::Firing && which(watching.rule) {
                watching.served = self.last;
            }
        }
    }

    /// The rules that are about to fire, or have, as the state of the node shows them. `unix_ms`: the
    /// present time, in milliseconds since 1970.
    #[must_use]
    pub fn alerts(&self, unix_ms: u64) -> Vec<Alert> {
        let now = self.last.unwrap_or_default();
        let alert = |seen: &RuleState| {
            let state = match seen.state {
                State::Inactive => return None,
                State::Pending => AlertState::Pending,
                State::Firing => AlertState::Firing,
            };
            #[allow(clippy::cast_sign_loss, reason = "not negative; the cast saturates")]
            let ago = ((now - seen.since).max(0.0) * 1000.0) as u64;
            Some(Alert {
                rule: seen.rule.to_owned(),
                state,
                since_unix_ms: unix_ms.saturating_sub(ago),
                message: seen.message.clone(),
            })
        };
        self.states().filter_map(alert).collect()
    }
}

impl Watching {
    fn turn(&mut self, state: State, at: f64, message: String) {
        if self.now.state != state {
            self.now.since = at;
            self.now.state = state;
            if state == State::Inactive {
                self.served = None;
            }
        }
        self.now.message = message;
    }

    fn step(&mut self, condition: Condition, at: f64, hold: f64) {
        if condition != Condition::Unknown {
            self.seen = at;
        }
        match (self.now.state, condition) {
            (State::Firing, Condition::Unknown) if at - self.seen < BLIND_SECONDS => {}
            (State::Firing, Condition::Beyond(message) | Condition::Between(message)) => {
                self.turn(State::Firing, at, message);
            }
            (State::Pending, Condition::Beyond(message)) => {
                let state =
                    if at - self.now.since >= hold { State::Firing } else { State::Pending };
                self.turn(state, at, message);
            }
            (State::Inactive, Condition::Beyond(message)) => {
                let state = if hold > 0.0 { State::Pending } else { State::Firing };
                self.turn(state, at, message);
            }
            _ => self.turn(State::Inactive, at, String::new()),
        }
    }
}
