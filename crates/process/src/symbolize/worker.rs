//! The symbol helper: a process of its own that reads the symbols and DWARF of others.
//!
//! blazesym maps the files that it reads, believes the sizes in them and can panic. Here a crash, a hang
//! or all memory taken costs one process that knows nothing but two descriptors and some addresses;
//! drainprof then shows module and offset, and starts another. Started by `helper`; reads its requests from
//! a socket that is its stdin, and ends with it.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

use blazesym::symbolize::{
    CodeInfo, Input, Sym, Symbolized, Symbolizer,
    source::{Elf, Source},
};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{
    scope,
    wire::{self, Answer, MAX_ADDRESSES, MAX_INLINED, Name, Request},
};
use crate::CloneKind;

/// Memory of the helper beyond the files that it maps.
const MAX_MEMORY: u64 = 2 << 30;
/// Objects whose symbols are kept from one request to the next.
const KEPT: usize = 8;

/// Answers requests until the other side is gone. Never returns an answer that is not asked for.
pub fn serve() -> io::Result<()> {
    confine();
    let stdin = rustix::io::dup(io::stdin())?;
    let mut stream = UnixStream::from(stdin);
    let mut kept = Vec::new();
    while let Some((request, descriptors)) =
        wire::receive::<Request>(&mut stream, wire::MAX_REQUEST, None)?
    {
        // Whoever asked stops waiting then. A helper that hangs after drainprof was killed ends all the same.
        nix::unistd::alarm::set(request.seconds.max(1));
        let names = answer(&mut kept, &request, descriptors);
        nix::unistd::alarm::cancel();
        wire::send(&mut stream, &Answer { names }, &[])?;
    }
    Ok(())
}

/// Limits what a hostile file can make of this process. What cannot be limited is not: drainprof watches
/// the time.
fn confine() {
    // Nobody reads what a panic says.
    std::panic::set_hook(Box::new(|_| {}));
    let limits = [(Resource::Data, MAX_MEMORY), (Resource::Core, 0), (Resource::Fsize, 0)];
    for (resource, most) in limits {
        let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    }
}

/// An object that is asked about.
pub(super) struct Object {
    key: Vec<(u64, u64, u64, i64)>,
    symbolizer: Symbolizer,
    /// The debug file first, if there is one.
    files: Vec<File>,
}

impl Object {
    fn open(files: Vec<File>, key: Vec<(u64, u64, u64, i64)>) -> Self {
        let none: [PathBuf; 0] = [];
        let symbolizer = Symbolizer::builder()
            .enable_code_info(true)
            .enable_inlined_fns(true)
            .enable_demangling(true)
            // Debug files were looked for by drainprof, in the process's own root too, and proved.
            .set_debug_dirs(Some(none))
            .build();
        Self { key, symbolizer, files }
    }

    /// The name of one address, of the first file that knows a line, else of the first that knows one.
    fn name(&self, address: u64) -> Option<Name> {
        let mut found: Option<Name> = None;
        for file in &self.files {
            let Some(name) = self.ask(file, true, address) else { continue };
            let has_line = name.line.is_some();
            if has_line || found.is_none() {
                found = Some(name);
            }
            if has_line {
                break;
            }
        }
        match found {
            Some(name) => {
                let name = self.with_offset(name, address);
                let scoped = scope::may_be_missing(&name);
                Some(if scoped { self.with_scope(name, address) } else { name })
            }
            // What has no DWARF, or damaged, may still have symbols.
            None => self.files.iter().find_map(|file| self.ask(file, false, address)),
        }
    }

    /// The name with the offset from the symbol table where DWARF gives none. A function with several ranges has no
    /// one start there, and blazesym takes 0 for it.
    fn with_offset(&self, name: Name, address: u64) -> Name {
        if name.offset != Some(address) {
            return name;
        }
        let symbol = self.files.iter().find_map(|file| self.ask(file, false, address));
        let entered = symbol.filter(|symbol| !is_cold(&symbol.function));
        Name { offset: entered.and_then(|symbol| symbol.offset), ..name }
    }

    /// The name with the scope that the symbol table knows: DWARF has no linkage name of C++ functions that other
    /// files cannot call, and their short name is not enough.
    fn with_scope(&self, name: Name, address: u64) -> Name {
        let symbols = self.files.iter().filter_map(|file| self.ask(file, false, address));
        let scoped = symbols
            .map(|symbol| symbol.function)
            .find_map(|symbol| scope::of(&symbol, &name.function).map(str::to_owned));
        Name { function: scoped.unwrap_or(name.function), ..name }
    }

    /// What one file says of an address: its DWARF, or its symbol tables alone.
    fn ask(&self, file: &File, debug: bool, address: u64) -> Option<Name> {
        let mut elf = Elf::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        elf.debug_syms = debug;
        let source = Source::Elf(elf);
        let ask = || {
            let input = Input::VirtOffset(address);
            match self.symbolizer.symbolize_single(&source, input) {
                Ok(Symbolized::Sym(symbol)) => Some(of(&symbol)),
                _ => None,
            }
        };
        // Arithmetic on hostile numbers panics in some builds; the other file may do.
        catch_unwind(AssertUnwindSafe(ask)).ok().flatten()
    }
}

/// Answers one request; objects are kept in `kept`.
pub(super) fn answer(
    kept: &mut Vec<Object>,
    request: &Request,
    descriptors: Vec<OwnedFd>,
) -> Vec<Option<Name>> {
    let mut files: Vec<File> = descriptors.into_iter().map(File::from).collect();
    // The object comes first on the wire; its debug file knows more.
    files.reverse();
    let key: Vec<_> = files.iter().filter_map(|file| identity(file).ok()).collect();
    let index = kept.iter().position(|object| object.key == key).unwrap_or_else(|| {
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push(Object::open(files, key));
        kept.len() - 1
    });
    let object = &kept[index];
    let addresses = request.addresses.iter().take(MAX_ADDRESSES);
    addresses.map(|&address| object.name(address)).collect()
}

/// Whether a symbol, as blazesym demangles it, is a part that is jumped into and never called.
fn is_cold(symbol: &str) -> bool {
    symbol.contains("[clone .cold") || crate::Elf::clone_kind(symbol) == Some(CloneKind::Cold)
}

fn identity(file: &File) -> io::Result<(u64, u64, u64, i64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino(), metadata.size(), metadata.mtime_nsec() ^ metadata.mtime()))
}

fn of(symbol: &Sym<'_>) -> Name {
    let (file, line) = location(symbol.code_info.as_deref());
    Name {
        function: wire::cut(&symbol.name),
        offset: Some(symbol.offset as u64),
        file,
        line,
        inlined: symbol
            .inlined
            .iter()
            .take(MAX_INLINED)
            .map(|inlined| {
                let (file, line) = location(inlined.code_info.as_ref());
                (wire::cut(&inlined.name), file, line)
            })
            .collect(),
    }
}

fn location(info: Option<&CodeInfo<'_>>) -> (Option<String>, Option<u32>) {
    let Some(info) = info else { return (None, None) };
    (Some(wire::cut(&info.to_path().to_string_lossy())), info.line)
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
        let (entry, cold) = (at("leak"), at("leak.cold"));
        let object = Object::open(vec![File::open(&path).unwrap()], Vec::new());
        let name = |address| object.name(address).map(|name| (name.function, name.offset));
        assert_eq!(name(entry + 3), Some(("leak".to_owned(), Some(3))));
        assert_eq!(name(cold + 2), Some(("leak".to_owned(), None)));
        assert_eq!(name(at("fail")), Some(("fail".to_owned(), Some(0))));
    }
}
