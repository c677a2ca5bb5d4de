//! From the options of an observing command to its goal and the form of its report. All that cannot be had together is
//! refused here, before anything is attached.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use drainprof_observe::goal::{Follow, Goal, Growth, HeapLimits, Probing, Span};
use drainprof_probe::bpf::Sizes;
use drainprof_profile::Level;
use drainprof_report::{
    self as report,
    export::{self, Events, Format, PinWeight},
    filter::Filter,
};

use super::{
    args::{CacheArgs, ObserveArgs},
    filter::ROWS,
    options::{self, usage},
    output::require_no_terminal,
    values::WeightArg,
};

/// Intervals are not shorter.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
/// Rows of a picture, or of a whole machine: there is more room than on a page.
const MANY_ROWS: usize = 1_000;

/// What a command asks for beyond the options that it shares with others.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// Which processes beside those that are named.
    pub(super) follow: Follow,
    /// Whether growth is observed although `--growth` is not given.
    pub(super) growth: bool,
    /// How.
    pub(super) growth_by: Growth,
    /// Whether no probe is placed.
    pub(super) alone: bool,
    /// What widths mean, in place of `--weight`.
    pub(super) weight: Option<WeightArg>,
    /// What is probed, in place of what the options say.
    pub(super) probing: Option<Probing>,
}

impl Default for Wish {
    /// Nothing more.
    fn default() -> Self {
        Self {
            follow: Follow::No,
            growth: false,
            growth_by: Growth::Stacks,
            alone: false,
            weight: None,
            probing: None,
        }
    }
}

/// What is asked for.
pub(super) struct Asked {
    /// What is observed.
    pub(super) goal: Goal,
    pub(super) sizes: Sizes,
    pub(super) cache: CacheArgs,
    pub(super) format: &'static Format,
    pub(super) weight: PinWeight,
    /// How the report is built.
    pub(super) report: report::Options,
    /// What it lists.
    pub(super) filter: Filter,
    pub(super) output: Option<PathBuf>,
    /// Rows of each list on a page.
    pub(super) rows: usize,
    pub(super) fail_under: Option<f64>,
}

/// Whether the format shows call paths of allocations.
fn shows_paths(format: &Format, weight: WeightArg) -> bool {
    format.paths && !weight.is_of_growth()
}

impl Asked {
    /// Decides what is observed.
    ///
    /// # Errors
    /// If something was asked for that cannot be had together.
    pub(super) fn of(args: &ObserveArgs, wish: Wish) -> Result<Self> {
        let format = export::format(&args.format)
            .ok_or_else(|| usage(format!("no format is called {}", args.format)))?;
        let weight = wish.weight.unwrap_or(args.weight);
        let mut probing = wish.probing.unwrap_or_else(|| Probing {
            profiles: args.profile.clone(),
            profile_dirs: args.profile_dir.clone(),
            level: args.level.map(Into::into),
            sample: args.sample.unwrap_or(1),
        });
        let asked_level = probing.level;
        let needs_paths = shows_paths(format, weight) || args.filter.by_time();
        // A format that shows call paths asks for them.
        probing.level = asked_level.or_else(|| needs_paths.then_some(Level::Stacks));
        let growth = (args.growth || wish.growth).then_some(wish.growth_by);
        let follow = if args.follow_forks && wish.follow == Follow::No {
            Follow::Children
        } else {
            wish.follow
        };
        let is_machine = follow == Follow::Machine;
        require_format(args, format)?;
        if wish.growth_by == Growth::Sums && (format.paths || probing.level == Some(Level::Stacks))
        {
            return Err(usage(
                "--no-stacks leaves no call paths for --level stacks, folded or flamegraph: leave it out",
            ));
        }
        if args.census && is_machine {
            return Err(usage("--census reads the heaps of single processes: name them with -p"));
        }
        if weight.is_of_growth() && growth.is_none() {
            return Err(usage(
                "this --weight is of growth: add --growth, or use `drainprof growth`",
            ));
        }
        let has_paths = matches!(asked_level, None | Some(Level::Stacks));
        if shows_paths(format, weight) && !has_paths {
            let text = format!("{} shows call paths, which need --level stacks", format.name);
            return Err(usage(text));
        }
        if args.filter.by_growth() && (growth.is_none() || args.duty.is_some()) {
            return Err(usage(
                "--grown-between is of growth, all of the time: take --growth, or `drainprof growth`",
            ));
        }
        if args.filter.by_time() {
            args.filter.check(probing.sample > 1, args.duty.is_some())?;
            if wish.alone || !has_paths {
                return Err(usage(
                    "filters by time choose among call stacks that allocate: take --level stacks, or growth --view allocations",
                ));
            }
        }
        let records = format.events == Events::Always && !args.filter.no_paths() && !wish.alone;
        let goal = Goal {
            probing: (!wish.alone).then_some(probing),
            span: Span::of(args.duty, follow, growth)?,
            events: args.events || records,
            memory: growth.is_some(),
            heaps: args.census.then(HeapLimits::default),
            budget: args.budget.0,
            duration: args.duration,
            // A line per process and second is no view of a machine.
            interval: (!is_machine).then(|| args.interval.max(SHORTEST_INTERVAL)),
            symbols: !args.no_symbols,
            debug_dirs: args.debug_dir.clone(),
            sites: args.sites.into(),
        };
        let many = format.paths || is_machine;
        let top = args.filter.rows(if many { MANY_ROWS } else { ROWS });
        Ok(Self {
            goal,
            sizes: options::sizes(&args.sizes),
            cache: args.cache.clone(),
            format,
            weight: weight.into(),
            report: report::Options {
                kernel: options::kernel_release(),
                system: is_machine,
                top,
                min_age: args.filter.min_age(),
                min_bytes: args.filter.min_size(),
                ..report::Options::default()
            },
            filter: args.filter.live(top),
            output: args.output.clone(),
            rows: args.filter.rows(ROWS),
            fail_under: args.fail_under,
        })
    }
}

/// Refuses what a format does not show.
fn require_format(args: &ObserveArgs, format: &'static Format) -> Result<()> {
    if args.events && format.events == Events::No {
        return Err(usage(format!(
            "--events needs a format with records for them (ndjson, firefox), not {}",
            format.name
        )));
    }
    if args.events && args.filter.no_paths() {
        return Err(usage(
            "--no-paths takes names and ids out of reports, and events are made of them: leave out --events",
        ));
    }
    require_no_terminal(format, args.output.as_deref())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::command::{Cli, Command};

    fn asked(more: &[&str]) -> Result<Asked> {
        let words = ["drainprof", "attach", "-p", "1", "-O", "out"].iter().chain(more);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Attach(attach) => Asked::of(&attach.observe, Wish::default()),
            _ => unreachable!(),
        }
    }

    fn refused(more: &[&str]) -> String {
        asked(more).err().expect("a refusal").to_string()
    }

    fn level(asked: &Asked) -> Option<Level> {
        asked.goal.probing.as_ref().and_then(|probing| probing.level)
    }

    /// A format that shows call paths asks for them, and refuses a level that has none.
    #[test]
    fn formats_of_paths_need_stacks() {
        for name in ["folded", "flamegraph", "pprof"] {
            let picture = asked(&["-o", name]).unwrap();
            assert_eq!((picture.format.name, level(&picture)), (name, Some(Level::Stacks)));
            assert_eq!(picture.report.top, 1_000);
            assert!(asked(&["-o", name, "--level", "stacks"]).is_ok());
            let error = refused(&["-o", name, "--level", "objects"]);
            assert!(error.contains("--level stacks"), "{error}");
            assert_eq!(asked(&["-o", name, "--top", "20"]).unwrap().report.top, 20);
        }
        let page = asked(&["-o", "json"]).unwrap();
        assert_eq!((level(&page), page.report.top), (None, 20));
        assert!(asked(&["-o", "json", "--level", "objects"]).is_ok());
    }

    /// Filters by time ask for call stacks; what could not be answered is refused before anything is attached.
    #[test]
    fn filters_by_time() {
        let by_time = asked(&["--allocated-between", "1s,2m", "--until-end"]).unwrap();
        assert_eq!(level(&by_time), Some(Level::Stacks));
        for (words, why) in [
            (&["--alive-at", "3s", "--level", "objects"][..], "--level stacks"),
            (&["--freed-between", "1,2", "--sample", "1/16"], "--freed-between"),
            (&["--alive-at", "3s", "--duty", "1s/10s"], "--duty"),
            (&["--alive-at", "3s", "--alive-at-most", "1s"], "--until-end"),
            (&["--grown-between", "1s,2s"], "--growth"),
        ] {
            let error = refused(words);
            assert!(error.contains(why), "{words:?}: {error}");
        }
        assert!(asked(&["--grown-between", "1s,2s", "--growth"]).is_ok());
        for range in ["1s", "2s,1s", "1s,1s", "a,b", "1,2,3"] {
            let words = ["drainprof", "attach", "-p", "1", "--freed-between", range];
            assert!(Cli::try_parse_from(words).is_err(), "{range}");
        }
    }

    /// Windows have neither growth nor children.
    #[test]
    fn windows() {
        assert!(asked(&["--duty", "1s/10s"]).unwrap().goal.duty().is_some());
        for (more, why) in [("--growth", "growth"), ("--follow-forks", "forks")] {
            let error = refused(&["--duty", "1s/10s", more]);
            assert!(error.starts_with("--duty") && error.contains(why), "{error}");
        }
    }
}
