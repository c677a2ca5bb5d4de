//! `drainprof top`: chooses where states come from, and gives the terminal to `ui`.

mod daemon;
mod live;
mod stderr;

use std::{fs::File, io::IsTerminal as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use drainprof_observe::{names::SymbolOptions, observation::Options};
use drainprof_probe::plan::Sites;

use super::{
    args::{CacheArgs, LevelArg, duration},
    ctl::SocketArgs,
    exit::{Failure, code},
    options, output,
    selection::Selection,
};
use crate::ui::{App, Look, Replay, Source, shell};

#[derive(clap::Args, Debug)]
pub(super) struct TopArgs {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    socket: SocketArgs,
    /// Time between two states.
    #[arg(short, long, value_parser = duration, value_name = "TIME", default_value = "1s",
          env = "DRAINPROF_INTERVAL")]
    interval: Duration,
    /// Without a daemon: profile to use, a name or a file. Default: all that match. Repeatable.
    #[arg(long, value_name = "NAME|FILE", env = "DRAINPROF_PROFILE", value_delimiter = ',')]
    profile: Vec<String>,
    /// Without a daemon: level. Default: the cheapest at which the profile measures.
    #[arg(long, value_enum, env = "DRAINPROF_LEVEL")]
    level: Option<LevelArg>,
    /// Without a daemon: how long a diagnostic window lasts.
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s")]
    window: Duration,
    /// Show recorded states, one JSON document a line, one in each interval.
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "selection")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheArgs,
}

/// States are not asked for more often.
const SHORTEST: Duration = Duration::from_millis(100);

/// Shows states until the user leaves.
pub(super) fn main(args: &TopArgs) -> Result<u8> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        let text = "top needs a terminal for its input and its output; without one, use \
                    `drainprof attach -p PID -d TIME`";
        return Err(Failure::new(code::USAGE, text).into());
    }
    let period = args.interval.max(SHORTEST);
    if let Some(path) = &args.replay {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        show(&mut Replay::new(file, period))?;
    } else if args.selection.is_none() {
        let daemon = daemon::Daemon::connect(args.socket.path(), period);
        show(&mut daemon.context(
            "there is nothing to show; without a daemon, name a process: `drainprof top -p PID`",
        )?)?;
    } else {
        let processes = args.selection.open()?;
        let mut live =
            live::Live::start(options(args)?, &processes, &args.selection, period, args.window)?;
        let shown = show(&mut live);
        // Whatever happened, no probe stays.
        live.finish();
        shown?;
    }
    Ok(code::OK)
}

fn options(args: &TopArgs) -> Result<Options> {
    let level = args.level.map(Into::into);
    let plain = options::plain(&args.profile, &[], level, Sites::Cheapest, &args.cache)?;
    Ok(Options { symbols: Some(SymbolOptions::default()), ..plain })
}

fn show(source: &mut dyn Source) -> Result<()> {
    let mut app =
        App::new(Look { source: source.name().to_owned(), colour: output::no_color().is_none() });
    // What the log says would be written across the picture.
    let held = stderr::Held::hold().context("cannot hold the messages back")?;
    let shown = shell::run(&mut app, source);
    drop(held);
    shown.context("the terminal failed")
}
