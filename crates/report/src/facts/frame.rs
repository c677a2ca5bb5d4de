//! Names of code addresses, and how far naming has come.

use std::collections::BTreeMap;

use drainprof_process::Frame;

/// Names by address, of one process.
pub type Frames = BTreeMap<u64, Frame>;

/// How far naming has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolFacts {
    /// Places that were seen, over all targets.
    pub places: u64,
    /// How many of them have a function's name.
    pub named: u64,
    /// How many are not named yet.
    pub pending: u64,
    /// How many were left out, because so many names are not kept.
    pub left_out: u64,
    /// How many were given up: their object's symbols could not be read in bounded time and memory.
    pub given_up: u64,
    /// Why, one sentence per cause; bounded.
    pub errors: Vec<String>,
}
