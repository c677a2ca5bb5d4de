//! One run of a target: its seeds, then changed ones, each bounded in time and memory.

use std::{
    fmt::{self, Display, Formatter},
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, Once, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};

use crate::{Cost, Mutator, cost, targets::Target};

/// Most time of a processor for one input.
const MOST_TIME: Duration = Duration::from_secs(1);
/// Most time for one input, if it waits.
const MOST_WAIT: Duration = Duration::from_secs(120);
/// Most bytes by which the memory of this process may grow.
const MOST_MEMORY: i64 = 256 << 20;
/// Where inputs that fail are written.
const FOUND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/fuzz");

/// How much is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Mutated inputs are made for so long, …
    pub time: Duration,
    /// … or until there were so many.
    pub inputs: u64,
    /// From which number they are made.
    pub number: u64,
    /// How the names of the seeds begin that they are made of; all, if there are none.
    pub seeds: Vec<String>,
}

impl Wanted {
    /// Whether inputs are made of a file of the corpus.
    fn has(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_one = |seed: &String| {
            let name = name.strip_prefix("refused-").unwrap_or(&name);
            name.strip_prefix(seed.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        self.seeds.is_empty() || self.seeds.iter().any(is_one)
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// Inputs that ran.
    pub inputs: u64,
    /// Inputs that the parser took for what it reads.
    pub taken: u64,
    /// The most that one has cost, each for itself.
    pub most: Cost,
    /// Bytes by which the memory of this process has grown.
    pub memory: i64,
}

impl Display for Ran {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { inputs, taken, most: Cost { time, memory, allocations }, memory: grown } = self;
        let (time, memory, grown) = (time.as_secs_f64() * 1e3, memory >> 10, grown >> 20);
        write!(
            out,
            "{inputs} inputs, {taken} taken; at most {time:.1} ms, {memory} KiB, {allocations} allocations for one; \
             memory +{grown} MiB"
        )
    }
}

/// One target at a time: memory is that of the whole process.
static TURN: Mutex<()> = Mutex::new(());
/// Looks for inputs that hang.
static WATCH: Once = Once::new();
/// The input that runs, and since when.
static RUNNING: Mutex<Option<(&str, Instant, Vec<u8>)>> = Mutex::new(None);

/// Runs a target.
///
/// # Errors
/// An input made it panic, took too long or too much memory; the error names a file with that input. Or a file of the
/// corpus is not taken by the parser, though its name does not begin with `refused`.
pub fn run(target: &Target, wanted: &Wanted) -> Result<Ran> {
    let _turn = locked(&TURN);
    WATCH.call_once(|| drop(std::thread::spawn(watch)));
    // The peak begins again, so that the largest input of another target hides nothing. Where that is not allowed, it may.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let mut seeds = (target.seeds)()?;
    let corpus = corpus(target.name)?.into_iter().filter(|(path, _)| wanted.has(path));
    for (path, bytes) in corpus {
        let one = Run::new(target)?.input(&bytes).with_context(|| path.display().to_string())?;
        let is_refused =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"refused"));
        if one == is_refused {
            bail!("{} is taken: {one}; its name says otherwise", path.display());
        }
        seeds.push(bytes);
    }
    let mut run = Run::new(target)?;
    for seed in &seeds {
        run.input(seed)?;
    }
    let until = Instant::now() + wanted.time;
    let mut mutator = Mutator::new(&seeds, wanted.number).with(target.change);
    for count in 0..wanted.inputs {
        if Instant::now() >= until {
            break;
        }
        let input = mutator.next_input();
        run.input(&input)
            .with_context(|| format!("input {count} from number {}", wanted.number))?;
    }
    Ok(run.ran)
}

/// Runs one input for a fuzzer that has its own.
///
/// # Panics
/// The target does, or it takes too much.
pub fn feed(target: &Target, bytes: &[u8]) {
    let (_, cost) = cost(|| (target.run)(bytes));
    let bound = target.bound.as_ref();
    let wrong = bound.and_then(|bound| bound.check(bytes.len() as u64, cost));
    assert!(wrong.is_none(), "{} {}", target.name, wrong.unwrap_or_default());
}

struct Run<'t> {
    target: &'t Target,
    /// Whether each input is written down first, for what ends the process.
    keeps: bool,
    ran: Ran,
    memory: i64,
}

impl<'t> Run<'t> {
    fn new(target: &'t Target) -> Result<Self> {
        let keeps = std::env::var_os("DRAINPROF_FUZZ_KEEP").is_some();
        Ok(Self { target, keeps, ran: Ran::default(), memory: peak()? })
    }

    /// Runs one input; whether it was taken.
    fn input(&mut self, bytes: &[u8]) -> Result<bool> {
        let name = self.target.name;
        *locked(&RUNNING) = Some((name, Instant::now(), bytes.to_owned()));
        if self.keeps {
            write(&Path::new(FOUND).join(format!("{name}-last")), bytes)?;
        }
        let run = || catch_unwind(AssertUnwindSafe(|| (self.target.run)(bytes)));
        let (taken, cost) = cost(run);
        *locked(&RUNNING) = None;
        self.ran.inputs += 1;
        self.ran.taken += u64::from(matches!(taken, Ok(true)));
        self.ran.most = self.ran.most.max(cost);
        self.ran.memory = peak()?.saturating_sub(self.memory);
        let wrong = match taken {
            Err(_) => "panics".to_owned(),
            Ok(_) if cost.time > MOST_TIME => format!("takes {:.1} s", cost.time.as_secs_f64()),
            Ok(_) if self.ran.memory > MOST_MEMORY => {
                format!("takes {} MiB", self.ran.memory >> 20)
            }
            Ok(taken) => {
                let bound = self.target.bound.as_ref();
                match bound.and_then(|bound| bound.check(bytes.len() as u64, cost)) {
                    Some(wrong) => wrong,
                    None => return Ok(taken),
                }
            }
        };
        bail!("{name} {wrong} with {}", keep(name, bytes)?.display())
    }
}

/// Ends this process where an input hangs.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        if let Some((name, since, bytes)) = &*locked(&RUNNING)
            && since.elapsed() > MOST_WAIT
        {
            eprintln!("{name} hangs with {:?}", keep(name, bytes));
            std::process::abort();
        }
    }
}

/// Writes an input down.
fn keep(name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let mut paths = (0..).map(|number| Path::new(FOUND).join(format!("{name}-{number}")));
    let path = paths.find(|path| !path.exists()).context("there is no free name")?;
    write(&path, bytes)?;
    Ok(path)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(FOUND).with_context(|| format!("create {FOUND}"))?;
    fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
}

/// The committed inputs of a target, in the order of their names.
fn corpus(name: &str) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let Ok(entries) = fs::read_dir(&directory) else { return Ok(Vec::new()) };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        Ok((path, bytes))
    };
    paths.into_iter().map(read).collect()
}

/// The most bytes that this process had resident so far.
fn peak() -> Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF).context("read the use of memory")?.max_rss() << 10)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
