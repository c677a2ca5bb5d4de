//! Memory of real processes over time: a slow leak is found, and neither a flat process nor a saw-tooth is accused.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_process::memory::{MemoryReader, next_look};
use drainprof_report::{
    memory::{MemoryTrend, MemoryVerdict},
    series::MemorySeries,
};
use drainprof_tests::{environment, process::Process};

/// For how long is looked at them; the slope of 100 KB/s is found within 30 seconds in the simulations too.
const WATCH: Duration = Duration::from_secs(30);
/// What the target leaks per second, bytes.
const LEAK: f64 = 100_000.0;

/// A leak of 100 KB/s, a flat process and a saw-tooth of 20 MB, side by side: only the first is said to grow, and its
/// slope is right.
#[test]
fn slow_leak_beside_flat_and_saw_tooth() -> Result<()> {
    let mut processes = Vec::new();
    for mode in ["0", "1", "2"] {
        let mut command = Command::new(environment::target("leak")?);
        command.arg(mode);
        let mut process = Process::start("leak", command)?;
        process.expect_out("READY")?;
        processes.push((process, MemorySeries::new()));
    }
    let mut reader = MemoryReader::new();
    let began = Instant::now();
    let mut looks = 0;
    while began.elapsed() < WATCH {
        reader.begin();
        for (process, course) in &mut processes {
            let reading = reader.read(process.pid(), false).context("it runs")?;
            course.add(began.elapsed().as_secs_f64(), &reading);
        }
        // The time between two looks: nothing is waited for here.
        thread::sleep(Duration::from_secs_f64(next_look(looks, 0.25)));
        looks += 1;
    }
    let trends: Vec<_> = processes.iter().map(|(_, course)| MemoryTrend::of(course)).collect();
    let verdicts: Vec<_> = trends.iter().flatten().map(|trend| trend.verdict).collect();
    let [leak, flat, saw_tooth] = verdicts[..] else {
        anyhow::bail!("the machine was too slow to look often enough: {trends:#?}")
    };
    ensure!(leak == MemoryVerdict::Growing, "{trends:#?}");
    ensure!(flat == MemoryVerdict::Steady && saw_tooth == MemoryVerdict::Steady, "{trends:#?}");
    let slope = trends[0].as_ref().context("judged above")?.slope_bytes_per_second;
    ensure!((slope - LEAK).abs() < LEAK * 0.05, "{slope}");
    Ok(())
}
