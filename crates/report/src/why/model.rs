//! The answer's shape: `drainprof.why/1`.

use drainprof_census::Unknown;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    holders::Holder,
    measured::Drafted,
    memory::{self, Growing, Known, Part},
};

/// The schema's name and version.
pub const SCHEMA: &str = "drainprof.why/1";

/// The answer; what weighs most comes first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Memory grows without an end in sight.
    Growing,
    /// Few live objects hold much memory, or closed granules stay.
    Pinned,
    /// Much of the memory is free, and could be given back.
    Idle,
    /// Memory does not grow, and what at least 75 % of it is used for is known.
    Healthy,
    /// Too little is known; `unknown` and `unseen` say why.
    Unknown,
}

/// Why memory is as large as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// The name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// The processes that were observed.
    pub pids: Vec<u32>,
    /// The name of the first.
    pub comm: String,
    /// How long they were observed.
    pub seconds: f64,
    /// What it comes to.
    pub answer: Answer,
    /// Whether memory grows.
    pub growing: Growing,
    /// Resident memory of all processes by what it is used for, most first; memory that processes share counts in each.
    pub parts: Vec<Part>,
    /// Bytes of resident memory that were read and validated, or that the kernel accounts for: parts whose `known_by` is not
    /// `nothing`. Of files and shared memory no more is known than that they are such.
    #[serde(default)]
    pub validated_bytes: u64,
    /// All other bytes of resident memory; `healthy` needs that they are at most a third of `validated_bytes`. Processes whose
    /// heaps were not read are in it.
    #[serde(default)]
    pub unknown_bytes: u64,
    /// What these are, with the reasons, most first. What came while the heaps were read may be missing.
    #[serde(default)]
    pub unknown: Vec<Unknown>,
    /// Resident bytes of anonymous memory in transparent huge pages.
    #[serde(default)]
    pub huge_bytes: u64,
    /// Of these, bytes of 4 KiB pages of heaps without a live byte, in huge pages that hold one: at least so many are
    /// resident only because a huge page fills the holes. Null where that is not known.
    #[serde(default)]
    pub huge_idle_bytes: Option<u64>,
    /// What holds it, most bytes first.
    pub holders: Vec<Holder>,
    /// Who made what grows or holds most: call stacks, types, size classes, contexts. Sentences.
    pub who: Vec<String>,
    /// The profile that was drafted, as none matched; null: none was.
    pub draft: Option<Drafted>,
    /// What was not seen, and so limits the answer. Sentences.
    pub unseen: Vec<String>,
    /// What the probes took of one CPU.
    pub cost_ratio: f64,
    /// What to do.
    pub next: Vec<Next>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Next {
    /// What to do, in a sentence.
    pub text: String,
    /// The command that shows more; null where there is none. It keeps within drainprof's default budget.
    pub command: Option<String>,
}

impl Why {
    /// Whether enough of memory is known to say that nothing is wrong.
    pub(super) fn is_known(&self) -> bool {
        Known::of(&self.parts, self.growing.rss_bytes).is_enough()
    }

    /// Whether most of what is not known is in a heap that was read in part, or what it could give back is not known.
    pub(super) fn is_partly_read(&self) -> bool {
        let is_read = |one: &Unknown| {
            one.allocator.as_ref().is_some_and(|name| memory::has_read(&self.parts, name))
        };
        self.holders.iter().any(|holder| !holder.certain)
            || !self.is_known() && self.unknown.first().is_some_and(is_read)
    }

    /// The heap in which most of what is not known is, if too much is, and nothing of that heap was read.
    pub(super) fn unread_heap(&self) -> Option<&str> {
        let heap = self.unknown.first()?.allocator.as_deref()?;
        (!self.is_known() && !memory::has_read(&self.parts, heap)).then_some(heap)
    }
}
