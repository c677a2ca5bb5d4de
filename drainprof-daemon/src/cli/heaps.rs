//! Censuses at the begin and at the end of an observation (`--census`).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use drainprof_census::{Census, Comparison, Options, take};
use drainprof_observe::goal::HeapLimits;
use drainprof_report::Report;

/// Processes whose heaps are read.
const MOST: usize = 64;
/// What was not read after this time is unknown: of one process, and of all together.
const DEADLINE: Duration = Duration::from_secs(10);
const ALL_DEADLINE: Duration = Duration::from_secs(30);

/// The heaps of the observed processes.
#[derive(Default)]
pub(super) struct Heaps {
    /// How they are read; `None`: they are not.
    options: Option<Options>,
    begins: BTreeMap<u32, Census>,
}

impl Heaps {
    /// Heaps that are read within limits; `None`: they are not.
    pub(super) fn new(limits: Option<HeapLimits>) -> Self {
        let within = |limits: HeapLimits| Options {
            largest_bytes: limits.process_bytes,
            memory: limits.memory_bytes,
            ..Options::default()
        };
        Self { options: limits.map(within), begins: BTreeMap::new() }
    }

    /// Reads them before the first probe is placed.
    pub(super) fn begin(&mut self, pids: &[u32]) {
        let Some(options) = &self.options else { return };
        let began = Instant::now();
        for pid in pids.iter().take(MOST) {
            match take(*pid, &within(options, began)) {
                Ok(census) => drop(self.begins.insert(*pid, census)),
                // At the end there is a reason in the report.
                Err(error) => tracing::debug!(pid, %error, "no census"),
            }
        }
    }

    /// Reads those of the processes that run, after the last event was counted, and adds all to the report.
    pub(super) fn end(&self, report: &mut Report) {
        let Some(options) = &self.options else { return };
        let since = Instant::now();
        for (index, target) in report.targets.iter_mut().enumerate() {
            // Another program in the same process has other heaps.
            let begin = self.begins.get(&target.pid).filter(|begin| begin.comm == target.comm);
            let end = match (target.ended, index < MOST) {
                (Some(_), _) => Err("it has ended".to_owned()),
                (None, false) => Err(format!("only the first {MOST} processes have a census")),
                (None, true) => {
                    take(target.pid, &within(options, since)).map_err(|error| error.to_string())
                }
            };
            target.census = Some(match end {
                Ok(end) => Comparison::of(begin, &end),
                Err(failure) => Comparison {
                    begin: begin.map(drainprof_census::Summary::of),
                    failure: Some(failure),
                    ..Comparison::default()
                },
            });
        }
    }
}

/// The next of several censuses, of which the first began then.
pub(super) fn within(options: &Options, began: Instant) -> Options {
    let left = ALL_DEADLINE.saturating_sub(began.elapsed());
    Options { deadline: Some(left.min(DEADLINE)), ..*options }
}
