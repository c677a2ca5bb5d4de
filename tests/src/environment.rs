//! Where things are, and whether the tests may run here.
//!
//! | variable | meaning |
//! |---|---|
//! | `DRAINPROF_BIN` | the drainprof binary; else `drainprof` in the build directory of the test binary |
//! | `DRAINPROF_TEST_TARGETS` | directory of targets and profiles; else where `build.rs` put them |
//! | `DRAINPROF_TEST_SCHEMA` | the report's JSON schema; else `docs/report.schema.json` of the workspace |
//! | `DRAINPROF_TEST_DEADLINE` | seconds that one wait may take (120); raise it on emulated machines |
//! | `DRAINPROF_SWEEP_CLOSES` | how many closes a p-sweep makes, at most what it makes anyway; at least 100 |
//! | `DRAINPROF_TEST_EVENTS` | how many events the threads of `preempted` make in all; else fewer, for an ordinary run |
//! | `DRAINPROF_TEST_RUNS` | how often `preempted` runs each of its cases (1) |
//! | `DRAINPROF_TEST_THREADS` | of how many threads `preempted` has cases (`1,2,4,8,64`) |
//! | `DRAINPROF_TEST_HOSTILE_SECONDS` | for how long `hostile_many` attacks a daemon (10); 600 was tried |
//! | `DRAINPROF_CHAOS_SEED` | the seed of targets that draw lots; else another one in each run |
//! | `DRAINPROF_TEST_PREEMPTION` | the kernel's preemption model, such as `full`; else as debugfs says |
//! | `DRAINPROF_TEST_SKIP` | a reason for which this kernel forbids the tests: they skip instead of fail |

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};

/// How long one wait may take, where nothing else is said.
const DEADLINE: Duration = Duration::from_secs(120);

/// How long one wait may take.
#[must_use]
pub fn deadline() -> Duration {
    let seconds = env::var("DRAINPROF_TEST_DEADLINE").ok().and_then(|text| text.parse().ok());
    seconds.map_or(DEADLINE, Duration::from_secs)
}

/// How long something may take that must not wait: so long, and longer on a machine that is given longer deadlines, since
/// it is emulated.
#[must_use]
pub fn patience(limit: Duration) -> Duration {
    limit * (deadline().as_secs() / DEADLINE.as_secs()).clamp(1, 10) as u32
}

/// The seed of a chaotic target as `seed=…`: another one in each run, printed so that a failure can be repeated.
///
/// # Errors
/// If `DRAINPROF_CHAOS_SEED`, which sets it, is no number.
pub fn chaos_seed() -> Result<String> {
    let seed = match env::var("DRAINPROF_CHAOS_SEED") {
        Ok(text) => text.parse().context("DRAINPROF_CHAOS_SEED is no number")?,
        Err(_) => {
            u64::from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.subsec_nanos())
        }
    };
    println!("DRAINPROF_CHAOS_SEED={seed}");
    Ok(format!("seed={seed}"))
}

/// How many closes a p-sweep makes: `usual`, or the fewer that the environment asks for.
pub fn sweep_closes(usual: u64) -> Result<u64> {
    // Fewer would leave a share of one percent without a single pin.
    const FEWEST: u64 = 100;
    let Ok(text) = env::var("DRAINPROF_SWEEP_CLOSES") else { return Ok(usual) };
    match text.parse() {
        Ok(asked) if asked >= FEWEST => Ok(usual.min(asked)),
        _ => bail!("DRAINPROF_SWEEP_CLOSES is `{text}`: give a number from {FEWEST} on"),
    }
}

/// A number of the environment; `usual` where it does not say.
///
/// # Errors
/// If it is no number from 1 on.
pub fn number(variable: &str, usual: u64) -> Result<u64> {
    Ok(numbers(variable, &[usual])?[0])
}

/// Numbers of the environment, with commas between them; `usual` where it does not say.
///
/// # Errors
/// If one is no number from 1 on.
pub fn numbers(variable: &str, usual: &[u64]) -> Result<Vec<u64>> {
    let Ok(text) = env::var(variable) else { return Ok(usual.to_vec()) };
    let number = |part: &str| part.trim().parse().ok().filter(|&number| number > 0);
    text.split(',')
        .map(|part| number(part).with_context(|| format!("{variable} is `{text}`: no number")))
        .collect()
}

/// The running kernel's release.
#[must_use]
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown kernel".to_owned(), |text| text.trim().to_owned())
}

/// Whether the running kernel is of this version or a later one.
#[must_use]
pub fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = kernel_release();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()) >= Some((major, minor))
}

/// Whether threads are preempted inside the running kernel. One that does not say how it preempts does not.
#[must_use]
pub fn is_preempted() -> bool {
    // All models, the one in force in parentheses.
    let file = || fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    let models =
        env::var("DRAINPROF_TEST_PREEMPTION").map_or_else(|_| file(), |model| format!("({model})"));
    ["(full)", "(lazy)"].iter().any(|model| models.contains(model))
}

/// Tells the runner that a test was skipped: one line on the real stderr, which libtest does not capture.
pub fn skip(reason: &str) {
    // A stderr that is gone cannot be reported.
    let _ = writeln!(std::io::stderr(), "SKIP: {}: {reason}", kernel_release());
}

/// Whether a privileged test can run. Without root it fails; only the environment can make it a skip.
///
/// # Panics
/// When not root.
#[must_use]
pub fn requires_root() -> bool {
    if let Ok(reason) = env::var("DRAINPROF_TEST_SKIP") {
        skip(&reason);
        return false;
    }
    assert!(
        nix::unistd::geteuid().is_root(),
        "these tests attach eBPF programs and need root: run `cargo xtask test`, or set \
         DRAINPROF_TEST_SKIP to the reason for which this kernel forbids them"
    );
    true
}

/// The first of `programs` that is missing here, if any, after telling the runner so.
#[must_use]
pub fn has_programs(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| which(program).is_none());
    if let Some(program) = missing {
        skip(&format!("{program} is not installed"));
    }
    missing.is_none()
}

/// Where a program is; absolute paths are only checked.
#[must_use]
pub fn which(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

fn build_directory() -> Result<PathBuf> {
    let test = env::current_exe().context("find the test binary")?;
    let directory =
        test.parent().and_then(Path::parent).context("the test binary has no directory")?;
    Ok(directory.to_owned())
}

/// The directory of C targets and profiles.
#[must_use]
pub fn targets() -> PathBuf {
    env::var_os("DRAINPROF_TEST_TARGETS")
        .map_or_else(|| PathBuf::from(env!("DRAINPROF_TARGETS_BUILT")), PathBuf::from)
}

/// A target's program: in the targets' directory, or (Rust targets) where cargo put it.
pub fn target(name: &str) -> Result<PathBuf> {
    let built = targets().join(name);
    if built.is_file() {
        return Ok(built);
    }
    let rust = build_directory()?.join(name);
    if rust.is_file() {
        return Ok(rust);
    }
    bail!("there is no target {name}: neither {} nor {}", built.display(), rust.display())
}

/// A profile by the name of its file; what is no file of ours is taken as a built-in profile's name.
#[must_use]
pub fn profile(name: &str) -> String {
    let file = targets().join("profiles").join(name).with_extension("toml");
    if file.is_file() { file.display().to_string() } else { name.to_owned() }
}

/// The drainprof binary.
pub fn drainprof() -> Result<PathBuf> {
    if let Some(path) = env::var_os("DRAINPROF_BIN") {
        return Ok(PathBuf::from(path));
    }
    let beside = build_directory()?;
    let mut candidates = vec![beside.join("drainprof")];
    if let Some(root) = beside.parent() {
        candidates.extend(["release", "debug"].map(|profile| root.join(profile).join("drainprof")));
    }
    candidates.iter().find(|path| path.is_file()).cloned().with_context(|| {
        format!(
            "there is no drainprof binary at {}: run `cargo build -p drainprof-daemon`, or set DRAINPROF_BIN",
            candidates[0].display()
        )
    })
}

/// The text of the report's JSON schema.
pub fn schema() -> Result<String> {
    let path = env::var_os("DRAINPROF_TEST_SCHEMA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/report.schema.json"),
        PathBuf::from,
    );
    fs::read_to_string(&path).with_context(|| format!("cannot read the schema {}", path.display()))
}
