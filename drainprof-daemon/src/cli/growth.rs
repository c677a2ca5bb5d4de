//! `drainprof growth`: `attach` with growth watched, and no profile needed.

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::{
    args::{AttachArgs, WeightArg},
    options::usage,
};

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
pub(super) fn main(mut args: GrowthArgs) -> Result<u8> {
    if args.attach.selection.is_none() {
        require_growth_alone(&args)?;
    }
    if args.view == View::Allocations {
        super::allocations::prepare(&mut args.attach)?;
    }
    super::attach::main(attach_args(args))
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

fn attach_args(args: GrowthArgs) -> AttachArgs {
    let GrowthArgs { view, no_stacks, kernel_stacks, mut attach } = args;
    attach.observe.system = attach.selection.is_none();
    attach.observe.follow_forks |= attach.observe.system;
    let observe = &mut attach.observe;
    // The view of a malloc is a census: beside it, growth is watched where it is asked for.
    observe.growth |= view != View::Allocations;
    observe.growth_sums = no_stacks;
    observe.growth_kernel = kernel_stacks;
    observe.growth_alone = observe.profile.is_empty() && observe.level.is_none();
    let is_picture =
        drainprof_report::export::format(&observe.format).is_some_and(|format| format.paths);
    observe.weight = match view {
        View::Faults => WeightArg::Faults,
        View::Heap => WeightArg::Heap,
        View::Mappings => WeightArg::Mappings,
        // Of a census, what is live.
        View::Allocations => WeightArg::Granules,
        View::All if is_picture && !observe.weight.is_of_growth() => WeightArg::Faults,
        View::All => observe.weight,
    };
    attach
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn parsed(more: &[&str]) -> AttachArgs {
        let words = ["drainprof", "growth", "-p", "1"].iter().chain(more);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Growth(args) => attach_args(args),
            _ => unreachable!(),
        }
    }

    /// Sums alone have no call paths that a picture could show.
    #[test]
    fn sums_are_no_pictures() {
        assert!(!parsed(&[]).observe.growth_sums);
        assert!(parsed(&["--no-stacks"]).observe.growth_sums);
        let format = |more: &[&str]| crate::cli::options::format(&parsed(more).observe).map(drop);
        assert!(format(&["--no-stacks"]).is_ok() && format(&["-o", "folded"]).is_ok());
        for refused in [["-o", "folded"], ["-o", "flamegraph"], ["--level", "stacks"]] {
            let error = format(&[&["--no-stacks"], &refused[..]].concat()).unwrap_err();
            assert!(error.to_string().starts_with("--no-stacks"), "{error}");
        }
    }

    /// Without a process, all of them are observed, and what needs probes is refused.
    #[test]
    fn the_whole_machine() {
        let parsed = |more: &[&str]| {
            let words = ["drainprof", "growth"].iter().chain(more);
            match Cli::try_parse_from(words).unwrap().command {
                Command::Growth(args) => (require_growth_alone(&args), attach_args(args).observe),
                _ => unreachable!(),
            }
        };
        let (allowed, observe) = parsed(&["-d", "30s", "--view", "heap", "-o", "folded"]);
        assert!(allowed.is_ok() && observe.system && observe.follow_forks && observe.growth_alone);
        for refused in [
            ["--view", "allocations"],
            ["--profile", "nginx"],
            ["--level", "objects"],
            ["--duty", "1s/10s"],
        ] {
            let error = parsed(&refused).0.unwrap_err().to_string();
            assert!(error.starts_with(refused[0]) && error.contains("-p"), "{error}");
        }
        assert!(Cli::try_parse_from(["drainprof", "attach", "-d", "30s"]).is_err());
    }

    /// A view is what the widths of a picture mean; without one, a picture is of page faults.
    #[test]
    fn views_are_weights() {
        assert!(parsed(&[]).observe.growth && parsed(&[]).observe.growth_alone);
        assert!(!parsed(&["--profile", "nginx"]).observe.growth_alone);
        assert!(!parsed(&["--level", "objects"]).observe.growth_alone);
        assert_eq!(parsed(&[]).observe.weight, WeightArg::Granules);
        assert_eq!(parsed(&["--view", "heap"]).observe.weight, WeightArg::Heap);
        let allocations = parsed(&["--view", "allocations", "--level", "stacks"]).observe;
        assert_eq!((allocations.growth, allocations.weight), (false, WeightArg::Granules));
        assert!(parsed(&["--view", "allocations", "--growth"]).observe.growth);
        assert_eq!(parsed(&["-o", "flamegraph"]).observe.weight, WeightArg::Faults);
        assert_eq!(
            parsed(&["-o", "folded", "--view", "mappings"]).observe.weight,
            WeightArg::Mappings
        );
        assert_eq!(parsed(&["-o", "folded", "--weight", "heap"]).observe.weight, WeightArg::Heap);
        let both = ["drainprof", "growth", "-p", "1", "--view", "heap", "--weight", "heap"];
        assert!(Cli::try_parse_from(both).is_err());
    }
}
