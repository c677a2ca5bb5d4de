//! Names for the addresses of an observation.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use drainprof_report::facts::Snapshot;

use crate::{
    Side,
    names::{SymbolOptions, Symbols},
};

/// How long the final report waits for names that are still searched for.
const LIMIT: Duration = Duration::from_secs(20);
/// Between two checks whether they have come.
const CHECK: Duration = Duration::from_millis(5);

/// The names, where any are wanted.
pub(super) struct Naming {
    symbols: Option<Symbols>,
    /// Targets whose mappings were read.
    met: usize,
}

impl Naming {
    pub(super) fn new(options: Option<SymbolOptions>) -> io::Result<Self> {
        Ok(Self { symbols: options.map(Symbols::new).transpose()?, met: 0 })
    }

    /// Reads what names need of processes that are new: they may end at any time.
    pub(super) fn meet(&mut self, side: &Side) {
        if let Some(symbols) = &mut self.symbols {
            let newcomers = side.newcomers(self.met);
            self.met += newcomers.len();
            symbols.meet(&newcomers);
        }
    }

    /// Takes notice of call stacks that were just found. Never waits.
    pub(super) fn place(&mut self, side: &mut Side) {
        let found = side.take_new_paths();
        if let Some(symbols) = &mut self.symbols {
            symbols.place(&found);
        }
    }

    /// Asks for new names, and puts those into the snapshot that are known by now. Never waits.
    pub(super) fn now(&mut self, snapshot: &mut Snapshot) {
        if let Some(symbols) = &mut self.symbols {
            symbols.learn(snapshot);
            symbols.collect();
            symbols.fill(snapshot);
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.symbols.as_ref().is_some_and(|symbols| symbols.pending() > 0 || symbols.postponed())
    }

    /// The same for the final report, which waits for the names.
    pub(super) fn at_last(
        &mut self,
        snapshot: &mut Snapshot,
        mut progress: impl FnMut(Duration, &dyn Fn() -> (usize, usize)),
    ) {
        let Some(symbols) = &mut self.symbols else { return };
        let began = Instant::now();
        symbols.learn(snapshot);
        loop {
            symbols.collect();
            if symbols.postponed() {
                symbols.learn(snapshot);
            }
            let pending = symbols.pending() > 0 || symbols.postponed();
            if !pending || began.elapsed() >= LIMIT {
                break;
            }
            progress(began.elapsed(), &|| symbols.progress(snapshot));
            thread::sleep(CHECK);
        }
        symbols.fill(snapshot);
    }
}
