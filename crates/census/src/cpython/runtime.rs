//! What an interpreter says of itself: `_Py_DebugOffsets`, with which `_PyRuntime` begins from 3.13 on.
//!
//! It begins with a cookie, the version, and whether the build is free-threaded. Then come sizes and offsets, more of
//! them with each version: what concerns objects and types is found by what it must be. Source:
//! `Include/internal/pycore_debug_offsets.h` (in 3.13 `pycore_runtime.h`).

use crate::{
    found::data_pieces,
    space::{RangeKind, Space, word_of},
};

/// The first eight bytes.
pub(super) const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Words that are read of it.
const WORDS: usize = 144;
/// Bytes of programs' data that are searched for it, at most.
const MAX_SEARCHED_BYTES: u64 = 64 << 20;
/// What it is aligned to.
const ALIGNMENT: usize = 16;
/// The first minor version that has it, and one that will not come soon.
const MINORS: std::ops::Range<u64> = 13..64;
/// Bytes of a type, at least and at most.
const TYPES: std::ops::RangeInclusive<u64> = 200..=2000;
/// From the name of a type to its flags.
const FLAGS: u64 = 144;
/// Offsets behind the name's among which that of the flags is.
const MEMBERS: usize = 6;

/// Where objects have their types, and types their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The type of an object.
    pub(super) of: u64,
    /// The name of a type; the bytes of an instance follow it.
    pub(super) name: u64,
    /// Its flags.
    pub(super) flags: u64,
}

/// Builds with a GIL, up to 3.15.
pub(super) const KNOWN: Layout = Layout { of: 8, name: 24, flags: 168 };

/// An interpreter's description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Runtime {
    minor: u64,
    pub(super) is_free_threaded: bool,
    /// `None` where it makes no sense.
    pub(super) layout: Option<Layout>,
}

impl Runtime {
    /// The interpreter's name with its version.
    pub(super) fn name(&self) -> String {
        let kind = if self.is_free_threaded { ", free-threaded" } else { "" };
        format!("CPython 3.{}{kind}", self.minor)
    }

    /// What an address has that begins with the cookie.
    pub(super) fn at(space: &Space<'_>, address: u64) -> Option<Self> {
        let words = space.words::<WORDS>(address)?;
        let [COOKIE, version, threads, ..] = words else { return None };
        let minor = version >> 16 & 0xff;
        let is_known = version >> 24 == 3 && MINORS.contains(&minor) && threads <= 1;
        is_known.then(|| Self {
            minor,
            is_free_threaded: threads == 1,
            layout: layout(&words, threads == 1),
        })
    }

    /// Searches the data of programs and libraries for it.
    pub(super) fn find(space: &Space<'_>) -> Option<Self> {
        let of_files =
            space.ranges.iter().filter(|range| range.writable && range.kind == RangeKind::File);
        let (mut left, mut found) = (MAX_SEARCHED_BYTES, None);
        for range in of_files {
            left -= data_pieces(space, (range.start, range.end), left, |at, piece| {
                let mut places = (0..piece.len()).step_by(ALIGNMENT);
                found = found.take().or_else(|| {
                    places.find_map(|place| {
                        (word_of(piece, place) == Some(COOKIE)).then_some(())?;
                        Self::at(space, at + place as u64)
                    })
                });
            });
            if found.is_some() {
                break;
            }
        }
        found
    }
}

/// The sizes and offsets of an object and of a type stand side by side; `None` where it is not one place that has them.
fn layout(words: &[u64], is_free_threaded: bool) -> Option<Layout> {
    // Objects of free-threaded builds have 32 bytes. An object ends with its type; that of a type has a size in front.
    let object = if is_free_threaded { 32 } else { 16 };
    let (of, name) = (object - 8, object + 8);
    let mut found = words.windows(4 + MEMBERS).filter(|words| {
        words[..2] == [object, of]
            && TYPES.contains(&words[2])
            && words[3] == name
            && words[4..].contains(&(name + FLAGS))
    });
    let (Some(_), None) = (found.next(), found.next()) else { return None };
    Some(Layout { of, name, flags: name + FLAGS })
}
