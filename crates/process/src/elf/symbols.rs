//! A symbol table, searchable by name.
//!
//! Keeps names as ranges of the string table, so that a hostile table whose symbols all share one long
//! name costs no more memory than the file. Built by `read`, asked by `Elf`.

use std::ops::Deref;

/// Most symbols that are read of one table (the largest browsers have two million).
pub(crate) const MAX_SYMBOLS: usize = 4_000_000;
/// Longest name that is looked at; longer ones are not found.
pub(crate) const MAX_NAME: usize = 32 * 1024;
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
    /// Where in the string table its name begins.
    pub(crate) name_at: u32,
    /// Bytes of its plain name; [`SymbolTable::new`] finds out.
    pub(crate) name_length: u32,
    pub(crate) vaddr: u64,
    pub(crate) size: u64,
    pub(crate) kind: SymbolKind,
    pub(crate) global: bool,
}

/// A symbol table.
#[derive(Debug)]
pub(crate) struct SymbolTable {
    strings: Vec<u8>,
    /// By name.
    entries: Vec<Entry>,
}

impl SymbolTable {
    /// Keeps `symbols`, whose names are offsets into `strings`; those without a name are left out.
    ///
    /// Fails where the names add up to more than is believed.
    pub(crate) fn new(
        strings: Vec<u8>,
        symbols: impl Iterator<Item = Entry>,
    ) -> Result<Self, String> {
        let mut entries = Vec::new();
        let mut name_bytes = 0_u64;
        for symbol in symbols {
            let Some(rest) = strings.get(symbol.name_at as usize..) else { continue };
            let window = &rest[..rest.len().min(MAX_NAME)];
            let Some(end) = window.iter().position(|&byte| byte == 0) else {
                name_bytes += window.len() as u64;
                continue;
            };
            name_bytes += end as u64;
            if name_bytes > MAX_NAME_BYTES {
                return Err(format!("symbol names of more than {} MiB", MAX_NAME_BYTES >> 20));
            }
            // `.symtab` has versions in its names: `memcpy@@GLIBC_2.14`.
            let plain = window[..end].iter().position(|&byte| byte == b'@').unwrap_or(end);
            match u32::try_from(plain) {
                Ok(name_length) if plain > 0 => entries.push(Entry { name_length, ..symbol }),
                _ => {}
            }
        }
        entries.sort_unstable_by(|a, b| {
            bytes_of(&strings, a).cmp(bytes_of(&strings, b)).then(a.vaddr.cmp(&b.vaddr))
        });
        Ok(Self { strings, entries })
    }

    fn symbol<'a>(&'a self, entry: &'a Entry) -> Symbol<'a> {
        Symbol { name: bytes_of(&self.strings, entry), entry }
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
        let name_of = |entry: &Entry| bytes_of(&self.strings, entry);
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

fn bytes_of<'a>(strings: &'a [u8], entry: &Entry) -> &'a [u8] {
    let name = strings.get(entry.name_at as usize..).unwrap_or_default();
    name.get(..entry.name_length as usize).unwrap_or_default()
}

/// What a compiler made of a function, as the suffix of its symbol tells.
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
    use super::{CloneKind, clone_kind, clone_suffix};

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
