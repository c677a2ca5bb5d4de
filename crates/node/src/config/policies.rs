//! The sections whose keys other modules define: `[triggers]` and `[governor]`.
//!
//! This is the one place that says which types these are. A type that implements [`Policy`] is read, merged,
//! checked, shown and compared like the keys of `model`.

use serde::{Serialize, de::DeserializeOwned};

use crate::{govern, trigger};

/// What `[triggers]` is read into.
pub type Triggers = trigger::Config;

/// What `[governor]` is read into.
pub type Governor = govern::Config;

/// A section that a module of its own defines. Its keys have defaults (`#[serde(default)]`), and unknown ones are
/// refused (`#[serde(deny_unknown_fields)]`).
pub trait Policy: Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// What is wrong with its values, with the key's name.
    fn check(&self) -> Result<(), String>;
}

impl Policy for trigger::Config {
    fn check(&self) -> Result<(), String> {
        Self::check(self)
    }
}

impl Policy for govern::Config {
    fn check(&self) -> Result<(), String> {
        Self::check(self)
    }
}
