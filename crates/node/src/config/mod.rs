//! The daemon's configuration: files, environment and command line, checked and merged into one [`Config`].
//!
//! `model` has the structs: their fields are the keys, and `schema` reads everything else about a key from them. `load`
//! reads and merges the sources and reports every error with its position. `page` writes the default file, the values in
//! force and the reference page. [`Selector`] selects the processes to watch.

mod census;
mod difference;
mod error;
mod files;
mod load;
mod model;
mod page;
mod rule;
mod schema;
mod select;
mod window;

pub use census::Census;
pub use difference::Change;
pub use error::{ConfigError, ConfigErrors, Place};
pub use files::{MAX_FILE_BYTES, MAX_FILES};
pub use load::{DIRECTORY, FILE, Loaded, Origin, Sources, load, parse};
pub use model::{
    Address, Attach, Config, Daemon, Label, Listen, Maps, Metrics, Otlp, Pyroscope, Select, Store,
};
#[cfg(test)]
pub(crate) use page::item;
pub use page::{default_file, reference, show};
pub use rule::{Action, Facts, Rule};
pub use schema::Applies;
pub use select::{Selector, Why};
pub use window::{Window, WindowGrowth};

#[cfg(test)]
mod tests;
