//! `drainprof growth` on a target, and what its report says to have seen.

use anyhow::{Context as _, Result};
use drainprof_tests::tracer::{self, Tracer};
use serde_json::Value;

use crate::{seen::Seen, worker::Counts};

/// How growth is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// More arguments.
    pub(crate) args: &'static [&'static str],
    /// What the report counts of the target's operations; `None` where it keeps sums alone.
    pub(crate) count: Option<Count>,
}

/// A number of the report, and how much of it an operation is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// JSON pointer in a target's growth.
    pub(crate) at: &'static str,
    /// Of each operation.
    pub(crate) each: f64,
}

/// A `drainprof growth` that runs.
pub(crate) struct Watching {
    tracer: Tracer,
    count: Option<Count>,
}

/// Starts it, and waits until it watches.
pub(crate) fn watch(pid: u32, growth: Growth) -> Result<Watching> {
    let mut command = tracer::command()?;
    command.args(["growth", "-o", "json", "-p", &pid.to_string()]).args(growth.args);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    Ok(Watching { tracer, count: growth.count })
}

impl Watching {
    /// Ends it: what it has seen.
    pub(crate) fn finish(self) -> Result<Seen> {
        self.tracer.interrupt()?;
        let outcome = self.tracer.finish()?;
        let report: Value = serde_json::from_str(&outcome.stdout.join("\n"))
            .with_context(|| format!("drainprof growth reported nothing: {}", outcome.talk()))?;
        Ok(Self::seen(&report, self.count))
    }

    fn seen(report: &Value, count: Option<Count>) -> Seen {
        let number = |count: Count| {
            let growth = report.pointer("/targets/0/growth")?;
            Some(growth.pointer(count.at)?.as_f64()? / count.each)
        };
        let counts = Counts { allocated: count.and_then(number), opened: None };
        Seen { counts, besides: true, ..Seen::of_report(report) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Counts and losses of a report are found, and a sum is taken for as many operations as it holds.
    #[test]
    fn reports_of_growth() {
        let report = json!({"complete": false, "losses": {"mappings_lost": 3},
            "targets": [{"growth": {"mappings": {"mapped_bytes": 640}}}]});
        let count = Count { at: "/mappings/mapped_bytes", each: 64.0 };
        let seen = Watching::seen(&report, Some(count));
        assert_eq!(seen.counts.allocated, Some(10.0));
        assert_eq!(seen.losses.as_deref(), Some("mappings_lost 3"));
        let elsewhere = Count { at: "/faults/user", each: 1.0 };
        assert_eq!(Watching::seen(&report, Some(elsewhere)).counts.allocated, None);
    }
}
