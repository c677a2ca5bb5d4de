//! Processes, their mappings, the ELF objects behind them, call stacks, symbols and memory readings.
//!
//! Reads `/proc` and files. Knows neither eBPF nor profiles, and keeps no open file between calls.
//! Everything that it reads (names, paths, ELF bytes) comes from strangers: it is bounded, and shown only
//! through [`printable()`].

pub mod beside;
// Only so that it is linked statically: blazesym reads `.gnu_debugdata` with it.
use lzma_sys as _;

mod careful;
mod cgroup;
mod container;
pub mod elf;
mod error;
mod family;
mod file;
mod frame;
mod guard;
mod ifunc;
mod image;
pub mod kernel;
mod mapped;
mod maps;
pub mod memory;
mod mounts;
mod printable;
mod process;
pub mod readers;
mod selector;
mod signal_return;
mod silent;
mod space;
mod status;
mod suspect;
pub mod symbolize;
pub mod unwind;
pub mod usdt;
mod vdso;
mod workers;

pub use cgroup::{Place, cgroup_paths, container_of, read_cgroups};
pub use container::container_id;
pub use elf::{
    CloneKind, DebugSearch, Elf, ElfCode, ElfError, FrameSections, PlacedBytes, SymbolHit,
    SymbolKind, compile_glob,
};
pub use error::ProcessError;
pub use family::{Kinship, family, incarnations, processes};
pub use file::{
    identity, open_directory, open_regular, open_same, read_memory, read_memory_at, read_proc,
    through_root,
};
pub use frame::{Frame, Inlined, Module, PathEnd};
pub use guard::{Stuck, ask_process, given_up, guarded};
pub use ifunc::{Followed, IfuncKey, Implementation, follow_ifuncs};
pub use image::{ElfCache, Image, ImageOptions, LoadedObject, describe};
pub use mapped::{MappedObject, mapped_objects};
pub use maps::{MappedMemory, Mapping, executed_files, mapped_memory, mapped_ranges};
pub use printable::{printable, printable_lines};
pub use process::{Process, executed_image, mapped_pages, started_at};
pub use selector::{MIN_CONTAINER_DIGITS, SelectError, Selected, Selector};
pub use silent::{is_silent, is_user_silenced};
pub use space::{Space, Spot};
pub use suspect::{Silent, silent_processes, times_given_up};
pub use usdt::UsdtNote;
pub use vdso::image as vdso_image;
pub use workers::Workers;

#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "helpers of tests panic where a test fails"
)]
pub mod testing;
