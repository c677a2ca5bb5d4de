//! Processes, their mappings, the ELF objects behind them, call stacks, symbols and memory readings.
//!
//! Reads `/proc` and files. Knows neither eBPF nor profiles, and keeps no open file between calls.
//! Everything that it reads (names, paths, ELF bytes) comes from strangers: it is bounded, and shown only
//! through [`printable()`].

mod container;
pub mod elf;
mod error;
mod family;
mod file;
mod frame;
mod ifunc;
mod image;
mod mapped;
mod maps;
pub mod memory;
mod printable;
mod process;
mod signal_return;
mod space;
pub mod symbolize;
pub mod unwind;
pub mod usdt;
mod vdso;

pub use container::{container_id, container_of};
pub use elf::{
    CloneKind, DebugSearch, Elf, ElfError, FrameSections, PlacedBytes, SymbolHit, SymbolKind,
    compile_glob,
};
pub use error::ProcessError;
pub use family::{Kinship, family, incarnations, processes};
pub use file::{open_regular, open_same, read_proc, through_root};
pub use frame::{Frame, Inlined, Module, PathEnd};
pub use ifunc::{Followed, IfuncKey, Implementation, follow_ifuncs};
pub use image::{ElfCache, Image, ImageOptions, LoadedObject, describe};
pub use mapped::{MappedObject, mapped_objects};
pub use maps::{Mapping, executed_files};
pub use printable::{printable, printable_lines};
pub use process::{Process, mapped_pages, started_at};
pub use space::{Space, Spot};
pub use usdt::UsdtNote;
pub use vdso::image as vdso_image;

#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "helpers of tests panic where a test fails"
)]
pub mod testing;
