//! ELF objects: symbols, segments, build id, and where a symbol lies in the file.
//!
//! Answers questions by name and by offset; knows no process and no profile. `plan` and `profile check`
//! ask. Files are hostile: every count and size in them is checked against a bound before it is
//! believed, contents are read (never mapped: a file that is truncated meanwhile gives an error
//! instead of SIGBUS), and the names that come out are shown only through
//! [`printable`](super::printable()).

mod code;
mod contents;
mod debug;
mod demangle;
mod error;
mod frames;
mod functions;
mod held;
mod object;
mod plain;
mod prototypes;
mod read;
mod relocations;
mod segment;
mod stapsdt;
mod symbols;
mod types;
mod units;

pub use code::ElfCode;
pub use debug::DebugSearch;
#[cfg(any(test, feature = "testing"))]
pub(crate) use demangle::demangled;
pub use demangle::{compile_glob, readable};
pub use error::ElfError;
pub use frames::{FrameSections, PlacedBytes};
pub use functions::OwnCalls;
pub(crate) use held::Held;
pub use object::Elf;
pub use prototypes::{Parameter, Prototype, Prototypes, TypeName, WantedFn};
pub(crate) use read::{MAX_FILE, hex};
pub(crate) use relocations::Slot;
pub use segment::Segment;
pub use symbols::{CloneKind, SymbolHit, SymbolKind};
pub use types::{IntegerMember, Types};

#[cfg(test)]
mod function_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
