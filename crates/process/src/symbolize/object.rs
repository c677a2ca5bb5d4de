//! What blazesym says of an object's addresses: functions, files and lines, inlined functions.
//!
//! Reads the files of one object, which are lent to blazesym by path ([`lent`](super::lent)) while it opens them; then
//! they are mapped, and no descriptor is held. blazesym believes a good deal of a file; what it makes of a hostile one
//! costs the helper at most. What it gets wrong is put right by `correct`. Called by `worker`.

use std::{cell::OnceCell, fs::File};

use blazesym::{
    helper::{ElfResolver, GsymResolver},
    symbolize::{CodeInfo, FindSymOpts, ResolvedSym, Symbolize},
};

use super::{
    correct::{self, Table, shown},
    lent::{DEBUG_DIRECTORY, Lent},
    wire::{self, MAX_INLINED, Name, Part},
};
use crate::careful::careful;

const DAMAGED: &str = "its debug information is damaged";

/// An object that is asked about.
pub(super) struct Object {
    /// Its files that can be read, the one that knows most first.
    files: Vec<Box<dyn Symbolize>>,
    /// Their symbol tables, read when they are needed first.
    tables: OnceCell<Vec<Table>>,
    /// Why some of it is not read.
    trouble: Option<&'static str>,
}

impl Object {
    /// Opens what can be opened. Each of `files` is followed by those that it needs.
    pub(super) fn new(files: &[(Part, File)]) -> Self {
        let mut groups: Vec<_> =
            files.chunk_by(|_, (part, _)| matches!(part, Part::Shared | Part::Package)).collect();
        groups.sort_by_key(|group| match group[0].0 {
            Part::Debug => 0,
            Part::Object | Part::Shared | Part::Package => 1,
            Part::Gsym => 2,
        });
        let mut object = Self { files: Vec::new(), tables: OnceCell::new(), trouble: None };
        for group in groups {
            match open(group) {
                Ok(file) => object.files.push(file),
                Err(why) => object.trouble = object.trouble.or(Some(why)),
            }
        }
        object
    }

    /// Why some of its debug information is not read.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.map(str::to_owned)
    }

    /// The names of addresses; `files` are those that it was made of.
    pub(super) fn names(&self, files: &[(Part, File)], addresses: &[u64]) -> Vec<Option<Name>> {
        let mut names: Vec<_> = addresses.iter().map(|&address| self.name(address)).collect();
        correct::shared_names(files, addresses, &mut names);
        let symbol = |address| {
            let tables = self.tables.get_or_init(|| correct::tables(files));
            tables.iter().find_map(|table| table.name(address))
        };
        let corrected = |(name, &address): (Option<Name>, &u64)| match name {
            Some(name) => {
                let symbol = correct::needs_symbol(&name).then(|| symbol(address)).flatten();
                correct::with_symbol(name, symbol.as_ref())
            }
            // Its DWARF may be damaged.
            None => symbol(address),
        };
        names.into_iter().zip(addresses).map(corrected).collect()
    }

    /// The name of one address, of the first file that knows a line, else of the first that knows one.
    fn name(&self, address: u64) -> Option<Name> {
        let mut found: Option<Name> = None;
        for file in &self.files {
            let Some(name) = careful(|| {
                let found = file.find_sym(address, &FindSymOpts::CodeInfoAndInlined);
                Some(name(&found.ok()?.ok()?, address))
            }) else {
                continue;
            };
            if name.line.is_some() {
                return Some(name);
            }
            found = found.or(Some(name));
        }
        found
    }
}

/// Opens the first of `files`, with the others that it needs, or says why it is not read.
fn open(files: &[(Part, File)]) -> Result<Box<dyn Symbolize>, &'static str> {
    if let Some(why) = files.iter().find_map(|(_, file)| correct::too_large(file)) {
        return Err(why);
    }
    let find = |wanted| files.iter().find(|(part, _)| *part == wanted).map(|(_, file)| file);
    let (part, file) = &files[0];
    let lent = Lent::new(file, find(Part::Package), find(Part::Shared));
    let opened = careful(|| {
        Some(match part {
            Part::Gsym => Box::new(GsymResolver::open(lent.path()).ok()?) as Box<dyn Symbolize>,
            _ => Box::new(ElfResolver::open_with_debug_dirs(lent.path(), [DEBUG_DIRECTORY]).ok()?),
        })
    });
    opened.ok_or(DAMAGED)
}

fn name(symbol: &ResolvedSym<'_>, address: u64) -> Name {
    let (file, line) = location(symbol.code_info.as_deref());
    let inlined = symbol.inlined.iter().take(MAX_INLINED).map(|inlined| {
        let (file, line) = location(inlined.code_info.as_ref());
        (shown(&inlined.name), file, line)
    });
    // A function of several ranges has no address there.
    let begins = symbol.size.is_some() || symbol.addr != 0;
    let offset = address.checked_sub(symbol.addr).filter(|_| begins);
    Name { function: shown(symbol.name), offset, file, line, inlined: inlined.collect() }
}

fn location(code: Option<&CodeInfo<'_>>) -> (Option<String>, Option<u32>) {
    let Some(code) = code else { return (None, None) };
    (Some(wire::cut(&code.to_path().to_string_lossy())), code.line)
}

/// How many of these addresses have a line in a file, and how many a name. For fuzzing.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn named(file: File, addresses: &[u64]) -> (usize, usize) {
    let files = [(Part::Object, file)];
    let names = Object::new(&files).names(&files, addresses);
    let lines = names.iter().flatten().filter(|name| name.line.is_some()).count();
    (lines, names.iter().flatten().count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DebugSearch, testing::cc};

    /// A function whose cold part lies elsewhere has offsets from its entry, and none in the cold part.
    #[test]
    fn split_function() {
        const SOURCE: &str = r#"
            __attribute__((cold, noinline)) void fail(int x) { __asm__ volatile("" :: "r"(x)); }
            __attribute__((noinline)) int leak(int x) {
                if (x == 7) { fail(x); fail(x + 1); __builtin_trap(); }
                __asm__ volatile("nop; nop; nop; nop" ::: "memory");
                return x + 1;
            }
            void _start(void) { leak(1); }
        "#;
        let directory = tempfile::tempdir().unwrap();
        let flags = ["-O2", "-g", "-freorder-blocks-and-partition", "-nostdlib"];
        let path = cc(directory.path(), "split", SOURCE, &flags);
        let elf = crate::Elf::open(&path, "split", DebugSearch::default()).unwrap();
        let at = |name: &str| elf.resolve(name)[0].vaddr;
        let addresses = [at("leak") + 3, at("leak.cold") + 2, at("fail")];
        let files = [(Part::Object, File::open(&path).unwrap())];
        let names = Object::new(&files).names(&files, &addresses);
        let names = names.into_iter().map(|name| name.map(|name| (name.function, name.offset)));
        let expected = [("leak", Some(3)), ("leak", None), ("fail", Some(0))];
        let expected = expected.map(|(name, offset)| Some((name.to_owned(), offset)));
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}
