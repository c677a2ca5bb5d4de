//! The node daemon: finds processes, observes them cheaply, looks deeper when it matters.
//!
//! In running order: `arrivals` tells who has come, gone or changed; `pool` has them observed by as few kernel sides
//! as possible; `sums` keeps the counts of those that have gone; `node` says what is known now; `windows` runs
//! diagnostic windows, each in a process of its own. None of them waits: `cli/daemon` drives them.

mod arrivals;
mod pool;
mod sums;
mod windows;

pub use arrivals::{Arrivals, Change};
pub use pool::{Kernel, Pool, PoolError};
pub use sums::Sums;
pub use windows::{Ended, Window, WindowOptions};
