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
    compare::only_allocator,
    environment::{has_programs, requires_root, targets, which},
    process::Process,
    runtimes::{closed_bytes, granules, hits, waits_for_a_line},
    tracer::Tracer,
};
use serde_json::Value;
use tempfile::TempDir;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
const PYTHON: &str = "/usr/bin/python3";

/// When it is told to, makes 20,000 objects and keeps every hundredth; then lets them go and makes others.
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
#[derive(Clone, Copy, Debug)]
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

impl Counts {
    /// What has come since.
    fn since(self, before: Self) -> Self {
        Self {
            opened: self.opened - before.opened,
            opened_bytes: self.opened_bytes - before.opened_bytes,
            closed: self.closed - before.closed,
            closed_bytes: self.closed_bytes - before.closed_bytes,
            closed_in_use: self.closed_in_use - before.closed_in_use,
            large_closed: self.large_closed - before.large_closed,
            grown: self.grown - before.grown,
        }
    }
}

/// A Python on tcmalloc that does the next thing when it is told to.
struct Python {
    process: Process,
}

impl Python {
    fn start(counters: &Counters, word: &str) -> Result<Self> {
        let mut process = Process::start("python3", counters.python(STEPS)?)?;
        process.expect_out(word)?;
        waits_for_a_line(process.pid())?;
        Ok(Self { process })
    }

    /// Lets it run until it says `word` and waits again.
    fn go_to(&mut self, word: &str) -> Result<()> {
        self.process.send_line("go")?;
        self.process.expect_out(word)?;
        waits_for_a_line(self.process.pid())
    }

    fn end(mut self) -> Result<()> {
        self.process.send_line("go")?;
        let ended = self.process.finish()?;
        ensure!(ended.status.success(), "python failed: {ended:?}");
        Ok(())
    }
}

fn bytes_open(allocator: &Value) -> Result<u64> {
    let open = allocator["open_granules"].as_array().context("a list of open spans")?;
    open.iter().map(|span| span["bytes"].as_u64().context("a span's bytes")).sum()
}

/// From a moment of rest to the end of the process: each span of small objects is counted as inside, with its
/// bytes; each was empty when it closed, and what is open is the rest.
#[test]
fn spans_are_exact() -> Result<()> {
    if ready() {
        let counters = Counters::new()?;
        let mut python = Python::start(&counters, "READY")?;
        let before = counters.read()?;
        let more = ["--top", "1000"];
        let tracer = Tracer::attach(&[python.process.pid()], "tcmalloc", &more)?;
        for word in ["CHURNED", "MORE"] {
            python.go_to(word)?;
        }
        python.end()?;
        let outcome = tracer.finish()?;
        ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
        let inside = counters.read()?.since(before);
        let allocator = only_allocator(&outcome)?;
        assert_eq!((&allocator["kind"], &allocator["level"]), (&"slab".into(), &"boundary".into()));
        let [opened, known, closed, open] = granules(&allocator);
        assert_eq!((opened, closed), (inside.opened, inside.closed), "{allocator}");
        assert_eq!(opened + known, closed + open, "{allocator}");
        assert_eq!(closed_bytes(&allocator)?, inside.closed_bytes);
        let held = inside.opened_bytes - bytes_open(&allocator)?;
        assert!(held > 0 && held <= inside.closed_bytes, "{held} of {inside:?}");
        assert_eq!(inside.closed_in_use, 0, "tcmalloc closes only what is empty");
        // Fresh memory comes in as if a span were given back.
        assert!(inside.large_closed >= inside.grown && inside.grown > 0, "{inside:?}");
        let all = inside.closed + inside.large_closed;
        let hits = hits(&outcome, "_ZN8tcmalloc8PageHeap6DeleteEPNS_4SpanE")?;
        assert_eq!(hits, [all, inside.large_closed]);
    }
    Ok(())
}

/// Of 20,000 objects that fill spans every hundredth is kept, and most of the spans stay; what is looked at
/// apart is as inside, each time, and spans from before are told from those of the time.
#[test]
fn few_objects_hold_spans() -> Result<()> {
    if ready() {
        let counters = Counters::new()?;
        let mut python = Python::start(&counters, "READY")?;
        let mut seen = Vec::new();
        for word in ["CHURNED", "MORE"] {
            let before = counters.read()?;
            let tracer = Tracer::attach(&[python.process.pid()], "tcmalloc", &[])?;
            python.go_to(word)?;
            let inside = counters.read()?.since(before);
            tracer.interrupt()?;
            let allocator = only_allocator(&tracer.finish()?)?;
            let [opened, known, closed, open] = granules(&allocator);
            assert_eq!((opened, closed), (inside.opened, inside.closed), "{word}: {allocator}");
            assert_eq!(opened + known, closed + open, "{word}: {allocator}");
            seen.push((opened, known, open));
        }
        // 20,000 objects of 133 bytes with their heads: more than 300 spans of 8 KiB.
        let ((opened, _, open), (_, known, _)) = (seen[0], seen[1]);
        assert!(opened > 300 && open > 150 && known > 0, "{seen:?}");
        python.end()?;
    }
    Ok(())
}
