//! Names in reports: the driver's side of `symbolize`, and the hidden command that becomes its helper.

use std::{io::IsTerminal as _, time::Duration};

use anyhow::{Context as _, Result};
use tokio::time::Instant;

use super::{args::ObserveArgs, code};
use crate::{
    account::Snapshot,
    symbolize::{self, SymbolOptions, Symbols},
    watch::Observer,
};

/// How long the final report waits for names that are still looked for.
const LIMIT: Duration = Duration::from_secs(20);
/// After this time it is said that names are waited for.
const SAY_AFTER: Duration = Duration::from_secs(1);
/// How often it is looked whether they have come.
const LOOK: Duration = Duration::from_millis(5);

/// Serves as the symbol helper of the drainprof that has started this.
pub(super) fn helper() -> Result<u8> {
    symbolize::serve().context("the symbol helper lost its drainprof")?;
    Ok(code::OK)
}

/// The names that are wanted; `None` for none.
pub(super) fn wanted(args: &ObserveArgs) -> Result<Option<Symbols>> {
    if args.no_symbols {
        return Ok(None);
    }
    let options = SymbolOptions { debug_dirs: args.debug_dir.clone(), ..SymbolOptions::default() };
    let symbols = Symbols::new(options).context("cannot start the thread that looks names up")?;
    Ok(Some(symbols))
}

/// Takes notice of call paths that were just found. Never waits.
pub(super) fn place(symbols: &mut Option<Symbols>, observer: &mut Observer) {
    let found = observer.take_new_paths();
    if let Some(symbols) = symbols {
        symbols.place(&found);
    }
}

/// Takes notice of new places, and puts the names into the snapshot that are known by now. Never waits.
pub(super) fn now(symbols: &mut Option<Symbols>, snapshot: &mut Snapshot) {
    if let Some(symbols) = symbols {
        symbols.learn(snapshot);
        symbols.collect();
        symbols.fill(snapshot);
    }
}

/// The same for the final report, which waits for the names, within limits.
pub(super) async fn at_last(symbols: &mut Option<Symbols>, snapshot: &mut Snapshot) {
    let Some(symbols) = symbols else { return };
    let began = Instant::now();
    let mut said = !std::io::stderr().is_terminal();
    symbols.learn(snapshot);
    loop {
        symbols.collect();
        if symbols.postponed() {
            symbols.learn(snapshot);
        }
        let pending = symbols.pending();
        if (pending == 0 && !symbols.postponed()) || began.elapsed() >= LIMIT {
            break;
        }
        if !said && began.elapsed() >= SAY_AFTER {
            eprintln!("drainprof: looking for the names of {pending} places");
            said = true;
        }
        tokio::time::sleep(LOOK).await;
    }
    symbols.fill(snapshot);
}
