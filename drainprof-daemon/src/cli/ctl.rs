//! `drainprof ctl`: asks the daemon that runs, and gives it orders, through its control socket.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use drainprof_node::{Answer, NodeState, Request, serve, serve::Client};

use super::{exit::code, output::Output, values::PlainFormat};

/// Where the daemon is asked.
#[derive(Args, Clone, Debug)]
pub(super) struct SocketArgs {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = serve::SOCKET, env = "DRAINPROF_SOCKET")]
    socket: PathBuf,
}

impl SocketArgs {
    /// A connection to the daemon.
    pub(super) fn connect(&self) -> Result<Client> {
        Ok(Client::connect(&self.socket)?)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.socket
    }
}

#[derive(Args, Debug)]
pub(super) struct CtlArgs {
    #[command(flatten)]
    socket: SocketArgs,
    #[command(subcommand)]
    order: Order,
}

#[derive(Debug, Subcommand)]
enum Order {
    /// Show the daemon's state.
    Status {
        /// Output format.
        #[arg(short = 'o', long, value_enum, default_value_t = PlainFormat::Text)]
        format: PlainFormat,
    },
    /// Detach everything now, and stay detached.
    Kill,
    /// Undo the kill switch.
    Resume,
    /// Reload the configuration; keep the old one if there are errors.
    Reload,
}

/// Asks once.
pub(super) fn main(args: &CtlArgs) -> Result<u8> {
    let request = match &args.order {
        Order::Status { .. } => Request::State,
        Order::Kill => Request::Kill,
        Order::Resume => Request::Resume,
        Order::Reload => Request::Reload,
    };
    let answer = args.socket.connect()?.ask(&request)?;
    let mut output = Output::open(None, 0)?;
    match (&args.order, answer) {
        (Order::Status { format: PlainFormat::Json }, Answer::State { state }) => {
            serde_json::to_writer_pretty(output.writer(), &state)?;
            writeln!(output.writer())?;
        }
        (Order::Status { format: PlainFormat::Text }, Answer::State { state }) => {
            write!(output.writer(), "{}", serve::in_words(&state, age(&state)))?;
        }
        (Order::Kill | Order::Resume | Order::Reload, Answer::Done { message }) => {
            writeln!(output.writer(), "{}", drainprof_report::export::shown(&message, 1_000))?;
        }
        _ => bail!("the daemon has answered something else than was asked"),
    }
    output.finish()?;
    Ok(code::OK)
}

/// How old a state is; `None` before the first.
fn age(state: &NodeState) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let made = Duration::from_millis(state.unix_ms);
    (state.unix_ms > 0).then(|| now.saturating_sub(made))
}
