//! The node daemon: finds processes, observes them cheaply, and traces deeper when it matters.
//!
//! Each part owns its state; they exchange values. `roster` has the processes: `arrivals` finds them, `admit` decides,
//! `unmatched` knows kinds that no profile matches, `pool` has the kernel sides that observe them, `lifecycle` is what
//! these saw come and end, `memory` reads theirs, `census` their heaps, both in `turns`; `tracked` is one of them, and
//! `rules` are those of all. `counters` adds up what all have counted, by label set. `windows` has the diagnostic
//! windows; `window` is one of them, a process of its own. `history` writes on a thread of its own. `allocator` keeps
//! the daemon small. `kill` is the kill switch. `view` is what one cycle reads. `service` is the loop that wires them,
//! which `tick` wakes; its `requests` answers requests.

mod admit;
mod allocator;
mod arrivals;
mod census;
mod counters;
mod history;
mod kill;
mod lifecycle;
mod memory;
mod newcomers;
mod observed;
mod pool;
mod push;
mod roster;
mod rules;
mod service;
mod tick;
mod tracked;
mod turns;
mod unmatched;
mod view;
mod window;
mod windows;

pub use admit::{Admission, Found, Refused, Watched, admit};
pub use service::{Reread, Service, ServiceError, Setup};
