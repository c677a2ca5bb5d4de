//! Debian's Python as it is: arenas of its parser and compiler.
//!
//! How often a script compiles is known; what the start of the interpreter compiles is counted by a run of
//! the same script that compiles nothing itself.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::only_allocator,
    environment::{has_programs, requires_root},
    process::Process,
    runtimes::{closed_bytes, granules, hits},
    tracer::{Outcome, Tracer},
};
use serde_json::Value;

/// Debian's own, whatever else is called so.
const PYTHON: &str = "/usr/bin/python3";

/// Compiles one text as often as the argument says.
const COMPILE: &str =
    "import sys\nfor i in range(int(sys.argv[1])): compile('x = [1, 2, 3]', 'text', 'exec')\n";

/// Compiles a text of which the compiler warns, in the middle of it; whoever is warned waits for a line.
const WARNED: &str = r"
import sys, warnings
def wait(*_):
    print('WARNED', flush=True)
    sys.stdin.readline()
warnings.showwarning = wait
warnings.simplefilter('always')
print('READY', flush=True)
sys.stdin.readline()
compile('x = 1', 'text', 'exec')
compile('x is 1', 'text', 'exec')
print('COMPILED', flush=True)
sys.stdin.readline()
";

fn ready() -> bool {
    requires_root() && has_programs(&[PYTHON])
}

/// Python with nothing of the user's or the machine's own.
fn python(text: &str) -> Command {
    let mut command = Command::new(PYTHON);
    command.args(["-I", "-S", "-c", text]);
    command
}

fn compile(times: u64) -> Result<(Outcome, Value)> {
    let mut command = python(COMPILE);
    command.arg(times.to_string());
    let outcome = Tracer::run_command(&command, "cpython", &[])?.finish()?;
    ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
    let allocator = only_allocator(&outcome)?;
    Ok((outcome, allocator))
}

/// Each call of `compile` is one arena, opened and closed, in a program that is no PIE; the same text takes
/// as many objects each time, and an arena's blocks are at least as large as the objects in them.
#[test]
fn compiles_are_exact() -> Result<()> {
    if ready() {
        let mut objects = Vec::new();
        let mut base = None;
        for times in [0, 20, 40] {
            let (outcome, allocator) = compile(times)?;
            let [opened, before, closed, open] = granules(&allocator);
            let base = *base.get_or_insert(opened);
            assert_eq!((opened, closed), (base + times, base + times), "{allocator}");
            assert_eq!((before, open), (0, 0), "{allocator}");
            let [of, rejected] = hits(&outcome, "_PyArena_Malloc")?;
            assert_eq!((allocator["objects"]["allocated"].as_u64(), rejected), (Some(of), 0));
            let asked = allocator["objects"]["allocated_bytes"].as_u64().context("bytes")?;
            let held = closed_bytes(&allocator)?;
            assert!(held >= asked && held >= 8192 * closed && asked > 0, "{held}, {asked}");
            objects.push(of);
        }
        let (first, second) = (objects[1] - objects[0], objects[2] - objects[1]);
        assert!(first == second && first >= 20 * 5, "{objects:?}");
    }
    Ok(())
}

/// Attached to a program that runs: in the middle of compiling, its arena is the one that is open.
#[test]
fn arena_is_open_while_it_compiles() -> Result<()> {
    if ready() {
        let mut process = Process::start("python3", python(WARNED))?;
        process.expect_out("READY")?;
        let tracer = Tracer::attach(&[process.pid()], "cpython", &[])?;
        process.send_line("go")?;
        process.expect_out("WARNED")?;
        tracer.interrupt()?;
        let allocator = only_allocator(&tracer.finish()?)?;
        assert_eq!(granules(&allocator), [2, 0, 1, 1], "{allocator}");

        let tracer = Tracer::attach(&[process.pid()], "cpython", &[])?;
        process.send_line("go")?;
        process.expect_out("COMPILED")?;
        tracer.interrupt()?;
        let allocator = only_allocator(&tracer.finish()?)?;
        assert_eq!(granules(&allocator), [0, 1, 1, 0], "{allocator}");
        process.send_line("go")?;
        ensure!(process.finish()?.status.success(), "python failed");
    }
    Ok(())
}

/// Collects oldest generations.
const COLLECT: &str =
    "import gc, sys; gc.disable(); [gc.collect() for _ in range(int(sys.argv[1]))]";

/// The interpreter's own USDT probes, with semaphores and an argument on the stack, in a program that is no PIE: each
/// collection that is asked for begins and ends, and its argument says the oldest generation.
#[test]
fn collections_are_told_by_usdt() -> Result<()> {
    if ready() {
        let mut counts = Vec::new();
        for times in ["0", "25"] {
            let mut command = python(COLLECT);
            command.arg(times);
            let outcome = Tracer::run_command(&command, "usdt_python", &[])?.finish()?;
            let allocator = only_allocator(&outcome)?;
            let [opened, before, closed, open] = granules(&allocator);
            assert_eq!((before, open, opened), (0, 0, closed), "{allocator}");
            counts.push((opened, closed_bytes(&allocator)?));
        }
        let [(none, none_bytes), (some, bytes)] = counts[..] else { anyhow::bail!("two runs") };
        // The generation is 2, and the profile adds one.
        assert_eq!((some - none, bytes - none_bytes), (25, 25 * 3));
    }
    Ok(())
}
