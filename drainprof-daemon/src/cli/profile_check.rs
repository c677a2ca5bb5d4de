//! `drainprof profile check`: a profile by itself, against a process, and at work.

use std::{fmt::Write as _, io::Write as _, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_observe::{
    engine::{Engine, Signals},
    goal::{Goal, Probing},
};
use drainprof_probe::plan::AttachPlan;
use drainprof_process::{Process, printable, readers};
use drainprof_profile::{self as profile, Finding, Level, Profile};
use drainprof_report::{
    self as report, Report, Verdict,
    coverage::{Balance, Coverage, ProbeCoverage},
    facts::Snapshot,
    units,
};
use serde_json::{Value, json};

use super::{
    args::{CacheArgs, SizeArgs},
    code,
    drive::block_on,
    exit::Failure,
    options, output,
    plans::{plans_json, print_plans},
    values::{LevelArg, PlainFormat, SitesArg, duration, ratio},
};

/// The name and version of the JSON document.
const SCHEMA: &str = "drainprof.check/1";

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// A name, or a file.
    profile: String,
    /// Show probe sites in this process.
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Attach for this long; check that probes fire, and that allocs and frees balance.
    #[arg(long = "for", value_name = "TIME", value_parser = duration, requires = "pid")]
    time: Option<Duration>,
    /// Accept this share of unmatched frees: 2%, or 0.02. Default: those that objects older than the attach explain.
    #[arg(long, value_name = "SHARE", value_parser = ratio, requires = "time")]
    max_unmatched: Option<f64>,
    /// Level. Default: the deepest of the profile.
    #[arg(long, value_enum)]
    level: Option<LevelArg>,
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = PlainFormat::Text)]
    format: PlainFormat,
    /// Probe a function's first instruction, or the cheapest equivalent one.
    #[arg(long, value_enum, default_value_t = SitesArg::Cheapest, value_name = "WHICH",
          env = "DRAINPROF_SITES")]
    sites: SitesArg,
    #[command(flatten)]
    cache: CacheArgs,
}

/// The parts of the result that are there.
struct Checked<'a> {
    profile: &'a Profile,
    planned: Option<(Process, Vec<AttachPlan>, Vec<Finding>)>,
    coverage: Option<Coverage>,
}

/// Checks a profile as far as the arguments ask.
pub(super) fn main(args: &CheckArgs) -> Result<u8> {
    let (library, names) = options::library(std::slice::from_ref(&args.profile), &[])?;
    let profile = names.first().and_then(|name| library.get(name)).ok_or_else(|| {
        Failure::new(code::NO_TARGET, format!("no profile is called {}", args.profile))
    })?;
    let mut checked = Checked { profile, planned: None, coverage: None };
    let text = args.format == PlainFormat::Text;
    if text {
        describe(profile)?;
    }
    if let Some(pid) = args.pid {
        let level = args.level.map(Into::into);
        let level = level.or_else(|| profile::levels(profile).last().copied());
        let goal = Goal {
            probing: Some(Probing { level, ..Probing::of(vec![args.profile.clone()]) }),
            duration: args.time,
            sites: args.sites.into(),
            ..Goal::default()
        };
        let sizes = options::sizes(&SizeArgs::default());
        let options = options::resolve(&goal, sizes, &args.cache)?;
        let process = readers::open(pid)?;
        let mut engine = Engine::new(options)?;
        let (plans, findings) = engine.plan(&process)?;
        if text {
            print_plans(&process, &plans, &findings)?;
        }
        if let Some(time) = args.time {
            let snapshot = block_on(watch(&mut engine, pid, time))?;
            let report = Report::build(&snapshot, &report::Options::default());
            let coverage = Coverage::of(&snapshot, &report, &findings, args.max_unmatched);
            if text {
                print_coverage(&coverage)?;
            }
            checked.coverage = Some(coverage);
        }
        checked.planned = Some((process, plans, findings));
    }
    if !text {
        writeln!(output::stdout()?, "{:#}", checked.json())?;
    }
    Ok(match &checked.coverage {
        Some(coverage) if !coverage.proven => Verdict::Incomplete.exit_code(),
        _ => code::OK,
    })
}

impl Checked<'_> {
    fn json(&self) -> Value {
        let profile = self.profile;
        let levels: Vec<_> = profile::levels(profile).into_iter().map(Level::name).collect();
        let plan = self
            .planned
            .as_ref()
            .map(|(process, plans, findings)| plans_json(process, plans, findings));
        json!({
            "schema": SCHEMA,
            "profile": {
                "name": profile.name,
                "source": printable(profile.source.to_string()),
                "kind": profile.kind.name(),
                "probes": profile.probes.len(),
                "levels": levels,
            },
            "process": plan,
            "coverage": self.coverage,
        })
    }
}

fn describe(profile: &Profile) -> Result<()> {
    let names: Vec<_> = profile::levels(profile).into_iter().map(Level::name).collect();
    writeln!(
        output::stdout()?,
        "profile {} ({}): {} probes, kind {}, levels {}; it parses and compiles",
        profile.name,
        profile.source,
        profile.probes.len(),
        profile.kind.name(),
        names.join(", ")
    )?;
    Ok(())
}

/// Attaches for a while, and returns what was seen.
async fn watch(engine: &mut Engine, pid: u32, time: Duration) -> Result<Snapshot> {
    // Before anything is said: a reader may interrupt at once when probes are in place.
    let mut signals = Signals::new().context("cannot wait for signals")?;
    engine.add(pid, false)?;
    eprintln!("drainprof: attached {} probes to {pid} for {time:?}", engine.attached());
    engine.start();
    engine.run(&mut (), &mut signals).await?;
    Ok(engine.finish(&mut (), |_, _| ())?.0)
}

/// Writes what was seen.
fn print_coverage(coverage: &Coverage) -> Result<()> {
    let mut out = output::stdout()?;
    writeln!(out, "\nin {}:", units::duration(coverage.seconds))?;
    for probe in &coverage.probes {
        writeln!(out, "  {}", fired(probe))?;
        if let Some(why) = &probe.silent {
            writeln!(out, "           never fired: {why}")?;
        }
    }
    for balance in &coverage.balances {
        writeln!(out, "  {}", balanced(balance))?;
    }
    if let Some(share) = coverage.unmatched_share {
        writeln!(
            out,
            "  unmatched: {} frees of objects whose allocation was not seen ({} of all)",
            coverage.unmatched_frees,
            units::percent(share)
        )?;
    }
    for warning in &coverage.warnings {
        writeln!(out, "  warning {}: {}", warning.code, warning.message)?;
    }
    let silent = coverage.probes.iter().filter(|probe| probe.silent.is_some()).count();
    let verdict = match (coverage.proven, silent) {
        (true, _) => "proven: every probe fired, no problems found".to_owned(),
        (false, 0) => "not proven: see the warnings".to_owned(),
        (false, silent) => {
            format!("not proven: {silent} of {} probes never fired", coverage.probes.len())
        }
    };
    writeln!(out, "{verdict}")?;
    Ok(())
}

fn fired(probe: &ProbeCoverage) -> String {
    let mut text = format!("{:<8} {:<32} {} hits", probe.role, probe.symbol, probe.hits);
    if let Some(returns) = probe.returns {
        let _ = write!(text, ", {returns} returns");
    }
    if probe.rejected > 0 {
        let _ = write!(text, ", {} rejected by `when`", probe.rejected);
    }
    if probe.faults > 0 {
        let _ = write!(text, ", {} could not be computed", probe.faults);
    }
    text
}

fn balanced(balance: &Balance) -> String {
    let instance = balance.instance.as_deref().map(|id| format!("instance {id}: "));
    format!(
        "{}{} opened, {} closed; {} allocated, {} freed, {} unmatched frees, {} unmatched closes",
        instance.unwrap_or_default(),
        balance.opened,
        balance.closed,
        balance.allocated,
        balance.freed,
        balance.unmatched_frees,
        balance.unmatched_closes
    )
}
