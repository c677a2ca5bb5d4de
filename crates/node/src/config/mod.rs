//! The daemon's configuration: files, environment and command line, checked and made into one [`Config`].
//!
//! `model` is the one list of keys: the structs, their defaults, the default file, the reference page and the
//! comparison at a reload all come from it. `setting` says how a value is written, `load` reads and merges the
//! sources and tells every error with its place. [`Selector`] decides which processes are watched. Nothing here
//! knows what the values are used for; the daemon and the command line call it.

mod check;
mod difference;
mod error;
mod files;
mod load;
mod model;
mod names;
mod page;
mod policies;
mod rule;
mod select;
mod setting;

pub use difference::Change;
pub use error::{ConfigError, ConfigErrors, Place};
pub use files::{MAX_FILE_BYTES, MAX_FILES};
pub use load::{DIRECTORY, FILE, Loaded, Origin, Sources, load, parse};
pub use model::{
    Applies, Config, Daemon, Key, Listen, Maps, Metrics, Otlp, SECTIONS, Section, Select, Store,
    Window,
};
pub use page::{default_file, reference, show};
pub use policies::{Governor, Policy, Triggers};
pub use rule::{Action, Rule};
pub use select::{Facts, Selector, Why};
pub use setting::{Address, Attach, Label};

#[cfg(test)]
mod tests;
