//! What is to be observed, how deeply, for which part of the time, and what it may cost.
//!
//! A goal is made once, by the command line or by a request in JSON. What cannot be had together cannot be written:
//! growth and children need all of the time, and sums of growth have no call paths.

use std::{path::PathBuf, time::Duration};

use drainprof_probe::{
    bpf::{GrowthOffsets, Offsets, SessionConfig, Sizes},
    plan::{Sites, cost::Costs},
};
use drainprof_profile::{Level, Library};
use drainprof_report::{facts::Duty, series::MOST_POINTS};
use serde::{Deserialize, Serialize};

use crate::{SideOptions, engine::Options, names::SymbolOptions};

/// For how long a caller waits for the kernel to put a probe in place.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// What is probed; `None`: no probe is placed.
    pub probing: Option<Probing>,
    /// Of which part of the time.
    pub span: Span,
    /// Whether every close and late drain is an event.
    #[serde(default)]
    pub events: bool,
    /// Whether memory is read as a time series.
    pub memory: bool,
    /// Whether heaps are read from outside, at the begin and at the end.
    pub heaps: Option<HeapLimits>,
    /// What the probes may cost, as a share of one CPU; `None`: anything.
    pub budget: Option<f64>,
    /// For how long; `None`: until the processes or the user end it.
    pub duration: Option<Duration>,
    /// Time between two reports; `None`: there is one, at the end.
    #[serde(default)]
    pub interval: Option<Duration>,
    /// Whether addresses get names.
    pub symbols: bool,
    /// More places to search for separate debug files.
    #[serde(default)]
    pub debug_dirs: Vec<PathBuf>,
    /// Which instructions of functions may be probed.
    #[serde(skip)]
    pub sites: Sites,
}

/// Which allocators are probed, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probing {
    /// Profiles: names, or files; empty: all that match.
    pub profiles: Vec<String>,
    /// Directories of profiles, in place of the system's; empty: the system's.
    pub profile_dirs: Vec<PathBuf>,
    /// How deep; `None`: each profile's default.
    pub level: Option<Level>,
    /// One of so many pages of a census is followed.
    pub sample: u32,
}

impl Probing {
    /// These profiles at their default level.
    #[must_use]
    pub const fn of(profiles: Vec<String>) -> Self {
        Self { profiles, profile_dirs: Vec::new(), level: None, sample: 1 }
    }
}

/// A diagnostic window, as the daemon asks for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowRequest {
    /// What is observed.
    pub goal: Goal,
    /// The process.
    pub pid: u32,
    /// When it began, in clock ticks since boot: another one with its number is refused.
    pub start_time: u64,
    /// The process that asks: the window ends with it.
    pub parent: u32,
}

/// Which part of the time is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// All of it.
    Whole {
        /// What is observed of processes that are started meanwhile.
        follow: Follow,
        /// How resident memory grows; `None`: that is not asked.
        growth: Option<Growth>,
    },
    /// Windows of a duty cycle.
    #[serde(skip)]
    Windows(Duty),
}

impl Default for Span {
    fn default() -> Self {
        Self::Whole { follow: Follow::No, growth: None }
    }
}

/// Which processes are observed beside those that are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Follow {
    /// None.
    #[default]
    No,
    /// What they start. Probes then sit on the files, for all processes that map them.
    Children,
    /// All of the machine, and what they start.
    Machine,
}

/// How growth is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// As sums of each process.
    Sums,
    /// By call stack.
    Stacks,
    /// By call stack, that of the kernel included.
    KernelStacks,
}

/// Limits of what is read of heaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapLimits {
    /// Processes with more bytes of writable anonymous memory are left out.
    pub process_bytes: Option<u64>,
    /// Memory for the reading, bytes; what does not fit is unknown.
    pub memory_bytes: Option<u64>,
}

/// What was asked for cannot be had together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// Children need all of the time.
    #[error("--duty cannot follow forks: children born between two cycles would be missed")]
    Children,
    /// So does growth.
    #[error("--duty cannot report growth: memory changes unseen between two cycles")]
    Growth,
}

impl Span {
    /// Windows, if there is a duty cycle, else all of the time.
    ///
    /// # Errors
    /// If there is a duty cycle, and something else that needs all of the time.
    pub fn of(
        duty: Option<Duty>,
        follow: Follow,
        growth: Option<Growth>,
    ) -> Result<Self, SpanError> {
        match (duty, follow, growth) {
            (None, follow, growth) => Ok(Self::Whole { follow, growth }),
            (Some(duty), Follow::No, None) => Ok(Self::Windows(duty)),
            (Some(_), Follow::Children | Follow::Machine, _) => Err(SpanError::Children),
            (Some(_), Follow::No, Some(_)) => Err(SpanError::Growth),
        }
    }
}

/// What the host gives to a goal.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where tracepoint fields stand.
    pub offsets: Offsets,
    /// The same for growth, where that is asked for.
    pub growth_offsets: Option<GrowthOffsets>,
    /// What the maps may be.
    pub sizes: Sizes,
    /// What probes cost.
    pub costs: Costs,
}

impl Goal {
    /// What is observed of processes that are started meanwhile.
    #[must_use]
    pub const fn follow(&self) -> Follow {
        match self.span {
            Span::Whole { follow, .. } => follow,
            Span::Windows(_) => Follow::No,
        }
    }

    /// How growth is counted; `None`: it is not.
    #[must_use]
    pub const fn growth(&self) -> Option<Growth> {
        match self.span {
            Span::Whole { growth, .. } => growth,
            Span::Windows(_) => None,
        }
    }

    /// The duty cycle, where there is one.
    #[must_use]
    pub const fn duty(&self) -> Option<Duty> {
        match self.span {
            Span::Whole { .. } => None,
            Span::Windows(duty) => Some(duty),
        }
    }

    /// How it is observed on this host; `profiles` are names in the `library`.
    #[must_use]
    pub fn on(&self, host: Host, library: Library, profiles: Vec<String>) -> Options {
        let growth = self.growth();
        let (level, sample) =
            self.probing.as_ref().map_or((None, 1), |probing| (probing.level, probing.sample));
        let has_paths = level == Some(Level::Stacks) || growth.is_some();
        let symbols =
            SymbolOptions { debug_dirs: self.debug_dirs.clone(), ..SymbolOptions::default() };
        Options {
            session: SessionConfig {
                sizes: Sizes {
                    call_paths: if has_paths { host.sizes.call_paths } else { 0 },
                    growth: growth.is_some(),
                    kernel_stacks: growth == Some(Growth::KernelStacks),
                    ..host.sizes
                },
                events: self.events,
                sample,
                offsets: host.offsets,
                growth: host.growth_offsets.filter(|_| growth.is_some()),
                growth_paths: growth != Some(Growth::Sums),
                calls: self.probing.is_some(),
                patience: PATIENCE,
            },
            library,
            side: SideOptions {
                profiles,
                level,
                follow: self.follow() != Follow::No,
                debug_dirs: self.debug_dirs.clone(),
                costs: host.costs,
                duty: self.duty(),
                sites: self.sites,
                curve_points: MOST_POINTS,
            },
            symbols: self.symbols.then_some(symbols),
            interval: self.interval,
            duration: self.duration,
            budget: self.budget,
            memory: self.memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What needs all of the time is not observed in windows.
    #[test]
    fn spans() {
        let duty = Duty { on: Duration::from_secs(1), period: Duration::from_secs(10) };
        let growth = Some(Growth::Stacks);
        assert_eq!(Span::of(Some(duty), Follow::No, None), Ok(Span::Windows(duty)));
        assert_eq!(Span::of(Some(duty), Follow::No, growth), Err(SpanError::Growth));
        assert_eq!(Span::of(Some(duty), Follow::Children, growth), Err(SpanError::Children));
        let whole = Span::Whole { follow: Follow::Machine, growth };
        assert_eq!(Span::of(None, Follow::Machine, growth), Ok(whole));
    }

    /// A goal is the same when it comes back from JSON, and one with an unknown wish is refused.
    #[test]
    fn as_json() {
        let goal = Goal {
            span: Span::Whole { follow: Follow::No, growth: Some(Growth::Stacks) },
            heaps: Some(HeapLimits { process_bytes: Some(4096), memory_bytes: None }),
            budget: Some(0.2),
            duration: Some(Duration::from_millis(2500)),
            probing: Some(Probing {
                level: Some(Level::Stacks),
                ..Probing::of(vec!["nginx".to_owned()])
            }),
            ..Goal::default()
        };
        let text = serde_json::to_string(&goal).unwrap();
        assert_eq!(serde_json::from_str::<Goal>(&text).unwrap(), goal);
        let other = text.replacen("\"memory\"", "\"memories\"", 1);
        assert!(serde_json::from_str::<Goal>(&other).is_err(), "{other}");
    }
}
