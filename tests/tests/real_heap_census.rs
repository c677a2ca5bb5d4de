//! The census from outside of further allocators as Debian has them: Ruby against `ObjectSpace.count_objects` and
//! `GC.stat`, Go against `runtime.MemStats`, mimalloc and tcmalloc against programs that know what they hold.

use std::{collections::BTreeMap, process::Command, time::Instant};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, deadline, has_programs, requires_root},
    process::Process,
};
use nix::sys::signal::Signal;
use serde_json::Value;

const MIMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0";

/// The heap of an allocator, as a census says it.
fn heap(pid: u32, allocator: &str) -> Result<Value> {
    let mut command = Command::new(environment::drainprof()?);
    let output = command.args(["census", "-o", "json", "-p", &pid.to_string()]).output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {talk}", output.status);
    let census: Value = serde_json::from_slice(&output.stdout)?;
    let heaps = census["heaps"].as_array().context("heaps")?;
    let heap = heaps.iter().find(|heap| heap["allocator"] == allocator);
    heap.cloned().with_context(|| format!("{allocator} in {census}"))
}

/// Waits until its state says that it has stopped.
fn until_stopped(pid: u32) -> Result<()> {
    let (stat, until) = (format!("/proc/{pid}/stat"), Instant::now() + deadline());
    loop {
        let text = std::fs::read_to_string(&stat)?;
        if text.contains(") T ") {
            return Ok(());
        }
        ensure!(!text.contains(") Z ") && Instant::now() < until, "it does not stop: {text}");
        std::thread::yield_now();
    }
}

/// Objects that hold pages. The program stops between its own count and the first object that it makes after it.
const RUBY: &str = "
$stdout.sync = true
class Session; end
$kept = (0..200_000).map { |number| \"number #{number}, as long as a string is that lies elsewhere\" }
  .each_slice(37).map(&:first)
$sessions = (0..5000).map { Session.new }
counts, stat = {}, {}
GC.start
puts 'READY'
# The first round makes what the calls themselves keep.
[0, 0, :STOP].each do |signal|
  GC.stat(stat)
  ObjectSpace.count_objects(counts)
  Process.kill(signal, $$)
end
puts 'COUNTS ' + counts.merge(stat).map { |key, value| \"#{key}=#{value}\" }.join(' ')
";

/// Slots in use by type, free ones, and pages equal what Ruby says of itself.
#[test]
fn ruby() -> Result<()> {
    if !requires_root() || !has_programs(&["ruby"]) {
        return Ok(());
    }
    let mut command = Command::new("ruby");
    command.args(["-e", RUBY]);
    let mut process = Process::start("ruby", command)?;
    process.expect_out("READY")?;
    until_stopped(process.pid())?;
    let heap = heap(process.pid(), "ruby")?;
    process.signal(Signal::SIGCONT)?;
    let line = process.expect_out("COUNTS ")?;
    let pairs = line.split(' ').skip(1).map(|pair| pair.split_once('=').context("a pair"));
    let pairs: BTreeMap<_, _> = pairs.collect::<Result<_>>()?;
    let truth = |key: &str| -> Result<u64> { Ok(pairs.get(key).context(key.to_owned())?.parse()?) };
    let types = heap["types"].as_array().context("types")?;
    for one in types {
        let name = one["name"].as_str().context("a name")?;
        assert_eq!(one["objects"], truth(name)?, "{name}: {line}");
    }
    let named = pairs.keys().filter(|key| key.starts_with("T_")).count();
    assert_eq!(types.len(), named, "{types:?}: {line}");
    assert_eq!(heap["live_objects"], truth("TOTAL")? - truth("FREE")?, "{line}");
    let classes = heap["classes"].as_array().context("classes")?;
    let pages: u64 = classes.iter().filter_map(|class| class["granules"].as_u64()).sum();
    assert_eq!(pages, truth("heap_allocated_pages")?, "{line}");
    let strings = types.iter().find(|one| one["name"] == "T_STRING").context("strings")?;
    ensure!(strings["arenas"].as_u64() > Some(pages / 2), "{strings}");
    process.finish()?;
    Ok(())
}

/// A program that stops between its own count of the objects of each size and the first that it makes after it.
const GO: &str = r#"
package main
import ("fmt"; "os"; "runtime"; "syscall")
type session struct { words [10]int; next *session }
var kept []*session
var buffers [][]byte
var stats runtime.MemStats
func main() {
	for i := 0; i < 300000; i++ {
		one := &session{}
		if i%37 == 0 { kept = append(kept, one) }
		buffer := make([]byte, 16+i%500)
		if i%50 == 0 { buffers = append(buffers, buffer) }
	}
	large := make([]byte, 5<<20)
	runtime.GC()
	runtime.GC()
	fmt.Println("READY")
	runtime.ReadMemStats(&stats)
	runtime.ReadMemStats(&stats)
	syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	fmt.Print("COUNTS {")
	for i, size := range stats.BySize {
		if i > 0 { fmt.Printf("\"%d\":%d,", size.Size, size.Mallocs-size.Frees) }
	}
	fmt.Printf("\"stacks\":%d}\n", stats.StackInuse)
	fmt.Println(len(kept), len(buffers), large[7])
}
"#;

/// Objects in use of each size equal what Go says of itself, with symbols and without, where large ones lie too.
#[test]
fn go() -> Result<()> {
    if !requires_root() || !has_programs(&["go"]) {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let (source, program) = (directory.path().join("spans.go"), directory.path().join("spans"));
    std::fs::write(&source, GO)?;
    for flags in ["", "-s -w"] {
        let mut build = Command::new("go");
        build.env("HOME", directory.path()).args(["build", "-ldflags", flags, "-o"]);
        let output = build.arg(&program).arg(&source).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut process = Process::start("spans", Command::new(&program))?;
        process.expect_out("READY")?;
        until_stopped(process.pid())?;
        let heap = heap(process.pid(), "go")?;
        process.signal(Signal::SIGCONT)?;
        let line = process.expect_out("COUNTS ")?;
        let mut truth: BTreeMap<String, u64> =
            serde_json::from_str(line.trim_start_matches("COUNTS "))?;
        let stacks = truth.remove("stacks").context("stacks")?;
        let classes = heap["classes"].as_array().context("classes")?;
        let objects = |size: u64| {
            let class = classes.iter().find(|class| class["size"] == size);
            class.and_then(|class| class["objects"].as_u64()).unwrap_or_default()
        };
        for (size, count) in &truth {
            assert_eq!(objects(size.parse()?), *count, "{size}: {line} {classes:?}");
        }
        assert_eq!(objects(5 << 20), 1, "{classes:?}");
        assert_eq!(heap["types"][0]["bytes"].as_u64(), Some(stacks), "{heap}");
        process.finish()?;
    }
    Ok(())
}

const TCMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";

/// Objects of tcmalloc by size: of what lives none is missing, and what caches keep is little.
#[test]
fn tcmalloc() -> Result<()> {
    if !requires_root() || !has_programs(&[TCMALLOC]) {
        return Ok(());
    }
    let mut command = Command::new(environment::target("classes")?);
    command.env("LD_PRELOAD", TCMALLOC);
    let mut process = Process::start("classes", command)?;
    process.expect_out("READY ")?;
    let heap = heap(process.pid(), "tcmalloc")?;
    let classes = heap["classes"].as_array().context("classes")?;
    let objects = |size: u64| {
        let class = classes.iter().find(|class| class["size"] == size);
        class.and_then(|class| class["objects"].as_u64()).unwrap_or_default()
    };
    // A session has 88 bytes, a cache 64 and a part of another class, what is hidden 112.
    assert!((1000..1100).contains(&objects(96)), "{classes:?}");
    assert!((250..350).contains(&objects(80)), "{classes:?}");
    assert!((250..350).contains(&objects(112)), "{classes:?}");
    let resident = heap["resident_bytes"].as_u64().context("resident")?;
    let free = heap["granules"]["empty_bytes"].as_u64().context("free spans")?;
    assert!(free * 2 > resident && resident > 20_000 * 1500, "{heap}");
    process.finish()?;
    Ok(())
}

/// Blocks by size, exactly; those that another thread has freed are apart.
#[test]
fn mimalloc() -> Result<()> {
    if !requires_root() || !has_programs(&[MIMALLOC]) {
        return Ok(());
    }
    let mut command = Command::new(environment::target("mi_census")?);
    command.arg(MIMALLOC);
    let mut process = Process::start("mi_census", command)?;
    let ready = process.expect_out("READY ")?;
    let mut truth: BTreeMap<String, u64> =
        serde_json::from_str(ready.trim_start_matches("READY "))?;
    // The first block of a page that another thread frees waits in a list of the heap, and counts as live.
    truth.insert("768".to_owned(), 1);
    let heap = heap(process.pid(), "mimalloc")?;
    let classes = heap["classes"].as_array().context("classes")?;
    let own: BTreeMap<String, u64> = classes
        .iter()
        .filter(|class| class["objects"] != 0)
        .map(|class| (class["size"].to_string(), class["objects"].as_u64().unwrap_or_default()))
        .collect();
    assert_eq!(own, truth);
    assert_eq!(heap["cached_bytes"], 39 * 768, "{heap}");
    ensure!(heap["granules"]["full"].as_u64() >= Some(2), "{heap}");
    process.finish()?;
    Ok(())
}
