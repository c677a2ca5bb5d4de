//! What an answer is made of.

use drainprof_census::Census;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    kind::{self, Kind},
    model::Report,
};

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// Growth of memory, by call stack; with the memory of each process over time.
    pub growth: &'a Report,
    /// What probes counted, at one level after the other; empty where no profile matches.
    pub probes: &'a [Report],
    /// The heaps at the end, of the processes that could be read.
    pub censuses: &'a [Census],
    /// The profile that was drafted, if there was need for one.
    pub draft: Option<&'a Drafted>,
    /// Why none was drafted although none matched.
    pub undrafted: Option<&'a str>,
    /// What could not be measured, in sentences.
    pub unseen: &'a [String],
}

/// A profile that was drafted from the program's functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Drafted {
    /// The file.
    pub path: String,
    /// The profile's name.
    pub profile: String,
    /// Its kind, as far as it was found out.
    #[serde(with = "kind")]
    #[schemars(schema_with = "kind::schema")]
    pub kind: Kind,
    /// The granule's own live count, an expression; it was proven, so that the profile has level `boundary`. Null: none was.
    #[serde(default)]
    pub live: Option<String>,
    /// What speaks against it, so that its counts are left out; null: it was proven on the process.
    pub against: Option<String>,
}
