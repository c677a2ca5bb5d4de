//! Synthetic processes for the tests of the rules.

use drainprof_process::memory::MemoryReading;

use super::{Closes, Config, Engine, ProfileSignals, Signals, State};

/// Seconds between checks.
pub(super) const TICK: f64 = 5.0;

/// Pseudo-random numbers by a seed (xorshift64*), so that a failure can be seen again.
pub(super) struct Noise(u64);

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From 0 to 1, evenly.
    pub(super) fn even(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// How many of `trials` succeed.
    pub(super) fn binomial(&mut self, trials: u32, chance: f64) -> u64 {
        (0..trials).map(|_| u64::from(self.even() < chance)).sum()
    }
}

/// A process that closes granules with noise.
pub(super) struct Closing {
    noise: Noise,
    total: Closes,
}

impl Closing {
    pub(super) fn new(seed: u64) -> Self {
        Self { noise: Noise::new(seed), total: Closes::default() }
    }

    /// What is known after `closes` more, which are drainable with the chance `dsr`.
    pub(super) fn check(&mut self, at: f64, closes: u32, dsr: f64) -> Signals {
        let drainable = self.noise.binomial(closes, dsr);
        self.total.drainable += drainable;
        self.total.pinned += u64::from(closes) - drainable;
        Signals { at, profiles: vec![profile(Some(self.total))], ..Signals::default() }
    }
}

pub(super) fn profile(closes: Option<Closes>) -> ProfileSignals {
    ProfileSignals { profile: "demo".to_owned(), closes, ..ProfileSignals::default() }
}

/// Memory of which `mib` are resident.
pub(super) fn resident(at: f64, mib: f64) -> Signals {
    #[allow(clippy::cast_sign_loss, reason = "the tests' sizes are not negative")]
    let rss_bytes = (mib * f64::from(1 << 20)) as u64;
    let memory = MemoryReading { rss_bytes, anon_bytes: rss_bytes / 2, ..MemoryReading::default() };
    Signals { at, memory: Some(memory), ..Signals::default() }
}

/// A run of one engine: when a rule fired and when it ended.
pub(super) struct Run {
    pub(super) engine: Engine,
    pub(super) config: Config,
    rule: &'static str,
    pub(super) fired: Vec<f64>,
    pub(super) ended: Vec<f64>,
}

impl Run {
    pub(super) fn new(rule: &'static str) -> Self {
        Self::with(rule, Config::default())
    }

    pub(super) fn with(rule: &'static str, config: Config) -> Self {
        let run =
            Self { engine: Engine::new(), config, rule, fired: Vec::new(), ended: Vec::new() };
        assert_eq!(run.state(), State::Inactive, "{rule} is a rule");
        run
    }

    pub(super) fn state(&self) -> State {
        self.engine.states().find(|state| state.rule == self.rule).unwrap().state
    }

    pub(super) fn message(&self) -> String {
        self.engine.states().find(|state| state.rule == self.rule).unwrap().message.clone()
    }

    pub(super) fn check(&mut self, signals: &Signals) {
        let before = self.state();
        self.engine.check(&self.config, signals);
        match (before, self.state()) {
            (State::Firing, State::Firing) => {}
            (_, State::Firing) => self.fired.push(signals.at),
            (State::Firing, _) => self.ended.push(signals.at),
            _ => {}
        }
    }

    /// Looks from `from` until `to`, in seconds.
    pub(super) fn over(&mut self, [from, to]: [f64; 2], mut signals: impl FnMut(f64) -> Signals) {
        let mut at = from;
        while at < to {
            self.check(&signals(at));
            at += TICK;
        }
    }
}
