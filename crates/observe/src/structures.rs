//! A program's own structures, walked as a profile's `[[walk]]` says, from outside and without a probe.
//!
//! The program runs on, so what it changes meanwhile may be missed. What cannot be read is said, and never guessed.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, HashMap},
};

use drainprof_census::{Heap, Reader};
use drainprof_common::interp::Machine;
use drainprof_probe::plan::{ObjectResolver, match_objects};
use drainprof_process::{ElfCache, Image, ImageOptions, ProcessError, readers::open};
use drainprof_profile::{EvalError, Expr, Profile, Resolver, Structure, eval, eval_all};

/// Reads of one structure, and granules in it.
const MAX_READS: u32 = 4_000_000;
const MAX_GRANULES: usize = 1_000_000;
/// Pages that are kept: neighbours are read together.
const MAX_PAGES: usize = 4096;
const PAGE: u64 = 4096;

/// The structures of a profile in a process, one heap for each; and what was not read, in sentences.
///
/// # Errors
/// The process cannot be inspected.
pub fn walk(profile: &Profile, pid: u32) -> Result<(Vec<Heap>, Vec<String>), ProcessError> {
    let process = open(pid)?;
    let image = Image::load(&process, &ImageOptions::default(), &mut ElfCache::new())?;
    let objects = match match_objects(profile, &image) {
        Ok(objects) => objects,
        Err(none) => return Ok((Vec::new(), vec![none.to_string()])),
    };
    let main = image.objects.iter().find(|object| object.is_main);
    let reader = Reader::open(&process)?;
    let (mut heaps, mut notes) = (Vec::new(), Vec::new());
    for structure in &profile.structures {
        let all = objects.iter().map(|object| {
            let memory = Memory::new(&reader);
            granules(structure, &memory, &ObjectResolver::new(object, main))
        });
        match all.collect::<Result<Vec<_>, _>>() {
            Ok(all) => heaps.push(Heap::of_granules(&profile.name, &structure.name, &all.concat())),
            Err(error) => notes.push(format!("{}: {}: {error}", profile.name, structure.name)),
        }
    }
    Ok((heaps, notes))
}

/// A granule's bytes, its live objects, and their bytes.
type Granule = (u64, u64, u64);

fn granules(
    structure: &Structure,
    memory: &Memory<'_>,
    resolver: &dyn Resolver,
) -> Result<Vec<Granule>, EvalError> {
    let mut waiting = Vec::new();
    for at in &structure.at {
        waiting.extend(eval_all(at, memory, resolver)?);
    }
    // Each once, so that branches that lead back end.
    let mut addresses = BTreeSet::new();
    while let Some(address) = waiting.pop() {
        if !addresses.insert(address) {
            continue;
        }
        if addresses.len() > MAX_GRANULES {
            return Err(EvalError::Cut);
        }
        memory.granule.set(address);
        for branch in &structure.branches {
            let further = eval_all(branch, memory, resolver)?;
            waiting.extend(further.into_iter().filter(|address| *address != 0));
        }
    }
    let one = |address: &u64| {
        memory.granule.set(*address);
        let value = |expr: &Expr| eval(expr, memory, resolver);
        let Structure { bytes, live, live_bytes, .. } = structure;
        Ok((value(bytes)?, value(live)?, value(live_bytes)?))
    };
    addresses.iter().map(one).collect()
}

/// Pages as they were read; `None` for those that cannot be.
type Pages = HashMap<u64, Option<Box<[u8; PAGE as usize]>>>;

/// The memory of a process, with a granule as the argument.
struct Memory<'a> {
    reader: &'a Reader,
    left: Cell<u32>,
    granule: Cell<u64>,
    pages: RefCell<Pages>,
}

impl<'a> Memory<'a> {
    fn new(reader: &'a Reader) -> Self {
        let left = Cell::new(MAX_READS);
        Self { reader, left, granule: Cell::new(0), pages: RefCell::default() }
    }

    fn byte(&self, address: u64) -> Option<u8> {
        let mut pages = self.pages.borrow_mut();
        let page = address / PAGE * PAGE;
        if pages.len() >= MAX_PAGES && !pages.contains_key(&page) {
            pages.clear();
        }
        let bytes = pages.entry(page).or_insert_with(|| {
            let mut bytes = Box::new([0; PAGE as usize]);
            self.reader.read(page, &mut *bytes).then_some(bytes)
        });
        bytes.as_ref().map(|bytes| bytes[(address % PAGE) as usize])
    }
}

impl Machine for Memory<'_> {
    fn arg(&self, _: u8) -> u64 {
        self.granule.get()
    }

    fn ret(&self) -> u64 {
        0
    }

    fn caller(&self) -> Option<u64> {
        None
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        self.left.set(self.left.get().checked_sub(1)?);
        (0..u64::from(size)).try_fold(0, |word, at| {
            Some(word | u64::from(self.byte(address.checked_add(at)?)?) << (at * 8))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use drainprof_profile::{Source, parse};
    use nix::{
        sys::{
            signal::{Signal, kill},
            wait::waitpid,
        },
        unistd::{ForkResult, Pid, fork, pause},
    };

    use drainprof_process::Process;

    use super::*;

    /// Where the test has what.
    struct Places(u64);

    impl Resolver for Places {
        fn var(&self, _: &str) -> Option<u64> {
            Some(self.0)
        }

        fn offset_of(&self, _: &str, _: &str) -> Result<u64, String> {
            Ok(16)
        }
    }

    fn profile(at: &str) -> Profile {
        let text = format!(
            "schema = 1\nname = \"own\"\nkind = \"slab\"\non_request = true\n[match]\nsymbols = [\"x\"]\n[[walk]]\n\
             name = \"pool\"\nat = '{at}'\nbytes = \"4096\"\nlive = '*(u64)(arg0 + 8)'\n\
             live_bytes = '*(u64)(arg0 + offsetof(pool, used))'"
        );
        parse(&text, &Source::File(PathBuf::from("own.toml"))).unwrap()
    }

    /// A copy of this process, as it is now: what is read has the same addresses there.
    struct Copy(Pid);

    impl Copy {
        fn of_this_process() -> Self {
            // SAFETY: the child calls `pause` alone, which is async-signal-safe.
            match unsafe { fork() }.unwrap() {
                ForkResult::Parent { child } => Self(child),
                ForkResult::Child => loop {
                    pause();
                },
            }
        }
    }

    impl Drop for Copy {
        fn drop(&mut self) {
            let _ = kill(self.0, Signal::SIGKILL);
            let _ = waitpid(self.0, None);
        }
    }

    /// A tree in a copy of this process, one of whose branches leads back; a branch to where no memory is, is an error.
    #[test]
    fn own_trees() {
        let mut nodes = [[0u64; 4]; 4];
        let at = |index: usize, nodes: &[[u64; 4]; 4]| std::ptr::from_ref(&nodes[index]) as u64;
        let place = [0, 1, 2, 3].map(|index| at(index, &nodes));
        // Left, live objects, their bytes, right.
        nodes[0] = [place[1], 1, 10, place[2]];
        nodes[1] = [0, 2, 20, place[3]];
        nodes[2] = [place[0], 3, 30, 0];
        nodes[3] = [0, 4, 40, 0];
        std::hint::black_box(&nodes);
        let mut astray = [8u64, 0, 0, 0];
        let astray = std::ptr::from_mut(&mut astray) as u64;
        let copy = Copy::of_this_process();
        let process = Process::open(copy.0.as_raw().cast_unsigned()).unwrap();
        let reader = Reader::open(&process).unwrap();
        let mut profile = profile("var(\"root\")");
        profile.structures[0].branches = ["*(u64)(arg0)", "*(u64)(arg0 + 24)"]
            .map(|text| drainprof_profile::expr::parse(text).unwrap())
            .to_vec();
        let of = |root| granules(&profile.structures[0], &Memory::new(&reader), &Places(root));
        let mut found = of(place[0]).unwrap();
        found.sort_unstable();
        assert_eq!(found, [(4096, 1, 10), (4096, 2, 20), (4096, 3, 30), (4096, 4, 40)]);
        assert_eq!(of(astray), Err(EvalError::Fault));
    }

    /// Lists and arrays in a copy of this process; a list without an end, and memory that is not there, are errors.
    #[test]
    fn own_structures() {
        let mut pools = [[0u64, 3, 300], [0, 0, 0], [0, 1, 64]];
        let at = |index: usize, pools: &[[u64; 3]; 3]| std::ptr::from_ref(&pools[index]) as u64;
        (pools[0][0], pools[1][0]) = (at(1, &pools), at(2, &pools));
        let root = at(0, &pools);
        let mut ring = [0u64, 1, 1];
        ring[0] = std::ptr::from_ref(&ring) as u64;
        let copy = Copy::of_this_process();
        let process = Process::open(copy.0.as_raw().cast_unsigned()).unwrap();
        let reader = Reader::open(&process).unwrap();
        let of = |text: &str, resolver: &Places| {
            granules(&profile(text).structures[0], &Memory::new(&reader), resolver)
        };
        let list = "walk(var(\"pools\"), *(u64)(it), it)";
        let array = "walk(var(\"pools\"), it + 24, it, end = var(\"pools\") + 72)";
        let mut wanted = [(4096, 3, 300), (4096, 0, 0), (4096, 1, 64)];
        wanted.sort_unstable();
        for text in [list, array] {
            let mut found = of(text, &Places(root)).unwrap();
            found.sort_unstable();
            assert_eq!(found, wanted, "{text}");
        }
        let heap = Heap::of_granules("own", "pool", &wanted);
        assert_eq!((heap.live_objects, heap.live_bytes, heap.granules.empty), (4, 364, 1));
        assert_eq!(of(list, &Places(ring[0])), Err(EvalError::Cut), "{ring:?}");
        assert_eq!(of(list, &Places(8)), Err(EvalError::Fault));
    }
}
