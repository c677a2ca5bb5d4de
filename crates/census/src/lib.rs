//! Reads the heaps of a running process from outside, without a probe: live objects, free memory, and the granules
//! (pages, pools, slabs) that a few objects hold.
//!
//! One file per allocator. Each finds its structures by what validates, never by a version's name, in a `Space`: the
//! mappings of a process, and its memory as far as it is present. Pages that are swapped out or were never touched are
//! not read, so a census changes nothing of what it measures. The process runs on, unless it is to be frozen: what does
//! not validate is read again, then counted as unknown. Contents are not kept, only sizes, counts, names of types and
//! contexts, and on request idents of contexts.
//!
//! Everything that is read comes from the process, so every loop is bounded by the size of what is mapped, and all of
//! them by what a census may take (`budget.rs`).

mod budget;
mod classes;
mod compare;
mod contexts;
mod cpython;
mod cxx;
mod error;
mod files;
mod found;
mod freeze;
mod glibc;
mod go;
mod granules;
mod heaps;
mod huge;
mod jemalloc;
mod memory;
mod mimalloc;
mod model;
mod musl;
mod pagemap;
mod pages;
mod parts;
mod pools;
mod present;
mod radix;
mod region;
mod ruby;
mod space;
mod stacks;
mod steps;
mod summary;
mod target;
mod tcmalloc;
#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::struct_field_names,
    reason = "helpers of tests panic where a test fails"
)]
#[cfg_attr(not(test), allow(dead_code, reason = "other crates take a few of them"))]
pub mod testing;

pub use compare::{ClassGrowth, Comparison, HeapGrowth, TypeGrowth};
pub use error::CensusError;
pub use model::{
    Arena, Census, Class, Context, ContextKind, Granules, Heap, HeldBy, KnownBy, MapCell, Part,
    PartKind, SCHEMA, Step, Type, Unknown,
};
pub use summary::{HeapSummary, Summary};
pub use target::{ContextDetail, Options, Reader, take};
