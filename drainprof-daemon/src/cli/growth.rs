//! `drainprof growth`: `attach` with growth watched, and no profile needed.

use anyhow::Result;
use clap::{Args, ValueEnum};
use drainprof_observe::goal::{Follow, Growth};

use super::{asked::Wish, attach::AttachArgs, options::usage, values::WeightArg};

/// What `drainprof growth` takes.
#[derive(Args, Debug)]
pub(super) struct GrowthArgs {
    /// View to show, and the widths of folded and flamegraph (`all`: page faults). `allocations` is recorded alone, and
    /// only if named.
    #[arg(long, value_enum, default_value_t = View::All, value_name = "VIEW",
          conflicts_with = "weight")]
    view: View,
    /// Record sums only, without call stacks: cheaper.
    #[arg(long)]
    no_stacks: bool,
    /// Tell apart what the kernel does in the program's name by the kernel's stacks, innermost: faults within system
    /// calls, and system calls that change memory otherwise.
    #[arg(long, conflicts_with = "no_stacks")]
    kernel_stacks: bool,
    #[command(flatten)]
    attach: AttachArgs,
}

/// A view of growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum View {
    /// Resident memory added by page faults.
    Faults,
    /// The heap (`brk`).
    Heap,
    /// Mappings that still exist.
    Mappings,
    /// Outstanding memory of malloc, from a sample of the pages (--sample).
    Allocations,
    /// All but `allocations`.
    All,
}

/// Watches the growth of running processes.
pub(super) fn main(args: &GrowthArgs) -> Result<u8> {
    if args.attach.selection.is_none() {
        require_growth_alone(args)?;
    }
    let mut wish = args.wish();
    if args.view == View::Allocations {
        wish.probing = Some(super::allocations::probing(&args.attach)?);
        wish.alone = false;
    }
    super::attach::observe(&args.attach, wish)
}

/// All processes of the machine are observed without probes: what needs them needs a process.
fn require_growth_alone(args: &GrowthArgs) -> Result<()> {
    let observe = &args.attach.observe;
    let needs = [
        (args.view == View::Allocations, "--view allocations"),
        (!observe.profile.is_empty(), "--profile"),
        (observe.level.is_some(), "--level"),
        (args.attach.family, "--family"),
        (observe.dry_run, "--dry-run"),
        (observe.duty.is_some(), "--duty"),
    ];
    match needs.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, option)) => Err(usage(format!("{option} needs a process: name it with -p"))),
        None => Ok(()),
    }
}

impl GrowthArgs {
    /// What is asked for, but for the malloc of `--view allocations`.
    fn wish(&self) -> Wish {
        let observe = &self.attach.observe;
        let is_machine = self.attach.selection.is_none();
        let is_picture =
            drainprof_report::export::format(&observe.format).is_some_and(|format| format.paths);
        Wish {
            follow: if is_machine { Follow::Machine } else { Follow::No },
            // The view of a malloc is a census: beside it, growth is watched where it is asked for.
            growth: self.view != View::Allocations,
            growth_by: match (self.no_stacks, self.kernel_stacks) {
                (true, _) => Growth::Sums,
                (_, true) => Growth::KernelStacks,
                _ => Growth::Stacks,
            },
            alone: observe.profile.is_empty() && observe.level.is_none(),
            weight: match self.view {
                View::Faults => Some(WeightArg::Faults),
                View::Heap => Some(WeightArg::Heap),
                View::Mappings => Some(WeightArg::Mappings),
                // Of a census, what is live.
                View::Allocations => Some(WeightArg::Granules),
                View::All if is_picture && !observe.weight.is_of_growth() => {
                    Some(WeightArg::Faults)
                }
                View::All => None,
            },
            probing: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use drainprof_report::export::PinWeight;

    use super::*;
    use crate::cli::{
        asked::Asked,
        command::{Cli, Command},
    };

    fn parsed(more: &[&str]) -> GrowthArgs {
        let words = ["drainprof", "growth", "-O", "out"].iter().chain(more);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Growth(args) => args,
            _ => unreachable!(),
        }
    }

    fn asked(more: &[&str]) -> Result<Asked> {
        let args = parsed(&[&["-p", "1"], more].concat());
        Asked::of(&args.attach.observe, args.wish())
    }

    /// Sums alone have no call paths that a picture could show.
    #[test]
    fn sums_are_no_pictures() {
        assert_eq!(asked(&[]).unwrap().goal.growth(), Some(Growth::Stacks));
        assert_eq!(asked(&["--no-stacks"]).unwrap().goal.growth(), Some(Growth::Sums));
        assert!(asked(&["-o", "folded"]).is_ok());
        for refused in [["-o", "folded"], ["-o", "flamegraph"], ["--level", "stacks"]] {
            let error = asked(&[&["--no-stacks"], &refused[..]].concat()).err().unwrap();
            assert!(error.to_string().starts_with("--no-stacks"), "{error}");
        }
    }

    /// Without a process, all of them are observed, and what needs probes is refused.
    #[test]
    fn the_whole_machine() {
        let args = parsed(&["-d", "30s", "--view", "heap", "-o", "folded"]);
        assert!(require_growth_alone(&args).is_ok());
        let goal = Asked::of(&args.attach.observe, args.wish()).unwrap().goal;
        assert_eq!((goal.follow(), goal.probing), (Follow::Machine, None));
        for refused in [
            ["--view", "allocations"],
            ["--profile", "nginx"],
            ["--level", "objects"],
            ["--duty", "1s/10s"],
        ] {
            let error = require_growth_alone(&parsed(&refused)).unwrap_err().to_string();
            assert!(error.starts_with(refused[0]) && error.contains("-p"), "{error}");
        }
        assert!(Cli::try_parse_from(["drainprof", "attach", "-d", "30s"]).is_err());
    }

    /// A view is what the widths of a picture mean; without one, a picture is of page faults.
    #[test]
    fn views_are_weights() {
        let weight = |more: &[&str]| asked(more).unwrap().weight;
        assert_eq!(weight(&[]), PinWeight::Granules);
        assert_eq!(weight(&["--view", "heap"]), PinWeight::Heap);
        assert_eq!(weight(&["-o", "flamegraph"]), PinWeight::Faults);
        assert_eq!(weight(&["-o", "folded", "--view", "mappings"]), PinWeight::Mappings);
        assert_eq!(weight(&["-o", "folded", "--weight", "heap"]), PinWeight::Heap);
        assert_eq!(asked(&[]).unwrap().goal.probing, None);
        for probed in [["--profile", "nginx"], ["--level", "objects"]] {
            assert!(asked(&probed).unwrap().goal.probing.is_some());
        }
        let allocations = parsed(&["-p", "1", "--view", "allocations"]).wish();
        assert_eq!((allocations.growth, allocations.weight), (false, Some(WeightArg::Granules)));
        let both = ["drainprof", "growth", "-p", "1", "--view", "heap", "--weight", "heap"];
        assert!(Cli::try_parse_from(both).is_err());
    }
}
