//! A target that works in batches and measures its own CPU time.
//!
//! One line to it starts a batch, one line from it ends it; in between it sleeps in a read. So nothing
//! that is attached or detached meanwhile can fall into a batch.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};
use drainprof_tests::{environment, process::Process};

/// What one batch came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Objects that were allocated and freed.
    pub(crate) objects: f64,
    /// Granules that were opened and closed.
    pub(crate) granules: f64,
    /// CPU time of all threads, in nanoseconds.
    pub(crate) cpu_ns: f64,
}

impl Sample {
    fn read(line: &str) -> Result<Self> {
        let mut words = line.split(' ').skip(1).map(str::parse::<f64>);
        let mut next = || words.next().and_then(Result::ok);
        match (next(), next(), next()) {
            (Some(objects), Some(granules), Some(cpu_ns)) => Ok(Self { objects, granules, cpu_ns }),
            _ => bail!("the target printed no three numbers: {line:?}"),
        }
    }

    /// CPU time per object.
    pub(crate) fn per_object(&self) -> f64 {
        self.cpu_ns / self.objects
    }

    /// CPU time per granule.
    pub(crate) fn per_granule(&self) -> f64 {
        self.cpu_ns / self.granules
    }
}

/// A target at work.
pub(crate) struct Worker {
    process: Process,
    pid: u32,
    done: Counts,
}

/// How much there was to count: what a target has done, or what a tracer has seen of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Objects allocated.
    pub(crate) allocated: Option<f64>,
    /// Granules opened.
    pub(crate) opened: Option<f64>,
}

impl Worker {
    /// Starts a target of the tests.
    pub(crate) fn start(target: &str, args: &[String]) -> Result<Self> {
        let command = Command::new(environment::target(target)?);
        Self::start_under(target, command, args)
    }

    /// Starts `command` (another program that runs the target) with the target's arguments added.
    pub(crate) fn start_under(target: &str, mut command: Command, args: &[String]) -> Result<Self> {
        command.args(args);
        let mut process = Process::start(target, command)?;
        let line = process.expect_out("READY ")?;
        let pid = line["READY ".len()..].parse().with_context(|| format!("{target}: {line:?}"))?;
        Ok(Self { process, pid, done: Counts::default() })
    }

    /// Starts a target whose own functions are probed; with the file that they are in.
    pub(crate) fn of_itself(target: &str, args: &[String]) -> Result<(Self, PathBuf)> {
        Ok((Self::start(target, args)?, environment::target(target)?))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a line and waits for the line that begins with `prefix`.
    pub(crate) fn ask(&mut self, line: &str, prefix: &str) -> Result<String> {
        self.process.send_line(line)?;
        self.process.expect_out(prefix)
    }

    /// One batch.
    pub(crate) fn batch(&mut self) -> Result<Sample> {
        let sample = Sample::read(&self.ask("go", "SAMPLE ")?)?;
        let add = |sum: &mut Option<f64>, more| *sum = Some(sum.unwrap_or(0.0) + more);
        add(&mut self.done.allocated, sample.objects);
        add(&mut self.done.opened, sample.granules);
        Ok(sample)
    }

    /// What it has done since it was asked last.
    pub(crate) fn done(&mut self) -> Counts {
        std::mem::take(&mut self.done)
    }

    /// One batch to get warm, then those that count.
    pub(crate) fn batches(&mut self, number: usize, value: fn(&Sample) -> f64) -> Result<Vec<f64>> {
        self.batch()?;
        (0..number).map(|_| self.batch().map(|sample| value(&sample))).collect()
    }

    /// Ends it by closing its stdin.
    pub(crate) fn finish(self) -> Result<()> {
        self.process.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three numbers make a sample; less is an error, not a zero.
    #[test]
    fn samples_are_read() {
        let sample = Sample::read("SAMPLE 100 4 2500").unwrap();
        assert!((sample.per_object() - 25.0).abs() < f64::EPSILON);
        assert!((sample.per_granule() - 625.0).abs() < f64::EPSILON);
        assert!(Sample::read("SAMPLE 100 4").is_err());
        assert!(Sample::read("SAMPLE a b c").is_err());
    }
}
