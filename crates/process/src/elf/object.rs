//! An object, read: its symbols by name and by address, and its debug file.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use super::{
    debug::{self, DebugFile, DebugSearch, Lookup},
    demangle,
    error::{ElfError, unread},
    held::Held,
    read::{self, MAX_FILE, Parts},
    segment::Segment,
    symbols::{self, CloneKind, SymbolHit, SymbolKind, SymbolTable},
};
use crate::{
    UsdtNote,
    file::{open_regular, through_root},
};

fn with_suffix(path: PathBuf, suffix: &str) -> PathBuf {
    let mut path = path.into_os_string();
    path.push(suffix);
    path.into()
}

/// Most symbols that answer one question, and most bytes of their names.
const MAX_HITS: (usize, usize) = (200_000, 32 << 20);

/// An ELF object, read. Cheap to clone: what was read is shared.
#[derive(Clone, Debug)]
pub struct Elf {
    open_path: PathBuf,
    shown_path: String,
    search: DebugSearch,
    /// Device and inode of what was read.
    inode: (u64, u64),
    /// Whose file it is.
    owner: u32,
    parts: Arc<Parts>,
    held: Arc<Held>,
    /// Searched for when the object itself has no answer: most never need it.
    debug: Arc<OnceLock<Lookup>>,
}

impl Elf {
    /// Reads the object at `open_path`; `shown_path` (escaped already) is what messages call it.
    pub fn open(open_path: &Path, shown_path: &str, search: DebugSearch) -> Result<Self, ElfError> {
        let file = open_regular(open_path, MAX_FILE).map_err(|error| unread(shown_path, &error))?;
        Self::read(&Arc::default(), file, open_path, shown_path, search)
    }

    /// Reads the object in `file`, which was opened at `open_path`. What is kept takes a share of `held`.
    pub(crate) fn read(
        held: &Arc<Held>,
        file: File,
        open_path: &Path,
        shown_path: &str,
        search: DebugSearch,
    ) -> Result<Self, ElfError> {
        let metadata =
            crate::guard::ask(|| file.metadata()).map_err(|error| unread(shown_path, &error))?;
        Ok(Self {
            inode: (metadata.dev(), metadata.ino()),
            owner: metadata.uid(),
            parts: Arc::new(read::read_object(file, shown_path, held)?),
            held: Arc::clone(held),
            open_path: open_path.to_owned(),
            shown_path: shown_path.to_owned(),
            search,
            debug: Arc::default(),
        })
    }

    /// The same object as another process sees it.
    pub(crate) fn seen_as(&self, open_path: &Path, shown_path: &str, search: DebugSearch) -> Self {
        Self {
            open_path: open_path.to_owned(),
            shown_path: shown_path.to_owned(),
            search,
            ..self.clone()
        }
    }

    /// Opens the file again, if it is still the one that was read.
    pub(super) fn open_again(&self) -> Result<File, ElfError> {
        let file = open_regular(&self.open_path, MAX_FILE);
        let file = file.map_err(|error| unread(&self.shown_path, &error))?;
        let metadata = crate::guard::ask(|| file.metadata())
            .map_err(|error| unread(&self.shown_path, &error))?;
        if (metadata.dev(), metadata.ino()) == self.inode {
            Ok(file)
        } else {
            Err(ElfError::Changed { path: self.shown_path.clone() })
        }
    }

    /// What messages call it.
    #[must_use]
    pub fn shown_path(&self) -> &str {
        &self.shown_path
    }

    /// The path through which it was read.
    #[must_use]
    pub fn open_path(&self) -> &Path {
        &self.open_path
    }

    /// Its build id in lower-case hex.
    #[must_use]
    pub fn build_id(&self) -> Option<&str> {
        self.parts.build_id.as_deref()
    }

    /// Its `DT_SONAME`; hostile.
    #[must_use]
    pub fn soname(&self) -> Option<&str> {
        self.parts.soname.as_deref()
    }

    /// Its loadable segments, in the file's order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.parts.segments
    }

    /// Whether it has no `.symtab`: only exported names are known without its debug file.
    #[must_use]
    pub fn is_stripped(&self) -> bool {
        self.parts.symtab.is_none()
    }

    /// Whether Go's compiler made it. Its functions move their stacks, which a probe at a return does not survive.
    #[must_use]
    pub fn is_go(&self) -> bool {
        self.parts.go
    }

    /// The separate debug file, if one was found.
    #[must_use]
    pub fn debug_file(&self) -> Option<&Path> {
        self.debug().map(|debug| debug.path.as_path())
    }

    /// The file that the one at `path`, this object or its debug file, shares with others (`dwz`).
    #[must_use]
    pub(crate) fn shared_with(&self, path: &Path) -> Option<PathBuf> {
        let link = read::with_file(path, &self.shown_path, |reader| Ok(reader.alternative_link()));
        let (name, id) = link.ok().flatten()?;
        self.find_shared(&self.at_home(path), &name, &id)
    }

    /// The file of this name and build id that the debug file at `from` shares with others.
    pub(super) fn find_shared(&self, from: &Path, name: &[u8], id: &str) -> Option<PathBuf> {
        debug::find_alternative((&self.search, self.owner), from, name, id)
    }

    /// Opens the object itself again, or a debug file of it.
    pub(super) fn open_part(&self, path: &Path, shown: &str) -> Result<File, ElfError> {
        if path == self.open_path {
            return self.open_again();
        }
        self.open_beside(path).map_err(|error| unread(shown, &error))
    }

    /// Opens a file with debug information of it, if its owner may say what is in the object.
    pub(crate) fn open_beside(&self, path: &Path) -> io::Result<File> {
        debug::open(&self.search, self.owner, path)
    }

    /// The probes that it declares by itself (USDT), or why they are not read.
    pub(super) fn usdt_notes(&self) -> Result<&[UsdtNote], &str> {
        match &self.parts.usdt {
            Ok(notes) => Ok(notes),
            Err(why) => Err(why),
        }
    }

    /// The package of split DWARF (`.dwp`) of the file at `path`, this object or its debug file.
    #[must_use]
    pub(crate) fn package_of(&self, path: &Path) -> PathBuf {
        with_suffix(self.at_home(path), ".dwp")
    }

    /// Where its GSYM file may be: beside it, or where its debug file may be by build id.
    pub(crate) fn gsym_candidates(&self) -> impl Iterator<Item = PathBuf> {
        let by_id = self.build_id().map(|id| self.search.by_build_id(id)).unwrap_or_default();
        let by_id = by_id.into_iter().map(|path| path.with_extension("gsym"));
        std::iter::once(with_suffix(self.at_home(&self.open_path), ".gsym")).chain(by_id)
    }

    /// Where the process has the file at `path`: that of this object may be a descriptor's, beside which nothing lies.
    fn at_home(&self, path: &Path) -> PathBuf {
        let inside = self.search.object_path.as_deref().filter(|_| path == self.open_path);
        let root = self.search.process_root.as_deref().unwrap_or(Path::new("/"));
        inside.map_or_else(|| path.to_owned(), |inside| through_root(root, inside))
    }

    /// Where a debug file was searched for in vain, for messages; empty if one was found.
    #[must_use]
    pub fn debug_tried(&self) -> &[String] {
        &self.debug_lookup().tried
    }

    fn debug_lookup(&self) -> &Lookup {
        self.debug.get_or_init(|| self.find_debug())
    }

    pub(super) fn find_debug(&self) -> Lookup {
        let (id, link) = (self.parts.build_id.as_deref(), self.parts.debug_link.as_ref());
        debug::find(&self.search, id, link, self.owner, &self.held)
    }

    fn debug(&self) -> Option<&DebugFile> {
        self.debug_lookup().file.as_ref()
    }

    /// The tables to ask, the object's own first. The debug file's `.symtab` is a superset of the
    /// object's, so it is read only where the object has none.
    pub(super) fn tables(&self) -> impl Iterator<Item = &SymbolTable> {
        let debug = if self.parts.symtab.is_none() { self.debug() } else { None };
        self.parts
            .symtab
            .iter()
            .chain(&self.parts.dynsym)
            .chain(debug.and_then(|debug| debug.symbols.as_ref()))
    }

    /// The symbols called `name` (its plain name: without symbol version, mangled where it is).
    ///
    /// One hit per address. Global symbols hide local ones of the same name, as they do for the linker:
    /// a `static` function of another source file is another function.
    #[must_use]
    pub fn resolve(&self, name: &str) -> Vec<SymbolHit> {
        let own: Vec<&SymbolTable> = self.parts.symtab.iter().chain(&self.parts.dynsym).collect();
        let hits = self.collect(own.iter().flat_map(|table| table.named(name)));
        if !hits.is_empty() || self.parts.symtab.is_some() {
            return hits;
        }
        self.collect(self.tables().flat_map(|table| table.named(name)))
    }

    /// The function symbols whose demangled name matches `glob`, in address order; without the parts and
    /// copies that the compiler made of them ([`Elf::clones`] has these). Fails where their names take too much work.
    pub fn resolve_demangled(&self, glob: &str) -> Result<Vec<SymbolHit>, ElfError> {
        let pattern = demangle::Pattern::new(glob)?;
        let function = |symbol: &symbols::Symbol<'_>| {
            matches!(symbol.kind, SymbolKind::Func | SymbolKind::Ifunc)
                && matches!(symbols::clone_kind(symbol.name), None | Some(CloneKind::Renamed))
        };
        let hits = self.collect(self.tables().flat_map(|table| {
            table.all().filter(|symbol| function(symbol) && pattern.matches(symbol.name))
        }));
        pattern.check()?;
        Ok(hits)
    }

    /// What the compiler made of the function `name`: `name.part.0`, `.constprop.0`, `.isra.0`, `.cold`,
    /// `.lto_priv.0`, `.llvm.123`, and combinations.
    #[must_use]
    pub fn clones(&self, name: &str) -> Vec<(SymbolHit, CloneKind)> {
        let hits = self.collect(self.tables().flat_map(|table| {
            table
                .starting_with(name)
                .filter(|symbol| symbols::clone_of(symbol.name, name.as_bytes()).is_some())
        }));
        hits.into_iter()
            .filter_map(|hit| {
                let kind = symbols::clone_of(hit.name.as_bytes(), name.as_bytes())?;
                Some((hit, kind))
            })
            .collect()
    }

    /// Whether the file has a section of this name.
    #[must_use]
    pub fn has_section(&self, name: &str) -> bool {
        self.open_again().is_ok_and(|file| {
            let found = read::with_open(file, &self.shown_path, |reader| {
                Ok(reader.section(name.as_bytes()).is_some())
            });
            found.unwrap_or_default()
        })
    }

    /// The address of the data that other objects know as `name`: only what the object exports.
    #[must_use]
    pub fn exported_data(&self, name: &str) -> Option<u64> {
        let dynsym = self.parts.dynsym.as_ref()?;
        let found =
            dynsym.named(name).find(|symbol| symbol.kind == SymbolKind::Object && symbol.global);
        found.map(|symbol| symbol.vaddr)
    }

    /// The mangled name, without `_ZTV`, of the C++ class whose vtable objects have at `vaddr`: behind its first two words.
    #[must_use]
    pub fn vtable_at(&self, vaddr: u64) -> Option<String> {
        let holds = |symbol: &symbols::Symbol<'_>| {
            let into = vaddr.checked_sub(symbol.vaddr);
            symbol.kind == SymbolKind::Object
                && into.is_some_and(|into| (16..symbol.size).contains(&into))
        };
        let mut symbols = self.tables().flat_map(|table| table.starting_with("_ZTV"));
        let symbol = symbols.find(holds)?;
        symbol.name.strip_prefix(b"_ZTV").map(|name| String::from_utf8_lossy(name).into_owned())
    }

    /// The function that holds `vaddr`, an address in the file's own address space.
    #[must_use]
    pub fn symbol_at(&self, vaddr: u64) -> Option<SymbolHit> {
        let best = self
            .tables()
            .flat_map(SymbolTable::all)
            .filter(|symbol| symbol.kind != SymbolKind::Object)
            .filter(|symbol| {
                vaddr == symbol.vaddr
                    || vaddr.checked_sub(symbol.vaddr).is_some_and(|at| at < symbol.size)
            })
            // The innermost, and of aliases the global one.
            .max_by_key(|symbol| (symbol.vaddr, symbol.global))?;
        Some(self.hit(&best))
    }

    /// The offset in the file of `vaddr`; `None` for what is not in the file (`.bss`, or nowhere).
    #[must_use]
    pub fn file_offset(&self, vaddr: u64) -> Option<u64> {
        Some(self.parts.segments.iter().find_map(|segment| segment.in_file(vaddr))?.0)
    }

    /// The address, in the file's own address space, of the code at `offset` of the file.
    pub fn code_at(&self, offset: u64) -> Result<u64, ElfError> {
        let mut segments = self.parts.segments.iter();
        segments.find_map(|segment| segment.code_at(offset)).ok_or_else(|| {
            let code = self.parts.segments.iter().filter(|segment| segment.executable);
            let ranges = code.map(|segment| {
                let end = segment.file_offset.saturating_add(segment.file_size);
                format!("{:#x}..{end:#x}", segment.file_offset)
            });
            ElfError::NotCode {
                path: self.shown_path.clone(),
                offset,
                segments: ranges.collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// Whether `vaddr` lies in an executable segment.
    #[must_use]
    pub fn is_code(&self, vaddr: u64) -> bool {
        self.parts.segments.iter().any(|segment| {
            let into = vaddr.checked_sub(segment.vaddr);
            segment.executable && into.is_some_and(|into| into < segment.memory_size)
        })
    }

    fn hit(&self, symbol: &symbols::Symbol<'_>) -> SymbolHit {
        SymbolHit {
            name: String::from_utf8_lossy(symbol.name).into_owned(),
            vaddr: symbol.vaddr,
            file_offset: self.file_offset(symbol.vaddr),
            size: symbol.size,
            // Assembly often leaves the type out; where it lies shows what it is.
            kind: match symbol.kind {
                SymbolKind::Untyped if self.is_code(symbol.vaddr) => SymbolKind::Func,
                SymbolKind::Untyped => SymbolKind::Object,
                kind => kind,
            },
            global: symbol.global,
        }
    }

    /// The hits for `symbols`, each once, by address; at most some 200,000.
    pub(super) fn collect<'a>(
        &self,
        symbols: impl Iterator<Item = symbols::Symbol<'a>>,
    ) -> Vec<SymbolHit> {
        let mut hits: Vec<SymbolHit> = Vec::new();
        let mut bytes = 0;
        for symbol in symbols {
            bytes += symbol.name.len();
            if hits.len() >= MAX_HITS.0 || bytes > MAX_HITS.1 {
                let (most, path) = (MAX_HITS.0, &self.shown_path);
                tracing::warn!(
                    "{path} has more than {most} symbols that match; the first are taken"
                );
                break;
            }
            hits.push(self.hit(&symbol));
        }
        hits.sort_by(|a, b| (a.vaddr, &a.name).cmp(&(b.vaddr, &b.name)));
        hits.dedup_by(|a, b| (a.vaddr, &a.name) == (b.vaddr, &b.name));
        let globals: std::collections::HashSet<String> =
            hits.iter().filter(|hit| hit.global).map(|hit| hit.name.clone()).collect();
        hits.retain(|hit| hit.global || !globals.contains(&hit.name));
        hits
    }
}
