//! Names in reports: the driver's side of `symbolize`, and the hidden command that becomes its helper.

use std::{
    io::{IsTerminal as _, Write},
    time::Duration,
};

use anyhow::{Context as _, Result};
use drainprof_observe::{
    Observer,
    names::{SymbolOptions, Symbols},
};
use drainprof_process::symbolize;
use drainprof_report::facts::Snapshot;
use tokio::time::Instant;

use super::{args::ObserveArgs, code};

/// How long the final report waits for names that are still looked for.
const LIMIT: Duration = Duration::from_secs(20);
/// After this time a terminal is told how far it is.
const SAY_AFTER: Duration = Duration::from_secs(1);
/// How often the line changes.
const SAY_EVERY: Duration = Duration::from_millis(100);
/// Back to the line's beginning, and erase it.
const CLEAR: &str = "\r\x1b[K";
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
    let stderr = std::io::stderr();
    let mut progress = stderr.is_terminal().then(|| Progress::new(&stderr));
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
        if let Some(progress) = &mut progress {
            progress.say(began.elapsed(), || symbols.progress(snapshot));
        }
        tokio::time::sleep(LOOK).await;
    }
    drop(progress);
    symbols.fill(snapshot);
}

/// A line on a terminal that says how far naming is, and goes when it is dropped.
struct Progress<W: Write> {
    terminal: W,
    /// When the line is next written, from the beginning of the wait on.
    due: Duration,
    shown: bool,
}

impl<W: Write> Progress<W> {
    const fn new(terminal: W) -> Self {
        Self { terminal, due: SAY_AFTER, shown: false }
    }

    /// How far it is after `waited`: places that have been answered, and how many there are. Asked for only where
    /// it is shown. A terminal that is gone is no trouble.
    fn say(&mut self, waited: Duration, reached: impl FnOnce() -> (usize, usize)) {
        if waited < self.due {
            return;
        }
        let (named, places) = reached();
        self.due = waited + SAY_EVERY;
        self.shown = true;
        let _ = write!(
            self.terminal,
            "{CLEAR}drainprof: looking for names: {named} of {places} places"
        );
        let _ = self.terminal.flush();
    }
}

impl<W: Write> Drop for Progress<W> {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(self.terminal, "{CLEAR}");
            let _ = self.terminal.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(say: impl FnOnce(&mut Progress<&mut Vec<u8>>)) -> String {
        let mut bytes = Vec::new();
        say(&mut Progress::new(&mut bytes));
        String::from_utf8(bytes).unwrap()
    }

    /// Short waits leave no trace; long ones are told now and then, in one line that is gone at the end.
    #[test]
    fn a_line_that_goes() {
        let at = Duration::from_millis;
        let short = written(|line| {
            line.say(at(0), || (0, 9));
            line.say(at(999), || (8, 9));
        });
        assert_eq!(short, "");
        let long = written(|line| {
            for (waited, named) in [(500, 1), (1000, 2), (1005, 3), (1099, 4), (1200, 5)] {
                line.say(at(waited), || (named, 9));
            }
        });
        assert!(!long.contains('\n'), "{long:?}");
        let lines: Vec<&str> = long.split(CLEAR).collect();
        let line = |named| format!("drainprof: looking for names: {named} of 9 places");
        assert_eq!(lines, ["", &line(2), &line(5), ""]);
    }
}
