//! `drainprof top`: chooses where states come from, and gives the terminal to `ui`.

mod daemon;
mod live;
mod past;
mod stderr;

use std::{fs::File, io::IsTerminal as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use drainprof_observe::{
    engine::Options,
    goal::{Goal, Probing},
};

use super::{
    args::{CacheArgs, SizeArgs},
    ctl::SocketArgs,
    exit::{Failure, code},
    history::StoreArgs,
    options, output,
    selection::Selection,
    values::{LevelArg, duration, point_in_time},
};
use crate::ui::{App, Look, Replay, Seen, Source, shell};

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
    /// Show the daemon's history as of a time: 10:30, 2026-01-31T12:00; arrow keys lead through it.
    #[arg(long, value_name = "TIME", value_parser = point_in_time, conflicts_with = "selection")]
    at: Option<u64>,
    #[command(flatten)]
    store: StoreArgs,
    /// Show recorded states, one JSON document a line, one in each interval.
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["selection", "at"])]
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
        show(&mut Replay::new(file, period), None)?;
    } else if let Some(at) = args.at {
        let mut past = past::Past::open(args.store.path(), at)?;
        let seen = past.seen()?;
        show(&mut past, Some(seen))?;
    } else if args.selection.is_none() {
        let daemon = daemon::Daemon::connect(args.socket.path(), period);
        let nothing = "there is nothing to show; without a daemon, name a process: `drainprof top -p PID`; \
                       what it saw before: `drainprof top --at TIME`";
        show(&mut daemon.context(nothing)?, None)?;
    } else {
        let processes = args.selection.open()?;
        let mut live =
            live::Live::start(options(args)?, &processes, &args.selection, period, args.window)?;
        let shown = show(&mut live, None);
        // Whatever happened, no probe stays.
        live.finish();
        shown?;
    }
    Ok(code::OK)
}

fn options(args: &TopArgs) -> Result<Options> {
    let level = args.level.map(Into::into);
    let probing = Probing { level, ..Probing::of(args.profile.clone()) };
    let goal = Goal { probing: Some(probing), symbols: true, ..Goal::default() };
    options::resolve(&goal, options::sizes(&SizeArgs::default()), &args.cache)
}

/// Shows what the source has; `past`: a state of it, where it has others than the present.
fn show(source: &mut dyn Source, past: Option<Seen>) -> Result<()> {
    let mut app = App::new(Look {
        source: source.name().to_owned(),
        past: past.is_some(),
        colour: output::no_color().is_none(),
    });
    if let Some(seen) = past {
        app.rewound(seen);
    }
    // What the log says would be written across the picture.
    let held = stderr::Held::hold().context("cannot hold the messages back")?;
    let shown = shell::run(&mut app, source);
    drop(held);
    shown.context("the terminal failed")
}
