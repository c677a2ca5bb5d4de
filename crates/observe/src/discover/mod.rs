//! What on this machine can be examined: processes × profiles.
//!
//! In running order: `look` goes through processes (`census` of who is there), `fitting` says which
//! profiles fit a process and what a hit would cost there, `hints` what is missing where one nearly fits,
//! `requests` which of those that wait to be named is of use, `groups` joins equal processes, `render` shows
//! the result. Nothing is attached, measured or written; the
//! target's memory is read only where a profile names a function that the loader chose (IFUNC). Called by
//! `cli`.

mod fitting;
mod groups;
mod hints;
mod model;
mod packages;
mod render;
mod requests;
mod scan;
#[cfg(test)]
mod schema;

pub use model::{
    Discovery, Fit, Hint, LevelOffer, Looked, PassedOver, Prices, ProcessGroup, SCHEMA,
};
pub use render::{Detail, render_text};
pub use scan::{ScanOptions, scan};
