//! The files that a process has mapped: what its main program exports, the constants in them, and symbols of vtables;
//! and heaps without a reader, by their names.

use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _},
    path::Path,
};

use drainprof_process::{
    DebugSearch, Elf, LoadedObject, MappedObject, Process, identity, mapped_objects, open_same,
};

/// What a heap without a reader is known by.
struct Unread {
    name: &'static str,
    /// What the names of its libraries begin with.
    files: &'static [&'static str],
    /// Symbols of the main program, any of which says so.
    symbols: &'static [&'static str],
    /// Sections of the main program, which it has all.
    sections: &'static [&'static str],
}

const UNREAD: [Unread; 6] = [
    Unread {
        name: "Google's tcmalloc",
        files: &[],
        symbols: &["TCMallocInternalMalloc"],
        // gperftools has the first too, but no code that the kernel restarts.
        sections: &["google_malloc", "__rseq_cs_ptr_array"],
    },
    Unread {
        name: "V8",
        files: &["libnode.so", "libv8.so"],
        symbols: &["_ZN2v82V810GetVersionEv"],
        sections: &[],
    },
    Unread {
        name: "JavaScriptCore",
        files: &["libjavascriptcoregtk-"],
        symbols: &["JSGarbageCollect"],
        sections: &[],
    },
    Unread { name: "PHP", files: &["libphp"], symbols: &["_emalloc"], sections: &[] },
    Unread { name: "OpenJDK", files: &["libjvm.so"], symbols: &[], sections: &[] },
    Unread { name: ".NET", files: &["libcoreclr.so"], symbols: &[], sections: &[] },
];

/// The objects of a process, found when the first is asked for.
pub(crate) struct Files {
    pid: u32,
    objects: OnceCell<Vec<MappedObject>>,
    /// What was read of them, by index.
    read: RefCell<HashMap<usize, Option<LoadedObject>>>,
}

impl Files {
    pub(crate) fn of(process: &Process) -> Self {
        Self { pid: process.pid, objects: OnceCell::new(), read: RefCell::default() }
    }

    fn objects(&self) -> &[MappedObject] {
        self.objects.get_or_init(|| {
            let all = mapped_objects(self.pid).unwrap_or_default().into_iter();
            all.filter(|object| object.refused.is_none()).collect()
        })
    }

    /// The object with a mapping of this address.
    fn index(&self, address: u64) -> Option<usize> {
        let has = |object: &MappedObject| {
            let mut mappings = object.mappings.iter();
            mappings.any(|mapping| (mapping.start..mapping.end).contains(&address))
        };
        self.objects().iter().position(has)
    }

    /// What `ask` finds in an object and at its place in memory.
    fn with<T>(&self, index: usize, ask: impl FnOnce(&Elf, u64) -> Option<T>) -> Option<T> {
        let mut read = self.read.borrow_mut();
        let object = read.entry(index).or_insert_with(|| {
            let mapped = self.objects().get(index)?.clone();
            let elf = Elf::open(&mapped.open_path, &mapped.shown_path, DebugSearch::default());
            Some(LoadedObject { mapped, elf: Ok(elf.ok()?.into()), is_main: false })
        });
        let object = object.as_ref()?;
        ask(object.elf.as_ref().ok()?, *object.biases().first()?)
    }

    /// The main program.
    fn program(&self) -> Option<usize> {
        let program = identity(Path::new(&format!("/proc/{}/exe", self.pid))).ok()?;
        self.objects().iter().position(|object| object.inode == program)
    }

    /// The address in the process of the data that its main program exports as `name`.
    pub(crate) fn exported(&self, name: &str) -> Option<u64> {
        self.with(self.program()?, |elf, bias| Some(bias.wrapping_add(elf.exported_data(name)?)))
    }

    /// What the process has that keeps heaps which no reader reads: by files' names, symbols and sections.
    pub(crate) fn unread(&self) -> Vec<&'static str> {
        let has_file = |prefix: &&str| {
            let mut names = self.objects().iter().filter_map(|object| object.path.file_name());
            names.any(|name| name.as_bytes().starts_with(prefix.as_bytes()))
        };
        let program = self.program();
        let has_symbol = |name: &&str| {
            let found = program.and_then(|index| {
                self.with(index, |elf, _| (!elf.resolve(name).is_empty()).then_some(()))
            });
            found.is_some()
        };
        let has_sections = |names: &[&str]| {
            let has =
                |elf: &Elf| !names.is_empty() && names.iter().all(|name| elf.has_section(name));
            program.and_then(|index| self.with(index, |elf, _| has(elf).then_some(()))).is_some()
        };
        let is_here = |heap: &&Unread| {
            heap.files.iter().any(has_file)
                || heap.symbols.iter().any(has_symbol)
                || has_sections(heap.sections)
        };
        UNREAD.iter().filter(is_here).map(|heap| heap.name).collect()
    }

    /// The mangled name of the class whose vtable has this address, by its symbol.
    pub(crate) fn vtable(&self, address: u64) -> Option<String> {
        let index = self.index(address)?;
        self.with(index, |elf, bias| elf.vtable_at(address.wrapping_sub(bias)))
    }

    /// Fills `bytes` with what a file has for an address of the process; whether it could be read.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Some(object) = self.index(address).and_then(|index| self.objects().get(index)) else {
            return false;
        };
        let mut mappings = object.mappings.iter().filter(|mapping| !mapping.writable);
        let Some(mapping) =
            mappings.find(|mapping| (mapping.start..mapping.end).contains(&address))
        else {
            return false;
        };
        let offset = mapping.file_offset.saturating_add(address - mapping.start);
        open_same(object.inode, [object.open_path.as_path()], u64::MAX)
            .is_ok_and(|file| file.read_exact_at(bytes, offset).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use drainprof_process::testing::cc;

    use crate::{Options, take};

    /// Has 8 MiB of no heap, from a function that may be known.
    const MAPS: &str = r#"
        #include <stdio.h>
        #include <string.h>
        #include <sys/mman.h>
        char *NAME(size_t bytes) {
            return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }
        int main(void) {
            char *all = NAME(8 << 20);
            if (all == MAP_FAILED)
                return 1;
            memset(all, 1, 8 << 20);
            puts("ready");
            fflush(stdout);
            return getchar() == 'x';
        }
    "#;

    /// A heap without a reader is named, and unknown as a whole.
    #[test]
    fn unread() {
        let directory = tempfile::tempdir().unwrap();
        for (symbol, expected) in [
            ("TCMallocInternalMalloc", Some("Google's tcmalloc")),
            ("_ZN2v82V810GetVersionEv", Some("V8")),
            ("any", None),
        ] {
            let program = cc(directory.path(), symbol, MAPS, &[&format!("-DNAME={symbol}")]);
            let mut command = Command::new(program);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let census = take(child.id(), &Options::default());
            drop(child.stdin.take());
            child.wait().unwrap();
            let census = census.unwrap();
            let [one] = census.unknown.as_slice() else { panic!("{census:?}") };
            assert_eq!(one.allocator.as_deref(), expected, "{census:?}");
            let is_named = one.reasons.iter().any(|text| text.contains("not measurable"));
            assert_eq!(is_named, expected.is_some(), "{census:?}");
            assert!(one.bytes >= 8 << 20, "{census:?}");
            assert_eq!(census.validated_bytes, census.rss_bytes - one.bytes, "{census:?}");
        }
    }
}
