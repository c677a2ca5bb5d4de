//! How busy the machine was while something ran: what a failed test on a shared machine is judged by.
//!
//! Reads `/proc/stat` and `/proc/loadavg`; where these cannot be read, nothing is reported. Called by `test` and `vm`.

use std::time::Instant;

use fs_err as fs;

/// Processor time since boot, in ticks, over all processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
    /// Taken by other guests of the host.
    stolen: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)); guests are in user and nice.
    fn parse(stat: &str) -> Option<Self> {
        let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(8).collect();
        let [_, _, _, idle, waiting, _, _, stolen] = ticks[..] else { return None };
        Some(Self { all: ticks.iter().sum(), idle: idle + waiting, stolen })
    }
}

/// A stretch of time that is measured.
pub(crate) struct Stretch {
    began: Instant,
    ticks: Option<Ticks>,
}

impl Stretch {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), ticks: Ticks::now() }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// What became of the processors' time since it began, in a sentence.
    pub(crate) fn use_of_processors(&self) -> Option<String> {
        let load = fs::read_to_string("/proc/loadavg").ok()?;
        let load = load.split(' ').next()?;
        let [busy, stolen] = shares(self.ticks?, Ticks::now()?)?.map(|share| share * 100.0);
        Some(format!(
            "the processors were busy for {busy:.0} % of that time, {stolen:.1} % were stolen by other guests; the \
             load is {load}"
        ))
    }
}

/// The shares of the processors' time that were busy and stolen.
fn shares(before: Ticks, after: Ticks) -> Option<[f64; 2]> {
    let all = after.all.checked_sub(before.all).filter(|all| *all > 0)?;
    let share = |ticks: u64| ticks as f64 / all as f64;
    let stolen = share(after.stolen.saturating_sub(before.stolen));
    let idle = share(after.idle.saturating_sub(before.idle));
    Some([1.0 - idle - stolen, stolen])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stolen time is neither busy nor idle; waiting for a disk is idle.
    #[test]
    fn shares_of_a_stretch() {
        let [before, after] =
            ["cpu  100 0 50 800 10 0 0 40 7 0\ncpu0 1 2", "cpu  130 0 60 840 20 0 0 50 9 0"]
                .map(|text| Ticks::parse(text).unwrap());
        assert_eq!(before, Ticks { all: 1000, idle: 810, stolen: 40 });
        let [busy, stolen] = shares(before, after).unwrap();
        assert!((busy - 0.4).abs() < 1e-9 && (stolen - 0.1).abs() < 1e-9, "{busy} {stolen}");
        assert!(shares(after, after).is_none(), "no time has passed");
        assert_eq!(Ticks::parse("intr 1 2 3"), None);
        assert_eq!(Ticks::parse("cpu  1 2 3"), None, "an old kernel's line");
    }
}
