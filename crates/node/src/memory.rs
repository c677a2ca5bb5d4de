//! The memory of one process over the last minutes: a reading, its trend, and how often it faults.
//!
//! The daemon keeps one for each process that it watches, `top` without a daemon for each that it observes. It reads
//! nothing itself.

use drainprof_process::memory::MemoryReading;
use drainprof_report::{memory::MemoryTrend, series::MemorySeries};

/// What is known of a process's memory.
#[derive(Clone, Debug)]
pub struct MemoryWatch {
    series: MemorySeries,
    now: Option<MemoryReading>,
    trend: Option<MemoryTrend>,
    /// Seconds, faults: the reading before.
    faults_before: Option<(f64, u64)>,
    faults_per_second: Option<f64>,
}

impl Default for MemoryWatch {
    /// With a trend over the last half hour.
    fn default() -> Self {
        Self::over(1_800.0)
    }
}

impl MemoryWatch {
    /// Nothing is known yet. The trend is to reach `over` seconds back.
    #[must_use]
    pub fn over(over: f64) -> Self {
        Self {
            series: MemorySeries::recent(over),
            now: None,
            trend: None,
            faults_before: None,
            faults_per_second: None,
        }
    }

    /// Adds a reading, or that there is none; `seconds` is a time since any fixed moment.
    pub fn add(&mut self, seconds: f64, reading: Option<MemoryReading>) {
        self.now = reading;
        let Some(reading) = reading else { return };
        self.series.add(seconds, &reading);
        self.trend = MemoryTrend::of(&self.series);
        let faults = reading.minor_faults.saturating_add(reading.major_faults);
        self.faults_per_second = self.faults_before.and_then(|(before, known)| {
            let passed = seconds - before;
            (passed > 0.0 && faults >= known).then(|| (faults - known) as f64 / passed)
        });
        self.faults_before = Some((seconds, faults));
    }

    /// How far back the trend reaches, seconds.
    #[must_use]
    pub fn reach(&self) -> f64 {
        self.series.reach().unwrap_or_default()
    }

    /// The newest reading; `None` where there was none at that time.
    #[must_use]
    pub const fn now(&self) -> Option<MemoryReading> {
        self.now
    }

    /// How resident memory grows; `None` where too little was seen.
    #[must_use]
    pub const fn trend(&self) -> Option<&MemoryTrend> {
        self.trend.as_ref()
    }

    /// Page faults per second between the last two readings.
    #[must_use]
    pub const fn faults_per_second(&self) -> Option<f64> {
        self.faults_per_second
    }
}
