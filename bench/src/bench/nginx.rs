//! nginx under `ab`, with and without drainprof.

use std::fs;

use anyhow::{Context as _, Result};
use drainprof_profile::Level;
use drainprof_tests::{environment::which, nginx::Nginx};

use super::{Known, number_after};
use crate::{
    model::{BOUNDARY_LEAVES, Benchmark, CLOSE_LEAVES, Compare, Table},
    probing::Probing,
    rounds::{Effort, FLOOR_BOUNDARY, FLOOR_CLOSE, Outcome, Variant, announce},
    worker::Counts,
};

pub(super) const BENCHMARK: Known = Known {
    name: "nginx",
    title: "nginx under ab",
    about: "One nginx process, a small file, eight kept connections on loopback, ab on its own CPU; the built-in \
            profile. A request creates and destroys one pool: each is a hit, and the first finds the kernel's code \
            for it cold, which alone takes more than 5 %. So the goals are parts of the rate that empty programs at the \
            same places leave: 0.95 at `close`, 0.90 at `boundary`.",
    run,
};

const CLOSE: &str = "drainprof, close";
const BOUNDARY: &str = "drainprof, boundary";
const OBJECTS: &str = "drainprof, objects";
const FIGURES: [(&str, Compare); 2] = [
    ("requests per second", Compare::Ratio),
    ("µs of nginx's CPU time per request", Compare::Added),
];

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    for program in ["nginx", "ab"] {
        which(program).with_context(|| format!("{program} is not installed"))?;
    }
    let nginx = Nginx::start(false)?;
    let binary = which("nginx").context("nginx is installed")?;
    let variants = [
        Variant::new(FLOOR_CLOSE, Probing::Floor("nginx", Level::Close)),
        Variant::new(FLOOR_BOUNDARY, Probing::Floor("nginx", Level::Boundary)),
        Variant::new(CLOSE, Probing::Drainprof("nginx", Level::Close, &[])),
        Variant::new(BOUNDARY, Probing::Drainprof("nginx", Level::Boundary, &[])),
        Variant::new(OBJECTS, Probing::Drainprof("nginx", Level::Objects, &[])),
    ];
    let requests = effort.requests.to_string();
    let load = || -> Result<Vec<Vec<f64>>> {
        let before = cpu_ns(nginx.worker)?;
        let text = nginx.ab(&["-k", "-c", "8", "-n", &requests])?;
        let cpu = cpu_ns(nginx.worker)? - before;
        Ok(vec![vec![rate(&text)?], vec![cpu / 1e3 / f64::from(effort.requests)]])
    };
    // The first requests find nothing in caches.
    load()?;
    let mut outcome = Outcome::begin(&variants, FIGURES.len());
    for round in 0..effort.rounds {
        announce(round, effort.rounds);
        outcome
            .round((nginx.worker, &binary), &variants, &mut || Ok((load()?, Counts::default())))?;
    }
    nginx.quit()?;
    for ((unit, compare), rows) in FIGURES.iter().zip(outcome.tables) {
        benchmark.tables.push(Table::new("", unit, *compare, rows));
    }
    benchmark.notes.extend(outcome.notes);
    let table = &benchmark.tables[0];
    for (level, row, floor, bound) in [
        ("close", CLOSE, FLOOR_CLOSE, CLOSE_LEAVES),
        ("boundary", BOUNDARY, FLOOR_BOUNDARY, BOUNDARY_LEAVES),
    ] {
        let what = format!("requests/s at {level}");
        benchmark.goals.extend(table.beside_floor(&what, row, floor, bound));
    }
    Ok(())
}

/// CPU time of a process of one thread, in nanoseconds.
fn cpu_ns(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let word = text.split(' ').next().and_then(|word| word.parse().ok());
    word.with_context(|| format!("{path} begins with no number: {text:?}"))
}

/// The rate that ab prints.
pub(super) fn rate(text: &str) -> Result<f64> {
    number_after(text, "Requests per second:")
}
