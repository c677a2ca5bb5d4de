//! Looks names up, on a thread of its own: finds debug files, asks the helper, and falls back to what can
//! be reported without it.
//!
//! Everything that can take long is here, so that no live line waits for it. Jobs come from `names`, with the
//! files open already; answers go back there.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Seek as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, MetadataExt as _},
    },
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, Sender},
    },
    time::Duration,
};

use super::{
    helper::{Helper, HelperError},
    parts, perf_map,
    root::{self, Root},
    wire::{self, Name, Part},
};
use crate::{
    DebugSearch, Elf, Frame, Inlined, MappedObject, Module, SymbolKind,
    elf::readable,
    printable,
    signal_return::{LONGEST_RETURN, returns_from_signal},
    vdso,
};

/// Longest time for one job.
const JOB_LIMIT: Duration = Duration::from_secs(10);
/// Objects whose symbol tables are kept from job to job.
const MAX_KNOWN: usize = 4;
/// What C libraries call the code that a signal handler returns to.
const TRAMPOLINE: &str = "__restore_rt";

/// Addresses of one target that lie in one thing.
#[derive(Debug)]
pub struct Job {
    /// The target's number.
    pub target: u32,
    /// Places (return addresses), and where the calls before them end: an offset in the file, or an address.
    pub places: Vec<(u64, u64)>,
    /// What they lie in.
    pub within: Within,
}

/// What they lie in.
#[derive(Debug)]
pub enum Within {
    /// An object, open.
    Object {
        /// Its file.
        file: File,
        /// Where it is mapped.
        object: Arc<MappedObject>,
        /// The process's root directory, for debug files.
        root: Arc<Root>,
    },
    /// The vDSO.
    Vdso,
    /// Generated code, with the map that names it.
    Generated {
        /// `/tmp/perf-PID.map`, if there is one.
        map: Option<File>,
    },
}

/// The names of a job's places.
#[derive(Debug)]
pub struct Done {
    /// The target's number.
    pub target: u32,
    /// Names by place.
    pub frames: Vec<(u64, Frame)>,
    /// The file that they lie in.
    pub module: Option<Module>,
    /// Why there are no better ones.
    pub trouble: Option<String>,
}

type Key = (u64, u64, u64, i64);

/// What is kept of an object from job to job.
struct Known {
    elf: Elf,
    /// The files that belong to it.
    more: Vec<(Part, File)>,
}

struct Resolver {
    helper: Helper,
    debug_dirs: Vec<PathBuf>,
    known: HashMap<Key, Known>,
    /// Objects over which the helper died.
    bad: HashSet<Key>,
    vdso: Option<Elf>,
}

/// Does jobs until there are no more, or their answers are not received.
pub fn work(program: PathBuf, debug_dirs: Vec<PathBuf>, jobs: &Receiver<Job>, done: &Sender<Done>) {
    let mut resolver = Resolver {
        helper: Helper::new(program),
        debug_dirs,
        known: HashMap::new(),
        bad: HashSet::new(),
        vdso: None,
    };
    while let Ok(job) = jobs.recv() {
        if done.send(resolver.resolve(&job)).is_err() {
            return;
        }
    }
}

impl Resolver {
    fn resolve(&mut self, job: &Job) -> Done {
        let (frames, trouble) = match &job.within {
            Within::Object { file, object, root } => self.object(file, object, root, &job.places),
            Within::Vdso => self.vdso(&job.places),
            Within::Generated { map } => (generated(map.as_ref(), &job.places), None),
        };
        let places = job.places.iter().map(|&(place, _)| place);
        let module = match &job.within {
            Within::Object { file, object, .. } => Some(self.module(file, object)),
            Within::Vdso | Within::Generated { .. } => None,
        };
        Done { target: job.target, frames: places.zip(frames).collect(), module, trouble }
    }

    fn module(&self, file: &File, object: &MappedObject) -> Module {
        let known = identity(file).ok().and_then(|key| self.known.get(&key));
        Module {
            name: root::module(object),
            path: wire::cut(&object.shown_path),
            build_id: known.and_then(|known| known.elf.build_id()).map(str::to_owned),
        }
    }

    fn object(
        &mut self,
        file: &File,
        object: &MappedObject,
        root: &Root,
        places: &[(u64, u64)],
    ) -> (Vec<Frame>, Option<String>) {
        let module = root::module(object);
        let bare = |&(_, offset): &(u64, u64)| {
            // The place itself: one past the call's last byte.
            let at = root::module_offset(object, offset).map(|at| at + 1);
            Frame::nameless(module.clone(), at)
        };
        let key = match identity(file) {
            Ok(key) => key,
            Err(error) => {
                let trouble = format!("{module} cannot be read: {error}");
                return (places.iter().map(bare).collect(), Some(trouble));
            }
        };
        if let Err(trouble) = self.know(key, file, object, root) {
            return (places.iter().map(bare).collect(), Some(trouble));
        }
        let Some(Known { elf, more }) = self.known.get(&key) else {
            return (places.iter().map(bare).collect(), None);
        };
        // Where the file says otherwise than its mappings, nothing is named.
        let addresses: Vec<Option<At>> =
            places.iter().map(|&(_, offset)| At::find(elf, file, offset)).collect();
        let asked: Vec<u64> = addresses.iter().flatten().map(|at| at.address).collect();
        let mut trouble = None;
        let mut names = if self.bad.contains(&key) {
            Vec::new()
        } else {
            let more = more.iter().map(|(part, file)| (*part, file));
            let files: Vec<_> = std::iter::once((Part::Object, file)).chain(more).collect();
            match self.helper.ask(&files, &asked, JOB_LIMIT) {
                Ok(answer) => {
                    trouble = answer.trouble.map(|why| explain(&module, &wire::cut(&why)));
                    answer.names
                }
                Err(error) => {
                    trouble = Some(explain(&module, &error_text(&error)));
                    if matches!(error, HelperError::Died { .. }) {
                        self.bad.insert(key);
                    }
                    Vec::new()
                }
            }
        }
        .into_iter();
        let frames = places.iter().zip(addresses).map(|(place, at)| {
            let Some(at) = at else { return bare(place) };
            let frame = Frame::nameless(module.clone(), Some(at.address + at.before));
            match names.next().flatten() {
                Some(name) => named(name, at, frame),
                None => from_symbols(elf, at, frame),
            }
        });
        (frames.collect(), trouble)
    }

    /// Reads what is needed of an object before the helper is asked, with our own bounded reader.
    fn know(
        &mut self,
        key: Key,
        file: &File,
        object: &MappedObject,
        root: &Root,
    ) -> Result<(), String> {
        if self.known.contains_key(&key) {
            return Ok(());
        }
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let search = root.search(object, &self.debug_dirs);
        let elf =
            Elf::open(&path, &object.shown_path, search).map_err(|error| error.to_string())?;
        let more = parts::of(&elf);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, Known { elf, more });
        Ok(())
    }

    /// The vDSO has no DWARF and comes from the kernel: our own reader does.
    fn vdso(&mut self, places: &[(u64, u64)]) -> (Vec<Frame>, Option<String>) {
        if self.vdso.is_none() {
            self.vdso = vdso::image().ok().and_then(|file| {
                let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
                Elf::open(&path, vdso::NAME, DebugSearch::default()).ok()
            });
        }
        let frames = places.iter().map(|&(_, offset)| {
            let bare = Frame::nameless(vdso::NAME.to_owned(), Some(offset + 1));
            match &self.vdso {
                // It is linked at address 0.
                Some(elf) => from_symbols(elf, At { address: offset, before: 1 }, bare),
                None => bare,
            }
        });
        (frames.collect(), None)
    }
}

fn explain(module: &str, why: &str) -> String {
    format!("the functions of {module} have no file and line: {}", printable(why))
}

fn error_text(error: &HelperError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(" ({cause})"));
    format!("{error}{}", cause.unwrap_or_default())
}

fn identity(file: &File) -> io::Result<Key> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino(), metadata.size(), metadata.ctime_nsec() ^ metadata.ctime()))
}

/// The address whose name is that of a place.
#[derive(Clone, Copy)]
struct At {
    /// In the object's own address space.
    address: u64,
    /// How many bytes before the place: one, where the call is that returns to it; none where nothing was called.
    before: u64,
}

impl At {
    /// `offset` is that of the byte before the place. `None` where the file says otherwise than its mappings.
    fn find(elf: &Elf, file: &File, offset: u64) -> Option<Self> {
        let address = elf.code_at(offset).ok()?;
        let mut code = [0; LONGEST_RETURN];
        let read = file.read_at(&mut code, offset + 1).unwrap_or_default();
        if returns_from_signal(&code[..read]) {
            return Some(Self { address: address + 1, before: 0 });
        }
        Some(Self { address, before: 1 })
    }
}

/// The frame with what the helper has said.
fn named(name: Name, at: At, frame: Frame) -> Frame {
    Frame {
        function: Some(name.function),
        offset: name.offset.map(|offset| offset.saturating_add(at.before)),
        file: name.file,
        line: name.line.map(u64::from),
        inlined: name
            .inlined
            .into_iter()
            .map(|(function, file, line)| Inlined { function, file, line: line.map(u64::from) })
            .collect(),
        ..frame
    }
}

/// The frame with the name that our own reader finds.
fn from_symbols(elf: &Elf, at: At, frame: Frame) -> Frame {
    match elf.symbol_at(at.address) {
        Some(hit) if hit.kind != SymbolKind::Object => Frame {
            offset: Some(at.address - hit.vaddr + at.before),
            function: Some(wire::cut(&readable(&hit.name))),
            ..frame
        },
        // Stripped libraries have no symbol of it, but it is known by its code.
        _ if at.before == 0 => {
            Frame { offset: Some(0), function: Some(TRAMPOLINE.to_owned()), ..frame }
        }
        _ => frame,
    }
}

fn generated(map: Option<&File>, places: &[(u64, u64)]) -> Vec<Frame> {
    let addresses: Vec<u64> = places.iter().map(|&(_, address)| address).collect();
    // It may have been read before, through another descriptor of the same file.
    let map = map.and_then(|mut map| map.rewind().is_ok().then_some(map));
    let names = map.map(|map| perf_map::names(map, &addresses)).unwrap_or_default();
    let mut names = names.into_iter();
    addresses
        .iter()
        .map(|_| {
            let (function, offset) = names.next().flatten().unzip();
            Frame {
                function,
                offset: offset.map(|offset| offset + 1),
                module: Some("[generated]".to_owned()),
                ..Frame::default()
            }
        })
        .collect()
}
