//! A symbol table, searchable by name.
//!
//! Keeps only the names that symbols have, each byte once, so that a hostile table whose symbols all share one long
//! name, or whose names are far apart, costs no more memory than its symbols. Built by `read`, asked by `Elf`.

use std::{ops::Deref, sync::Arc};

use super::{
    contents::{MAX_NAME, Names},
    held::{Held, Share},
};

/// Most symbols that are read of one table (the largest browsers have two million).
pub(crate) const MAX_SYMBOLS: usize = 4_000_000;
/// Most bytes of names of one table, added up: bounds the work where names overlap.
pub(crate) const MAX_NAME_BYTES: u64 = 512 << 20;

/// What a symbol is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SymbolKind {
    /// A function.
    Func,
    /// The function that *chooses* a function when the object is loaded (`STT_GNU_IFUNC`).
    Ifunc,
    /// Data.
    Object,
    /// The table does not say; in a [`SymbolHit`] it is decided by where it lies.
    Untyped,
}

/// A symbol that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolHit {
    /// Its plain name, mangled where it is; hostile.
    pub name: String,
    /// Its address in the file's own address space.
    pub vaddr: u64,
    /// Its offset in the file; `None` where it has no bytes there (`.bss`).
    pub file_offset: Option<u64>,
    /// Its size in bytes; 0 where the table does not say.
    pub size: u64,
    /// What it is; never [`SymbolKind::Untyped`].
    pub kind: SymbolKind,
    /// Whether other objects can see it (global or weak).
    pub global: bool,
}

/// A symbol with its name, borrowed from its table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a [u8],
    entry: &'a Entry,
}

impl Deref for Symbol<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.entry
    }
}

/// What a table says of one symbol.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Where its name begins: in the string table, until [`Unnamed::name`] has found it.
    pub(crate) name_at: u32,
    /// Bytes of its plain name; [`Unnamed::name`] finds out.
    pub(crate) name_length: u32,
    pub(crate) vaddr: u64,
    pub(crate) size: u64,
    pub(crate) kind: SymbolKind,
    pub(crate) global: bool,
}

/// A symbol table.
#[derive(Debug)]
pub(crate) struct SymbolTable {
    /// The bytes of all names.
    names: Vec<u8>,
    /// By name; places of names are those in `names`.
    entries: Vec<Entry>,
    _share: Share,
}

/// Symbols of a table whose names are not known yet.
pub(crate) struct Unnamed {
    entries: Vec<Entry>,
    room: u64,
}

/// Why a table is not kept.
fn too_large(room: u64) -> String {
    format!("its symbols take more than {} MiB", room >> 20)
}

impl Unnamed {
    /// None yet, in as much memory as there is in `held`.
    pub(crate) fn new(held: &Held) -> Self {
        Self { entries: Vec::new(), room: held.room() }
    }

    /// Takes one more.
    pub(crate) fn push(&mut self, entry: Entry) -> Result<(), String> {
        if ((self.entries.len() + 1) * size_of::<Entry>()) as u64 > self.room {
            return Err(too_large(self.room));
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Finds their names; symbols without one are left out. Fails where the names add up to more than is believed.
    pub(crate) fn name(
        mut self,
        strings: &mut impl Names,
        held: &Arc<Held>,
    ) -> Result<SymbolTable, String> {
        // By rising offsets, as they are read.
        self.entries.sort_unstable_by_key(|entry| entry.name_at);
        let (mut names, mut kept) = (Vec::new(), 0);
        // A name in the file, and where it is in `names`.
        let mut last: Option<(std::ops::RangeInclusive<u32>, u32)> = None;
        let mut work = 0_u64;
        for index in 0..self.entries.len() {
            let at = self.entries[index].name_at;
            if !last.as_ref().is_some_and(|(range, _)| range.contains(&at)) {
                last = None;
                match strings.at(at)? {
                    Some(name) => {
                        let end = at.saturating_add(name.len() as u32);
                        last = Some((at..=end, names.len() as u32));
                        names.extend_from_slice(name);
                    }
                    None => work += MAX_NAME as u64,
                }
            }
            // The end of another name is a name, too.
            let (place, length) = last
                .as_ref()
                .map_or((0, 0), |(range, place)| (place + (at - range.start()), range.end() - at));
            work += u64::from(length);
            if work > MAX_NAME_BYTES {
                return Err(format!("symbol names of more than {} MiB", MAX_NAME_BYTES >> 20));
            }
            if (names.len() + self.entries.len() * size_of::<Entry>()) as u64 > self.room {
                return Err(too_large(self.room));
            }
            // `.symtab` has versions in its names: `memcpy@@GLIBC_2.14`.
            let name = &names[place as usize..][..length as usize];
            let plain = name.iter().position(|&byte| byte == b'@').unwrap_or(name.len());
            if plain > 0 {
                self.entries.swap(kept, index);
                let entry = &mut self.entries[kept];
                (entry.name_at, entry.name_length) = (place, plain as u32);
                kept += 1;
            }
        }
        self.entries.truncate(kept);
        self.entries.shrink_to_fit();
        names.shrink_to_fit();
        let size = names.capacity() + self.entries.capacity() * size_of::<Entry>();
        let share = held.take(size as u64).ok_or_else(|| too_large(self.room))?;
        let mut entries = self.entries;
        entries.sort_unstable_by(|a, b| {
            bytes_of(&names, a).cmp(bytes_of(&names, b)).then(a.vaddr.cmp(&b.vaddr))
        });
        Ok(SymbolTable { names, entries, _share: share })
    }
}

impl SymbolTable {
    fn symbol<'a>(&'a self, entry: &'a Entry) -> Symbol<'a> {
        Symbol { name: bytes_of(&self.names, entry), entry }
    }

    /// The symbols called `name`.
    pub(crate) fn named(&self, name: &str) -> impl Iterator<Item = Symbol<'_>> + use<'_> {
        self.range(name.as_bytes(), |found, name| found == name)
    }

    /// The symbols whose names start with `prefix`.
    pub(crate) fn starting_with(&self, prefix: &str) -> impl Iterator<Item = Symbol<'_>> + use<'_> {
        self.range(prefix.as_bytes(), <[u8]>::starts_with)
    }

    /// The symbols from the first whose name is not below `name`, as long as `matches` says so.
    fn range(
        &self,
        name: &[u8],
        matches: fn(&[u8], &[u8]) -> bool,
    ) -> impl Iterator<Item = Symbol<'_>> + use<'_> {
        let name_of = |entry: &Entry| bytes_of(&self.names, entry);
        let first = self.entries.partition_point(|entry| name_of(entry) < name);
        let behind = &self.entries[first..];
        let count = behind.partition_point(|entry| matches(name_of(entry), name));
        behind[..count].iter().map(|entry| self.symbol(entry))
    }

    /// All symbols, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|entry| self.symbol(entry))
    }
}

fn bytes_of<'a>(names: &'a [u8], entry: &Entry) -> &'a [u8] {
    let name = names.get(entry.name_at as usize..).unwrap_or_default();
    name.get(..entry.name_length as usize).unwrap_or_default()
}

/// What a compiler made of a function, by the suffix of its symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloneKind {
    /// The whole function under another name (`.lto_priv.0`, `.llvm.123`): nothing else changed.
    Renamed,
    /// A copy with other parameters (`.constprop.0`, `.isra.0`): arguments may be missing or have moved.
    Copy,
    /// A part of the function (`.part.0`); the rest of it was inlined into its callers.
    Part,
    /// Code that is rarely reached (`.cold`): jumped into, never called.
    Cold,
}

/// What `suffix`, which follows a function's name, says; `None` where no compiler gives such a suffix.
fn clone_suffix(suffix: &[u8]) -> Option<CloneKind> {
    let words = suffix.strip_prefix(b".")?;
    let mut kind: Option<CloneKind> = None;
    for word in words.split(|&byte| byte == b'.') {
        let found = match word {
            b"lto_priv" | b"llvm" | b"localalias" => CloneKind::Renamed,
            b"constprop" | b"isra" => CloneKind::Copy,
            b"part" => CloneKind::Part,
            b"cold" => CloneKind::Cold,
            _ if kind.is_some() && !word.is_empty() && word.iter().all(u8::is_ascii_digit) => {
                continue;
            }
            _ => return None,
        };
        // The most drastic of several counts.
        kind = kind.max(Some(found));
    }
    kind
}

/// What kind of clone of the function `base` the symbol `name` is.
pub(crate) fn clone_of(name: &[u8], base: &[u8]) -> Option<CloneKind> {
    clone_suffix(name.strip_prefix(base)?)
}

/// What kind of clone, of whatever function, the symbol `name` is.
pub(crate) fn clone_kind(name: &[u8]) -> Option<CloneKind> {
    name.iter()
        .enumerate()
        .filter(|&(at, &byte)| byte == b'.' && at > 0)
        .find_map(|(at, _)| clone_suffix(&name[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the compiler's own suffixes make a clone, and the most drastic one names it.
    #[test]
    fn clone_suffixes() {
        for (suffix, kind) in [
            (".part.0", CloneKind::Part),
            (".constprop.0", CloneKind::Copy),
            (".isra.0.part.12", CloneKind::Part),
            (".cold", CloneKind::Cold),
            (".part.0.cold", CloneKind::Cold),
            (".llvm.123", CloneKind::Renamed),
            (".lto_priv.0.isra.1", CloneKind::Copy),
        ] {
            assert_eq!(clone_suffix(suffix.as_bytes()), Some(kind), "{suffix}");
        }
        for no in ["", ".", ".0", "part.0", ".foo", ".part.x", ".part.", ".particle"] {
            assert_eq!(clone_suffix(no.as_bytes()), None, "{no}");
        }
        assert_eq!(clone_kind(b"work.other.part.3"), Some(CloneKind::Part));
        assert_eq!(clone_kind(b".part.0"), None, "a suffix of nothing");
        assert_eq!(clone_kind(b"_ZN4core3ops..Fn"), None, "dots of Rust names");
    }
}
