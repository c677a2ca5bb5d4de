//! The census from outside, against numbers that the programs and their allocators give of themselves: glibc's
//! `mallinfo2` and `malloc_trim`, `CPython`'s `sys._debugmallocstats`, Redis' `MEMORY MALLOC-STATS`.

use std::{collections::BTreeMap, fs, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, has_programs, requires_root},
    process::Process,
    redis,
};
use serde_json::Value;

/// A census of a process, as the command prints it.
fn census(pid: u32) -> Result<Value> {
    let mut command = Command::new(environment::drainprof()?);
    let output = command.args(["census", "-o", "json", "-p", &pid.to_string()]).output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {talk}", output.status);
    let census: Value = serde_json::from_slice(&output.stdout)?;
    let parts = census["parts"].as_array().context("parts")?;
    let sum: u64 = parts.iter().filter_map(|part| part["bytes"].as_u64()).sum();
    assert_eq!(Some(sum), census["rss_bytes"].as_u64(), "the parts add up: {}", census["parts"]);
    Ok(census)
}

fn heap<'a>(census: &'a Value, allocator: &str) -> Result<&'a Value> {
    let heaps = census["heaps"].as_array().context("heaps")?;
    heaps
        .iter()
        .find(|heap| heap["allocator"] == allocator)
        .with_context(|| format!("{allocator} in {census}"))
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().with_context(|| format!("{key} is a number in {value}"))
}

/// The target, and what glibc says of itself in it.
fn holes(objects: u64, threads: u64) -> Result<(Process, Value)> {
    let mut command = Command::new(environment::target("heap_census")?);
    command.args([objects.to_string(), threads.to_string()]);
    let mut process = Process::start("heap_census", command)?;
    let ready = process.expect_out("READY ")?;
    let truth = serde_json::from_str(ready.trim_start_matches("READY "))?;
    Ok((process, truth))
}

fn trimmed(process: &mut Process) -> Result<u64> {
    process.send_line("trim")?;
    let line = process.expect_out("TRIMMED ")?;
    Ok(line.trim_start_matches("TRIMMED ").parse::<u64>()? * 1024)
}

/// What lives and what is free equal `mallinfo2` to the byte, over all arenas; what `malloc_trim` gives back is
/// predicted within one percent.
#[test]
fn glibc_asleep() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    for threads in [0, 10] {
        let (mut process, truth) = holes(200_000, threads)?;
        let census = census(process.pid())?;
        let heap = heap(&census, "glibc")?;
        let used = number(heap, "live_bytes")? + number(heap, "cached_bytes")?
            - number(heap, "mapped_alone_bytes")?;
        // glibc counts what describes a thread's arena as in use: `heap_info` and `malloc_state`.
        assert_eq!(used + threads * 2256, number(&truth, "in_use")?, "{threads} threads: {truth}");
        assert_eq!(
            number(heap, "free_bytes")?,
            number(&truth, "free")?,
            "{threads} threads: {truth}"
        );
        assert_eq!(number(heap, "mapped_alone_bytes")?, number(&truth, "mapped")?, "{truth}");
        assert_eq!(heap["arenas"].as_array().map(Vec::len), Some(threads as usize + 1));
        assert_eq!(number(heap, "unknown_bytes")?, 0);
        // Every fiftieth, and what the program itself and its libraries hold.
        let kept = 200_000 / 50 + threads * (20_000 / 50);
        assert!((kept..kept + 200).contains(&number(heap, "live_objects")?), "{heap}");
        let predicted = number(heap, "trimmable_bytes")?;
        let gone = trimmed(&mut process)?;
        assert!(
            predicted.abs_diff(gone) * 100 <= gone,
            "{threads} threads: predicted {predicted}, gone {gone}"
        );
        process.finish()?;
    }
    Ok(())
}

/// While the program allocates and frees without end: still within three percent, and next to nothing is unknown.
#[test]
fn glibc_at_work() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let (mut process, _) = holes(200_000, 0)?;
    process.send_line("work")?;
    process.expect_out("WORKS")?;
    let mut predicted = 0;
    for _ in 0..20 {
        let census = census(process.pid())?;
        let heap = heap(&census, "glibc")?;
        let (mapped, unknown) = (number(heap, "mapped_bytes")?, number(heap, "unknown_bytes")?);
        assert!(unknown * 100 <= mapped, "{unknown} of {mapped}");
        predicted = number(heap, "trimmable_bytes")?;
    }
    let gone = trimmed(&mut process)?;
    assert!(predicted.abs_diff(gone) * 100 <= 3 * gone, "predicted {predicted}, gone {gone}");
    process.finish()?;
    Ok(())
}

/// Minor and major faults, and swapped memory.
fn counters(pid: u32) -> Result<(Vec<String>, Option<String>)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(')').context("a stat")?.1.split_whitespace().collect();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let swap = status.lines().find(|line| line.starts_with("VmSwap")).map(str::to_owned);
    Ok(([7, 9].map(|index| fields[index].to_owned()).to_vec(), swap))
}

/// A census changes nothing of the process: neither its faults nor its swapped and resident memory.
#[test]
fn touches_nothing() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let (process, _) = holes(200_000, 2)?;
    let before = counters(process.pid())?;
    let first = census(process.pid())?;
    let second = census(process.pid())?;
    assert_eq!(counters(process.pid())?, before);
    assert_eq!(first["rss_bytes"], second["rss_bytes"]);
    process.finish()?;
    Ok(())
}

/// A file of swap that is in use until this is dropped.
struct Swap(tempfile::NamedTempFile);

impl Swap {
    /// `None` where this machine cannot swap to a file.
    fn new() -> Result<Option<Self>> {
        let file = tempfile::NamedTempFile::new_in("/var/tmp")?;
        fs::write(file.path(), vec![0; 128 << 20])?;
        for program in ["mkswap", "swapon"] {
            if !Command::new(program).arg(file.path()).output()?.status.success() {
                return Ok(None);
            }
        }
        Ok(Some(Self(file)))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        drop(Command::new("swapoff").arg(self.0.path()).status());
    }
}

/// A heap that is swapped out stays there: neither faults nor swapped memory change, and what was not read is unknown.
#[test]
fn swapped() -> Result<()> {
    if !requires_root() || !has_programs(&["mkswap", "swapon"]) {
        return Ok(());
    }
    let Some(swap) = Swap::new()? else {
        environment::skip("this machine cannot swap to a file in /var/tmp");
        return Ok(());
    };
    let (mut process, _) = holes(100_000, 0)?;
    process.send_line("out")?;
    process.expect_out("OUT")?;
    let before = counters(process.pid())?;
    let census = census(process.pid())?;
    let swapped = number(&census, "swap_bytes")?;
    assert!(swapped > 10 << 20, "{swapped} of some 28 MiB: {before:?}");
    assert_eq!(counters(process.pid())?, before, "{census}");
    assert!(number(heap(&census, "glibc")?, "unknown_bytes")? > 10 << 20, "{census}");
    process.finish()?;
    drop(swap);
    Ok(())
}

/// A program's own structures, as a profile describes them: a list by the members' names, and an array.
#[test]
fn own_structures() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut process = Process::start("pools", Command::new(environment::target("pools")?))?;
    let ready = process.expect_out("READY ")?;
    let truth: Value = serde_json::from_str(ready.trim_start_matches("READY "))?;
    let mut command = Command::new(environment::drainprof()?);
    command.args(["census", "-o", "json", "-p", &process.pid().to_string(), "--profile"]);
    let output = command.arg(environment::profile("pools")).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let census: Value = serde_json::from_slice(&output.stdout)?;
    let structures = census["structures"].as_array().context("structures")?;
    let [blocks, slabs] = &structures[..] else { anyhow::bail!("{census}") };
    assert_eq!(blocks["mapped_bytes"], number(&truth, "blocks")? * 16384, "{blocks}");
    assert_eq!(blocks["live_objects"], truth["objects"], "{blocks}");
    assert_eq!(blocks["live_bytes"], truth["bytes"], "{blocks}");
    assert_eq!(slabs["mapped_bytes"], number(&truth, "slabs")? * 4096, "{slabs}");
    assert_eq!(slabs["live_objects"], truth["bits"], "{slabs}");
    assert_eq!(slabs["live_bytes"], number(&truth, "bits")? * 64, "{slabs}");
    process.finish()?;
    Ok(())
}

/// A cache of tuples that pins arenas; its own statistics come just before it sleeps.
const PYTHON: &str = "
import signal, sys
class Session:
    def __init__(self, number):
        self.number = number
pairs = [(number, str(number)) for number in range(300000)]
kept = pairs[::37]
sessions = [Session(number) for number in range(3000)]
del pairs
sys._debugmallocstats()
print('READY', len(kept), flush=True)
signal.pause()
";

/// `CPython`'s pools equal its own statistics, class by class, and the type that holds the arenas is named.
#[test]
fn cpython() -> Result<()> {
    if !requires_root() || !has_programs(&["python3"]) {
        return Ok(());
    }
    let mut command = Command::new("python3");
    command.args(["-c", PYTHON]);
    let mut process = Process::start("python3", command)?;
    let ready = process.expect_out("READY ")?;
    let kept: u64 = ready.trim_start_matches("READY ").parse()?;
    let mut truth = BTreeMap::new();
    for line in process.talk().lines() {
        let words: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        if let [_, size, pools, blocks, _] = words[..] {
            truth.insert(size, (pools, blocks));
        }
    }
    ensure!(truth.len() > 20, "statistics of {} classes", truth.len());
    let census = census(process.pid())?;
    let heap = heap(&census, "cpython")?;
    let classes = heap["classes"].as_array().context("classes")?;
    let mut off = 0;
    for class in classes {
        let own = (number(class, "granules")?, number(class, "objects")?);
        let (pools, blocks) = truth[&number(class, "size")?];
        assert_eq!(own.0, pools, "{class}");
        off += own.1.abs_diff(blocks);
    }
    // To print and to sleep takes a few objects.
    assert!(off <= 20, "{off} blocks differ: {classes:?} {truth:?}");
    let types = heap["types"].as_array().context("types")?;
    let objects = |name: &str| {
        types.iter().find(|one| one["name"] == name).and_then(|one| one["objects"].as_u64())
    };
    assert_eq!(objects("Session"), Some(3000), "{types:?}");
    let (tuples, strings) =
        (objects("tuple").context("tuples")?, objects("str").context("strings")?);
    assert!(tuples >= kept && strings >= kept, "{kept} kept: {tuples} tuples, {strings} strings");
    let arenas = heap["arenas"].as_array().context("arenas")?.len() as u64;
    let holders = types.iter().find(|one| one["name"] == "tuple").context("tuples")?;
    assert!(number(holders, "arenas")? * 10 >= arenas * 9, "{holders} of {arenas}");
    process.signal(nix::sys::signal::Signal::SIGTERM)?;
    process.finish()?;
    Ok(())
}

/// Slabs and regions of a stripped jemalloc equal what Redis says of it, class by class, but for what the question
/// itself takes.
#[test]
fn jemalloc() -> Result<()> {
    if !requires_root() || !has_programs(&["redis-server"]) {
        return Ok(());
    }
    let place = redis::Place::new()?;
    let mut server = Process::start("redis-server", place.command()?)?;
    server.expect_out_containing(redis::READY)?;
    let mut client = redis::Client::new(&place.socket())?;
    let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let set: Vec<_> =
        (0..50_000).map(|key| words(format!("SET key:{key} value-of-{key}"))).collect();
    client.ask_all(&set)?;
    let delete: Vec<_> =
        (0..50_000).step_by(2).map(|key| words(format!("DEL key:{key}"))).collect();
    client.ask_all(&delete)?;
    let value = "v".repeat(100_000);
    let large: Vec<_> = (0..20).map(|key| words(format!("SET large:{key} {value}"))).collect();
    client.ask_all(&large)?;
    // Once before, so that what it takes to answer is there.
    client.ask(&["MEMORY", "MALLOC-STATS"])?;
    let census = census(server.pid())?;
    let stats = client.ask(&["MEMORY", "MALLOC-STATS"])?;
    let (_, bins) = stats.split_once("bins:").context("bins")?;
    let classes = heap(&census, "jemalloc")?["classes"].as_array().context("classes")?;
    let mut compared = 0;
    for line in bins.lines().skip(1).take_while(|line| !line.starts_with("large")) {
        let words: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // size, index, allocated, nmalloc, /s, ndalloc, /s, nrequests, /s, nshards, curregs, curslabs
        let [size, _, _, _, _, _, _, _, _, _, regions, slabs, ..] = words[..] else { continue };
        let own = classes.iter().find(|class| class["size"] == size);
        let own = own.map_or((0, 0), |own| {
            (own["granules"].as_u64().unwrap_or(0), own["objects"].as_u64().unwrap_or(0))
        });
        assert!(
            own.0.abs_diff(slabs) <= 1 && own.1.abs_diff(regions) <= 2,
            "{size}: {own:?}, {line}"
        );
        compared += 1;
    }
    assert!(compared >= 10, "{compared} classes in {bins}");
    // Large objects do not begin at a page.
    let (_, all_large) = bins.split_once("large:").context("large objects")?;
    let mut objects = 0;
    for line in all_large.lines().skip(1).take_while(|line| !line.starts_with("extents")) {
        let words: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // size, index, allocated, nmalloc, /s, ndalloc, /s, nrequests, /s, curlextents
        let [size, .., extents] = words[..] else { continue };
        let own = classes.iter().find(|class| class["size"] == size);
        let own = own.map_or(0, |own| own["objects"].as_u64().unwrap_or(0));
        // What the question itself and its answer take.
        assert!(own.abs_diff(extents) <= 1, "{size}: {own}, {line}");
        objects += extents;
    }
    assert!(objects >= 20, "{objects} large objects in {all_large}");
    server.signal(nix::sys::signal::Signal::SIGTERM)?;
    server.finish()?;
    Ok(())
}

/// The objects of a heap by C++ class: with RTTI, stripped, and without RTTI by the vtables' symbols. The class that holds
/// the pages is named with the next step.
#[test]
fn classes() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    for target in ["classes", "classes_stripped", "classes_without_rtti"] {
        let command = Command::new(environment::target(target)?);
        let mut process = Process::start(target, command)?;
        let ready = process.expect_out("READY ")?;
        let truth: BTreeMap<String, u64> =
            serde_json::from_str(ready.trim_start_matches("READY "))?;
        let census = census(process.pid())?;
        let heap = heap(&census, "glibc")?;
        let types = heap["types"].as_array().context("types")?;
        let own = types.iter().map(|one| {
            Ok((one["name"].as_str().context("a name")?.to_owned(), number(one, "objects")?))
        });
        assert_eq!(own.collect::<Result<BTreeMap<_, _>>>()?, truth, "{target}");
        let session = types.iter().find(|one| one["name"] == "app::Session").context("sessions")?;
        assert!(number(session, "arenas_alone")? > 300, "{target}: {session}");
        let steps = census["next"].as_array().context("steps")?;
        let named = steps.iter().filter_map(|step| step["text"].as_str());
        let named = named.filter(|text| text.starts_with("glibc: 1000 `app::Session` objects"));
        assert_eq!(named.count(), 1, "{target}: {steps:?}");
        process.finish()?;
    }
    Ok(())
}

/// The census as a picture and as gauges: cells of the map, and the heap's bytes.
#[test]
fn other_formats() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let (process, truth) = holes(20_000, 1)?;
    let print = |format: &str| -> Result<String> {
        let mut command = Command::new(environment::drainprof()?);
        let output = command.args(["census", "-o", format, "-p", &process.pid().to_string()]);
        Ok(String::from_utf8(output.output()?.stdout)?)
    };
    let picture = print("svg")?;
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    assert!(picture.matches("<title>").count() > 500, "a cell for each page");
    let gauges = print("openmetrics")?;
    let free = number(&truth, "free")?;
    let gauge = format!("drainprof_heap_free_bytes{{pid=\"{}\",", process.pid());
    let line = gauges.lines().find(|line| line.starts_with(&gauge)).context("the gauge")?;
    assert!(line.ends_with(&format!(" {free}")), "{line}");
    process.finish()?;
    Ok(())
}

/// Another user's process is refused, with the exit code for missing privileges; one that is gone with its own.
#[test]
fn refusals() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let (process, _) = holes(1000, 0)?;
    let ask = |pid: u32, uid: u32| -> Result<_> {
        let mut command = Command::new(environment::drainprof()?);
        command.args(["census", "-p", &pid.to_string()]).uid(uid);
        Ok(command.output()?)
    };
    let refused = ask(process.pid(), 65_534)?;
    assert_eq!(refused.status.code(), Some(77), "{refused:?}");
    let pid = process.pid();
    process.finish()?;
    let gone = ask(pid, 0)?;
    assert_eq!(gone.status.code(), Some(4), "{gone:?}");
    Ok(())
}
