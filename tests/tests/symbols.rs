//! Places have names: from DWARF, separate debug files, symbol tables and perf maps; of programs, libraries and
//! generated code that are still there, and of those that are gone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    elf,
    environment::{self, has_programs, requires_root},
    helper::helper_of,
    nginx::Nginx,
    target::Target,
    tracer::{Outcome, Tracer, trace, trace_from_start},
};
use nix::sys::signal::Signal;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{PidfdFlags, pidfd_open},
};
use serde_json::Value;

const PLACES: &str = "places";

/// How many granules each place of `places` opens: by this its places are told apart.
const EXPORTED: u64 = 2;
const HIDDEN: u64 = 3;
const INLINED: u64 = 4;
const PLUGIN: u64 = 5;
const JIT: u64 = 6;

/// The place of the first process at which `closed` granules were opened.
fn place(outcome: &Outcome, closed: u64) -> Value {
    let places = &outcome.report()["targets"][0]["allocators"][0]["lifetimes"]["places"];
    let all = places.as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|place| place["closed"] == closed);
    found.unwrap_or_else(|| panic!("no place opened {closed}: {places:#}")).clone()
}

/// The line of a target's source that has a mark.
fn line(source: &str, mark: &str) -> Result<u64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets").join(source);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let index = text.lines().position(|line| line.contains(&format!("mark: {mark}")));
    Ok(index.with_context(|| format!("{source} has no mark {mark}"))? as u64 + 1)
}

/// Checks function, file and line of a frame.
fn is_at(frame: &Value, function: &str, source: &str, mark: &str) -> Result<()> {
    let file = frame["file"].as_str().unwrap_or_default();
    ensure!(frame["function"] == function, "not {function}: {frame:#}");
    ensure!(file.ends_with(&format!("/{source}")), "not in {source}: {frame:#}");
    ensure!(frame["line"] == line(source, mark)?, "not at the line marked {mark}: {frame:#}");
    Ok(())
}

/// Checks everything that DWARF knows of the places of `places`, in a program called `name`.
fn all_from_dwarf(outcome: &Outcome, name: &str) -> Result<()> {
    for (closed, function, mark) in
        [(EXPORTED, "exported_caller", "exported"), (HIDDEN, "hidden_caller", "hidden")]
    {
        let place = place(outcome, closed);
        is_at(&place, function, "places.c", mark)?;
        ensure!(
            place["module"] == name && place["inlined"] == Value::Array(Vec::new()),
            "{place:#}"
        );
    }
    let place = place(outcome, INLINED);
    is_at(&place, "caller_of_inlined", "places.c", "around")?;
    is_at(&place["inlined"][0], "inlined_opener", "places.c", "inlined")
}

/// The place and its symbol's offset lead back to the function in the file.
fn offsets_are_right(place: &Value, name: &str, function: &str) -> Result<()> {
    let path = environment::target(name)?;
    let offset = place["offset"].as_u64().context("an offset")?;
    let at = place["module_offset"].as_str().and_then(|text| text.strip_prefix("0x"));
    let at = u64::from_str_radix(at.context("a module offset")?, 16)?;
    let data = fs::read(&path)?;
    let file = object::File::parse(&*data)?;
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function));
    let symbol = symbol.with_context(|| format!("{name} has no symbol {function}"))?;
    ensure!(at - offset == symbol.address(), "{function} is at {:#x}: {place:#}", symbol.address());
    ensure!((1..=symbol.size()).contains(&offset), "outside of {function}: {place:#}");
    Ok(())
}

fn places(name: &str, more: &[&str]) -> Result<Outcome> {
    let outcome = trace(name, &[], PLACES, more)?.outcome;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    Ok(outcome)
}

/// Function, file and line come from the program's own DWARF, be it position independent, fixed or static.
#[test]
fn own_dwarf() -> Result<()> {
    if requires_root() {
        for name in ["places", "places_fixed", "places_static"] {
            let outcome = places(name, &[])?;
            all_from_dwarf(&outcome, name)?;
            offsets_are_right(&place(&outcome, HIDDEN), name, "hidden_caller")?;
            let symbols = &outcome.report()["symbols"];
            assert_eq!((&symbols["places"], &symbols["named"]), (&3.into(), &3.into()), "{name}");
        }
    }
    Ok(())
}

/// A stripped program's debug file is found beside it, by its debug link.
#[test]
fn debug_link() -> Result<()> {
    if requires_root() {
        for name in ["places_split", "places_fixed_split"] {
            all_from_dwarf(&places(name, &[])?, name)?;
        }
    }
    Ok(())
}

/// What `dwz` moved to a file that several programs share is found there, through the link relative to the program.
#[test]
fn shared_debug_file() -> Result<()> {
    if requires_root() && has_programs(&["dwz"]) {
        let directory = tempfile::tempdir()?;
        let mut dwz = Command::new("dwz");
        dwz.args(["-m", "shared.dwz", "-M", "shared.dwz"]).current_dir(directory.path());
        for name in ["places", "places_fixed", "paths"] {
            fs::copy(environment::target(name)?, directory.path().join(name))?;
            dwz.arg(name);
        }
        ensure!(dwz.status()?.success(), "dwz failed");
        let path = directory.path().join("places");
        let data = fs::read(&path)?;
        let file = object::File::parse(&*data)?;
        ensure!(file.section_by_name(".gnu_debugaltlink").is_some(), "nothing is shared");
        let mut target = Target::start_command("places, shared", Command::new(&path))?;
        let tracer = Tracer::attach(&[target.pid()], PLACES, &[])?;
        target.go()?;
        target.finish()?;
        all_from_dwarf(&tracer.finish()?, "places")?;
    }
    Ok(())
}

/// A directory of debug files by build id, with the one of `name`.
fn by_build_id(name: &str, directory: &Path) -> Result<()> {
    let id = elf::build_id(&environment::target(name)?)?;
    let beside = directory.join(".build-id").join(&id[..2]);
    fs::create_dir_all(&beside)?;
    let debug = environment::targets().join(format!("{name}_split.debug"));
    fs::copy(debug, beside.join(format!("{}.debug", &id[2..])))?;
    Ok(())
}

/// A stripped program's debug file is found by its build id, under `--debug-dir`.
#[test]
fn debug_directory() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        by_build_id("places", directory.path())?;
        let path = directory.path().to_str().context("a plain path")?;
        all_from_dwarf(&places("places_stripped", &["--debug-dir", path])?, "places_stripped")?;
    }
    Ok(())
}

/// Without a debug file, what the program exports has a name, and the rest is module and offset.
#[test]
fn stripped() -> Result<()> {
    if requires_root() {
        let outcome = places("places_stripped", &[])?;
        let exported = place(&outcome, EXPORTED);
        assert_eq!(exported["function"], "exported_caller");
        assert_eq!((&exported["file"], &exported["line"]), (&Value::Null, &Value::Null));
        offsets_are_right(&exported, "places", "exported_caller")?;
        let hidden = place(&outcome, HIDDEN);
        assert_eq!(
            (&hidden["function"], &hidden["offset"], &hidden["module"]),
            (&Value::Null, &Value::Null, &"places_stripped".into())
        );
        // What has no name here can be named elsewhere: it is the same place as in the whole program.
        let whole = place(&places("places", &[])?, HIDDEN);
        assert_eq!(hidden["module_offset"], whole["module_offset"]);
        assert_eq!(outcome.report()["symbols"]["named"], 2);
    }
    Ok(())
}

/// C++ names are demangled.
#[test]
fn cpp() -> Result<()> {
    if requires_root() {
        let place = place(&places("places_cpp", &[])?, 2);
        let name = place["function"].as_str().unwrap_or_default();
        assert!(name.starts_with("shop::Cart<unsigned long>::fill"), "{name}");
        assert_eq!(place["line"], line("places_cpp.cc", "cart")?);
    }
    Ok(())
}

/// Rust names are demangled, without a hash, and a function that was inlined is named with its line.
#[test]
fn rust() -> Result<()> {
    if requires_root() {
        let place = place(&places("rust_places", &[])?, 3);
        is_at(&place, "rust_places::Server::serve", "rust/rust_places.rs", "around")?;
        is_at(&place["inlined"][0], "rust_places::open_batch", "rust/rust_places.rs", "inlined")?;
    }
    Ok(())
}

/// A process that ran under `run`, and had ended before anybody asked for its names, has them all the same.
#[test]
fn ended_process() -> Result<()> {
    if requires_root() {
        let outcome = trace_from_start("places", &[], PLACES, &[])?.outcome;
        assert!(!outcome.report()["targets"][0]["ended"].is_null());
        all_from_dwarf(&outcome, "places")?;
    }
    Ok(())
}

/// Waits until an interval of an `ndjson` stream tells of `opened` granules.
fn interval_with(tracer: &mut Tracer, opened: u64) -> Result<()> {
    loop {
        let line = tracer.process().expect_out("{\"record\":\"interval\"")?;
        let record: Value = serde_json::from_str(&line)?;
        if record["allocators"][0]["total"]["opened"] == opened {
            return Ok(());
        }
    }
}

/// `attach` with short intervals, and its report on stdout.
fn stream(pid: u32, format: &str) -> Result<Tracer> {
    let mut command = drainprof_tests::tracer::command()?;
    command.args(["attach", "-p", &pid.to_string(), "-i", "50ms", "-o", format]);
    command.args(["--profile", &environment::profile(PLACES)]);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    Ok(tracer)
}

/// The outcome of a stream, with the report of its last line.
fn streamed(tracer: Tracer) -> Result<Outcome> {
    let mut outcome = tracer.finish()?;
    let last = outcome.stdout.last().context("the stream has a last line")?;
    let mut record: Value = serde_json::from_str(last)?;
    outcome.report = Some(record["report"].take());
    Ok(outcome)
}

/// What a library opened keeps its name after the library was unloaded, deleted, and the process has ended.
#[test]
fn unloaded_library() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let library: PathBuf = directory.path().join("libplugin.so");
        fs::copy(environment::target("places_plugin")?, &library)?;
        let option = format!("plugin={}", library.display());
        let mut target = Target::start("places", &[&option, "stops=1"])?;
        let mut tracer = stream(target.pid(), "ndjson")?;
        target.go()?;
        target.reaches("loaded")?;
        interval_with(&mut tracer, EXPORTED + HIDDEN + INLINED + PLUGIN)?;
        fs::remove_file(&library)?;
        target.go()?;
        target.reaches("unloaded")?;
        target.go()?;
        target.reaches("end")?;
        target.go()?;
        target.finish()?;
        let outcome = streamed(tracer)?;
        let place = place(&outcome, PLUGIN);
        is_at(&place, "plugin_opens", "places_plugin.c", "plugin")?;
        assert_eq!(place["module"], "libplugin.so");
        all_from_dwarf(&outcome, "places")?;
    }
    Ok(())
}

/// Code that a process makes while it runs is named by its perf map.
#[test]
#[cfg(target_arch = "x86_64")]
fn generated_code() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("places", &["jit=1", "stops=1"])?;
        let mut tracer = stream(target.pid(), "ndjson")?;
        target.go()?;
        target.reaches("made")?;
        interval_with(&mut tracer, EXPORTED + HIDDEN + INLINED + JIT)?;
        target.go()?;
        target.reaches("end")?;
        target.go()?;
        target.finish()?;
        let place = place(&streamed(tracer)?, JIT);
        assert_eq!(
            (&place["function"], &place["module"], &place["offset"]),
            (&"made while it runs".into(), &"[generated]".into(), &26.into()),
            "{place:#}"
        );
    }
    Ok(())
}

/// In a root of its own (as in a container) the program and its debug file are those of that root.
#[test]
fn own_root() -> Result<()> {
    if requires_root() && has_programs(&["chroot"]) {
        let root = tempfile::tempdir()?;
        fs::copy(environment::target("places_static_stripped")?, root.path().join("svc"))?;
        by_build_id("places_static", &root.path().join("usr/lib/debug"))?;
        let mut command = Command::new("chroot");
        command.arg(root.path()).arg("/svc");
        let mut target = Target::start_command("places in a root of its own", command)?;
        let tracer = Tracer::attach(&[target.pid()], PLACES, &[])?;
        target.go()?;
        target.finish()?;
        all_from_dwarf(&tracer.finish()?, "svc")?;
    }
    Ok(())
}

/// nginx as Debian ships it, stripped: every place lies in a module, and what it exports is named.
#[test]
fn nginx() -> Result<()> {
    if requires_root() && has_programs(&["nginx", "ab"]) {
        let nginx = Nginx::start(false)?;
        let tracer = Tracer::attach(&[nginx.worker], "nginx", &[])?;
        nginx.ab(&["-n", "20", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        let places = &outcome.report()["targets"][0]["allocators"][0]["lifetimes"]["places"];
        let places = places.as_array().context("a list of places")?;
        assert_eq!(places.len(), 2, "connections and requests: {places:#?}");
        for place in places {
            assert_eq!(place["module"], "nginx");
            assert!(place["module_offset"].is_string());
        }
        let named = |name: &str| places.iter().any(|place| place["function"] == name);
        assert!(named("ngx_event_accept"), "{places:#?}");
        nginx.quit()?;
    }
    Ok(())
}

/// DWARF that claims to unfold to a terabyte is not read: functions are still named, from the symbol table, the
/// reason is reported, and the counts are what they are.
#[test]
fn hostile_dwarf() -> Result<()> {
    if requires_root() && has_programs(&["objcopy"]) {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("svc");
        let mut objcopy = Command::new("objcopy");
        objcopy.arg("--compress-debug-sections=zlib").arg(environment::target("places")?);
        ensure!(objcopy.arg(&path).status()?.success(), "objcopy failed");
        let mut bytes = fs::read(&path)?;
        let at = {
            let file = object::File::parse(&*bytes)?;
            let section = file.section_by_name(".debug_info").context("it has DWARF")?;
            usize::try_from(section.file_range().context("in the file")?.0)? + 8
        };
        bytes[at..at + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        fs::write(&path, bytes)?;
        let mut target = Target::start_command("places with hostile DWARF", Command::new(&path))?;
        let tracer = Tracer::attach(&[target.pid()], PLACES, &[])?;
        target.go()?;
        target.finish()?;
        let outcome = tracer.finish()?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        let place = place(&outcome, HIDDEN);
        assert_eq!((&place["function"], &place["line"]), (&"hidden_caller".into(), &Value::Null));
        let report = outcome.report();
        assert_eq!(report["symbols"]["given_up"], 3);
        let findings = report["findings"].as_array().cloned().unwrap_or_default();
        let found = findings.iter().find(|finding| finding["code"] == "names_missing");
        let message =
            found.context("it is told")?["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("svc") && message.contains("claims to unfold"), "{message}");
    }
    Ok(())
}

/// The helper ends with drainprof, also when that is killed.
#[test]
fn helper_is_not_left_behind() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("places", &["stops=1"])?;
        let mut tracer = stream(target.pid(), "ndjson")?;
        target.go()?;
        target.reaches("end")?;
        interval_with(&mut tracer, EXPORTED + HIDDEN + INLINED)?;
        let drainprof = tracer.process().pid();
        let helper = helper_of(drainprof)?;
        let ended = pidfd_open(helper, PidfdFlags::empty())?;
        tracer.process().signal(Signal::SIGKILL)?;
        let limit =
            Timespec { tv_sec: i64::try_from(environment::deadline().as_secs())?, tv_nsec: 0 };
        let mut waited = [PollFd::new(&ended, PollFlags::IN)];
        ensure!(poll(&mut waited, Some(&limit))? == 1, "helper {helper:?} runs on");
        tracer.finish()?;
        target.go()?;
        target.finish()?;
    }
    Ok(())
}

/// With `--no-symbols` there are addresses alone.
#[test]
fn not_wanted() -> Result<()> {
    if requires_root() {
        let outcome = places("places", &["--no-symbols"])?;
        assert_eq!(outcome.report()["symbols"], Value::Null);
        let place = place(&outcome, HIDDEN);
        assert!(place["place"].is_string());
        assert_eq!((&place["function"], &place["module"]), (&Value::Null, &Value::Null));
    }
    Ok(())
}

/// People read function, file and line, and the function alone in narrow tables.
#[test]
fn text() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("places", &[])?;
        let tracer = stream(target.pid(), "text")?;
        target.go()?;
        target.finish()?;
        let page = tracer.finish()?.stdout.join("\n");
        for part in [
            format!("places.c:{} (places)", line("places.c", "hidden")?),
            "hidden_caller+0x".to_owned(),
            "inlined in".to_owned(),
        ] {
            assert!(page.contains(&part), "no {part:?} in:\n{page}");
        }
    }
    Ok(())
}
