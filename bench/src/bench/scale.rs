//! A million open granules and ten million live objects.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use drainprof_probe::bpf::Sizes;
use drainprof_tests::tracer::Tracer;
use serde_json::Value;

use super::{Known, costs};
use crate::{
    model::{Benchmark, Bound, Goal, Row},
    rounds::{BARE, Effort},
    seen::Seen,
    worker::Worker,
};

pub(super) const BENCHMARK: Known = Known {
    name: "scale",
    title: "A million open granules, ten million live objects",
    about: "Granules open, objects (ids only) are allocated, replaced, freed, granules close, at entry probes \
            (`tests/profiles/scale.toml`) with fitting `--max-granules` and `--max-objects`; one run. Kernel memory: \
            the maps at the peak.",
    run,
};

const PHASES: [&str; 5] = ["open", "alloc", "free and alloc", "free", "close"];

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let (granules, objects) = effort.scale;
    let small = once(granules / 1000, objects / 1000, effort)?;
    let large = once(granules, objects, effort)?;
    let bare = bare(granules, objects, effort)?;
    for (number, phase) in PHASES.iter().enumerate() {
        let row = |name: &str, baseline, phases: &[f64; 5]| {
            Row::new(name, baseline, vec![vec![phases[number]]])
        };
        let rows = vec![
            row(BARE, true, &bare),
            row("drainprof, 1/1000", false, &small.phases),
            row("drainprof", false, &large.phases),
        ];
        benchmark.tables.push(costs(phase, "ns per event", rows));
    }
    benchmark.notes.extend(Seen::of_report(&large.report).losses);
    let lost = f64::from(u8::from(large.report["complete"] != true));
    let wrong = large.wrong(granules, objects, effort).unwrap_or_default();
    benchmark.notes.extend(wrong.iter().cloned());
    benchmark
        .notes
        .push(format!("{granules} granules were open and {objects} objects live at once."));
    let goals = [
        ("reports that were not complete", "", Bound::AtMost(0.0), lost),
        ("counts that differ from the truth", "", Bound::AtMost(0.0), wrong.len() as f64),
        ("kernel memory per live object", "bytes", Bound::Stated, large.per_object),
        ("kernel memory per open granule", "bytes", Bound::Stated, large.per_granule),
        ("kernel memory of all maps", "MiB", Bound::Stated, large.total_mib),
    ];
    for (what, unit, bound, value) in goals {
        benchmark.goals.push(Goal::new(what, unit, bound, vec![value]));
    }
    Ok(())
}

/// What one traced run came to.
struct Traced {
    phases: [f64; 5],
    report: Value,
    per_object: f64,
    per_granule: f64,
    total_mib: f64,
}

impl Traced {
    /// Every count of the report that is not the truth.
    fn wrong(&self, granules: u64, objects: u64, effort: Effort) -> Option<Vec<String>> {
        let allocator = self.report.pointer("/targets/0/allocators/0")?;
        let events = objects + steady(objects, effort);
        let truth = [
            ("/granules/opened", granules),
            ("/granules/closed", granules),
            ("/granules/open_peak", granules),
            ("/objects/allocated", events),
            ("/objects/freed", events),
        ];
        let differs = |(path, expected): &(&str, u64)| {
            let found = allocator.pointer(path).and_then(Value::as_u64);
            (found != Some(*expected))
                .then(|| format!("{path}: truth {expected}, report {found:?}"))
        };
        Some(truth.iter().filter_map(differs).collect())
    }
}

/// Frees and allocs in the steady phase.
fn steady(objects: u64, effort: Effort) -> u64 {
    objects.min(effort.scale.1 / 50)
}

fn start(granules: u64, objects: u64, effort: Effort) -> Result<Worker> {
    let steady = steady(objects, effort);
    let args =
        [format!("granules={granules}"), format!("objects={objects}"), format!("steady={steady}")];
    Worker::start("scale", &args)
}

/// Runs the phase that is next; nanoseconds of CPU time per event.
fn phase(worker: &mut Worker) -> Result<f64> {
    let line = worker.ask("go", "SAMPLE ")?;
    let mut words = line.split(' ').skip(2).map(str::parse::<f64>);
    match (words.next(), words.next()) {
        (Some(Ok(events)), Some(Ok(ns))) => Ok(ns / events),
        _ => anyhow::bail!("the target printed no phase: {line:?}"),
    }
}

fn bare(granules: u64, objects: u64, effort: Effort) -> Result<[f64; 5]> {
    let mut worker = start(granules, objects, effort)?;
    let mut phases = [0.0; 5];
    for ns in &mut phases {
        *ns = phase(&mut worker)?;
    }
    worker.finish()?;
    Ok(phases)
}

fn once(granules: u64, objects: u64, effort: Effort) -> Result<Traced> {
    eprintln!("    {granules} granules, {objects} objects");
    let mut worker = start(granules, objects, effort)?;
    let sizes = [granules.to_string(), objects.to_string()];
    let args =
        ["--level", "objects", "--max-granules", &sizes[0], "--max-objects", &sizes[1], "-i", "60"];
    let mut tracer = Tracer::attach(&[worker.pid()], "scale", &args)?;
    let mut phases = [0.0; 5];
    let empty = Memory::of(tracer.process().pid(), granules, objects)?;
    for ns in &mut phases[..3] {
        *ns = phase(&mut worker)?;
    }
    let full = Memory::of(tracer.process().pid(), granules, objects)?;
    for ns in &mut phases[3..] {
        *ns = phase(&mut worker)?;
    }
    worker.finish()?;
    let outcome = tracer.finish()?;
    let talk = outcome.talk();
    let report = outcome.report.with_context(|| format!("drainprof reported nothing: {talk}"))?;
    Ok(Traced {
        phases,
        report,
        per_object: full.objects / objects as f64,
        // Of maps that are as large empty as full, all of it; of those that grow, what they grew by.
        per_granule: (full.granules + full.index - empty.index.min(full.index)) / granules as f64,
        total_mib: full.total / 1_048_576.0,
    })
}

/// Kernel memory of a process's maps, in bytes, as the kernel accounts for it.
#[derive(Debug, Default)]
struct Memory {
    total: f64,
    objects: f64,
    granules: f64,
    index: f64,
}

impl Memory {
    /// The maps are distinguished by their sizes: granules by what was asked for, the table of objects and the map behind
    /// it by what follows from that, the index of granules by having more than twice as many entries.
    fn of(pid: u32, granules: u64, objects: u64) -> Result<Self> {
        let sizes = Sizes {
            objects: u32::try_from(objects)?,
            granules: u32::try_from(granules)?,
            ..Sizes::default()
        };
        let (buckets, behind) = (u64::from(sizes.buckets()), u64::from(sizes.overflow()));
        let mut memory = Self::default();
        let mut seen = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
            // A descriptor may be closed between listing and reading.
            let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
            let Some(map) = Map::read(&text) else { continue };
            if seen.contains(&map.id) {
                continue;
            }
            seen.push(map.id);
            memory.total += map.bytes as f64;
            match (map.kind, map.entries) {
                (ARRAY, entries) if entries == buckets => memory.objects += map.bytes as f64,
                (HASH, entries) if entries == behind => memory.objects += map.bytes as f64,
                (HASH, entries) if entries >= 2 * granules && entries <= 2 * granules + 65_536 => {
                    memory.index += map.bytes as f64;
                }
                (ARRAY, entries) if entries == granules => memory.granules += map.bytes as f64,
                _ => {}
            }
        }
        ensure!(
            memory.objects > 0.0 && memory.granules > 0.0,
            "no maps of these sizes: {memory:?}"
        );
        Ok(memory)
    }
}

const HASH: u64 = 1;
const ARRAY: u64 = 2;

/// A map, as the kernel describes a descriptor of one.
#[derive(Debug, PartialEq)]
struct Map {
    id: u64,
    kind: u64,
    entries: u64,
    bytes: u64,
}

impl Map {
    fn read(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(':')?.trim().parse().ok()
        };
        Some(Self {
            id: field("map_id")?,
            kind: field("map_type")?,
            entries: field("max_entries")?,
            bytes: field("memlock")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Map;

    /// A map's descriptor is read, that of anything else is passed over.
    #[test]
    fn descriptors_are_read() {
        let text =
            "pos:\t0\nmap_type:\t1\nkey_size:\t16\nmax_entries:\t100\nmemlock:\t4096\nmap_id:\t7\n";
        assert_eq!(Map::read(text), Some(Map { id: 7, kind: 1, entries: 100, bytes: 4096 }));
        assert_eq!(Map::read("pos:\t0\nflags:\t02\n"), None);
    }
}
