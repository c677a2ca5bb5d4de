//! Targets: processes, what they have mapped, and the ELF objects behind it.
//!
//! Reads `/proc` and files; knows neither eBPF nor profiles, and keeps no open file between calls.
//! `plan` joins what is found here with a profile; `cli` and `watch` open processes through it.
//! Everything read here (names, paths, ELF bytes) was written by somebody else: it is bounded, and
//! shown only through [`printable()`].

pub mod elf;
mod error;
mod family;
mod file;
mod ifunc;
mod image;
mod locate;
mod maps;
mod nameless;
mod printable;
mod process;
pub mod usdt;

pub use elf::{
    CloneKind, DebugSearch, Elf, ElfError, FrameSections, PlacedBytes, SymbolHit, SymbolKind,
    SymbolSource,
};
pub use error::TargetError;
pub use family::{Kinship, family, incarnations, processes};
pub(crate) use file::{open_regular, open_same, read_proc};
pub use ifunc::{Followed, IfuncKey, Implementation, follow_ifuncs};
pub(crate) use image::describe;
pub use image::{ElfCache, Image, ImageOptions, LoadedObject};
pub(crate) use locate::through_root;
pub use maps::{MappedObject, Mapping, executed_files, mapped_objects};
pub(crate) use nameless::{Nameless, NamelessKind, nameless_memory};
pub use printable::printable;
pub use process::{Process, mapped_pages, started_at};
pub use usdt::UsdtNote;

#[cfg(test)]
pub(crate) mod testing;
