//! Debian's tcmalloc (gperftools) as it is, preloaded into Python.
//!
//! A library that is preloaded before it stands before the page heap's functions, and counts from inside.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{has_programs, requires_root, targets, which},
    process::Process,
    runtimes::{closed_bytes, granules, hits, only_allocator},
    tracer::Tracer,
};
use serde_json::Value;
use tempfile::TempDir;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
const PYTHON: &str = "/usr/bin/python3";

/// 20,000 objects, of which every hundredth is kept.
const CHURN: &str = "kept = [bytes(100) for _ in range(20000)][::100]\n";

/// The same when it is told to, and then something again.
const STEPS: &str = r"
import sys
def step(word):
    print(word, flush=True)
    sys.stdin.readline()
step('READY')
kept = [bytes(100) for _ in range(20000)][::100]
step('CHURNED')
del kept
more = [bytes(1000) for _ in range(2000)]
step('MORE')
";

fn ready() -> bool {
    requires_root() && has_programs(&[PYTHON, LIBRARY])
}

/// What the library inside counts, in the order in which it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    opened: u64,
    opened_bytes: u64,
    closed: u64,
    closed_bytes: u64,
    closed_in_use: u64,
    large_closed: u64,
    grown: u64,
}

/// The file in which it counts.
struct Counters {
    directory: TempDir,
}

impl Counters {
    fn new() -> Result<Self> {
        let counters = Self { directory: TempDir::new()? };
        fs::write(counters.path(), [0; size_of::<Counts>()])?;
        Ok(counters)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("counts")
    }

    fn read(&self) -> Result<Counts> {
        let bytes = fs::read(self.path())?;
        let mut words =
            bytes.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes));
        let mut next = || words.next().context("the file of counts is too short");
        Ok(Counts {
            opened: next()?,
            opened_bytes: next()?,
            closed: next()?,
            closed_bytes: next()?,
            closed_in_use: next()?,
            large_closed: next()?,
            grown: next()?,
        })
    }

    /// Python on tcmalloc, with every object from malloc; `env` sets that, so that it is for Python alone.
    fn python(&self, text: &str) -> Result<Command> {
        let assign = |name: &str, path: &Path| format!("{name}={}", path.display());
        let preload = format!("{}:{LIBRARY}", targets().join("tcmalloc_counts").display());
        let mut command = Command::new(which("env").context("env is installed")?);
        command.arg("PYTHONMALLOC=malloc").arg(format!("LD_PRELOAD={preload}"));
        command.arg(assign("TCMALLOC_COUNTS", &self.path()));
        command.args([PYTHON, "-s", "-S", "-c", text]);
        Ok(command)
    }
}

fn bytes_open(allocator: &Value) -> Result<u64> {
    let open = allocator["open_granules"].as_array().context("a list of open spans")?;
    open.iter().map(|span| span["bytes"].as_u64().context("a span's bytes")).sum()
}

/// From the start of a process to its end: each span of small objects is counted as inside, with its bytes;
/// each was empty when it closed, and what is open is the rest.
#[test]
fn spans_are_exact() -> Result<()> {
    if ready() {
        let counters = Counters::new()?;
        let more = ["--top", "1000"];
        let outcome = Tracer::run_command(&counters.python(CHURN)?, "tcmalloc", &more)?.finish()?;
        ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
        let inside = counters.read()?;
        let allocator = only_allocator(&outcome)?;
        assert_eq!((&allocator["kind"], &allocator["level"]), (&"slab".into(), &"boundary".into()));
        let left = inside.opened - inside.closed;
        assert_eq!(granules(&allocator), [inside.opened, 0, inside.closed, left], "{inside:?}");
        assert_eq!(closed_bytes(&allocator)?, inside.closed_bytes);
        assert_eq!(bytes_open(&allocator)?, inside.opened_bytes - inside.closed_bytes);
        assert_eq!(inside.closed_in_use, 0, "tcmalloc closes only what is empty");
        // 350 spans for the 20,000 objects and a few more; one of 80 objects stays in each of most.
        assert!(inside.opened > 350 && left > 150 && inside.closed > 150, "{inside:?}");
        // Fresh memory comes in as if a span were given back.
        assert!(inside.large_closed >= inside.grown && inside.grown > 0, "{inside:?}");
        let hits = hits(&outcome, "_ZN8tcmalloc8PageHeap6DeleteEPNS_4SpanE")?;
        assert_eq!(hits, [inside.closed + inside.large_closed, inside.large_closed]);
    }
    Ok(())
}

/// Attached in the middle, twice: what opens and closes meanwhile is as inside, and of closes as many are of
/// spans from before as those of this time do not account for.
#[test]
fn spans_are_exact_from_now_on() -> Result<()> {
    if ready() {
        let counters = Counters::new()?;
        let mut process = Process::start("python3", counters.python(STEPS)?)?;
        process.expect_out("READY")?;
        for word in ["CHURNED", "MORE"] {
            let before = counters.read()?;
            let tracer = Tracer::attach(&[process.pid()], "tcmalloc", &[])?;
            process.send_line("go")?;
            process.expect_out(word)?;
            tracer.interrupt()?;
            let allocator = only_allocator(&tracer.finish()?)?;
            let after = counters.read()?;
            let [opened, known, closed, open] = granules(&allocator);
            assert_eq!(opened, after.opened - before.opened, "{word}: {allocator}");
            assert_eq!(closed, after.closed - before.closed, "{word}: {allocator}");
            assert_eq!(opened + known, closed + open, "{word}: {allocator}");
            assert!(opened > 100 && closed > 100, "{word}: {opened} and {closed}");
        }
        process.send_line("go")?;
        ensure!(process.finish()?.status.success(), "python failed");
    }
    Ok(())
}
