//! Which places have which names: asks for new ones, remembers all, and puts them into snapshots.
//!
//! Nothing here waits: mappings are read and files opened while a process lives, everything else is a job
//! for `resolve`. Driven by `cli`, once per live line and at the end, and where call paths are found (`early`).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, Receiver, SyncSender, TrySendError},
    },
    thread,
    time::Instant,
};

use drainprof_process::{
    Frame, MappedObject, Module, Space, Spot, kernel,
    symbolize::{self, Done, Job, MAX_ADDRESSES, Root, Within},
};
use drainprof_report::facts::{Snapshot, SymbolFacts, TargetFacts};

/// Names that are kept, over all targets.
const MAX_PLACES: usize = 65_536;
/// Places of one target that are asked for at once.
const MAX_AT_ONCE: usize = 8_192;
/// Jobs that wait at once: each holds a file open.
const MAX_JOBS: usize = 64;
/// Earlier states of a process's mappings that are kept, for objects that were unloaded.
const MAX_EARLIER: usize = 8;
/// Targets whose mappings are kept.
const MAX_TARGETS: usize = 4096;
/// Root directories that are kept open: of containers, one for each process that was not forked in our sight.
const MAX_ROOTS: usize = 128;
/// How often a generated function is searched for: JIT compilers write their maps late.
const MAX_TRIES: u8 = 5;
/// Files of a target that are reported with their build ids.
const MAX_MODULES: usize = 1024;
/// Sentences about what went wrong that are kept.
const MAX_TROUBLES: usize = 16;

/// How names are searched for.
#[derive(Clone, Debug)]
pub struct SymbolOptions {
    /// More directories laid out like `/usr/lib/debug`.
    pub debug_dirs: Vec<PathBuf>,
    /// The program that becomes the symbol helper when it is started with [`drainprof_process::symbolize::COMMAND`].
    pub program: PathBuf,
}

impl Default for SymbolOptions {
    /// This very program is the helper.
    fn default() -> Self {
        Self { debug_dirs: Vec::new(), program: PathBuf::from("/proc/self/exe") }
    }
}

/// The names of all places that were seen.
#[derive(Debug)]
pub struct Symbols {
    targets: BTreeMap<u32, Target>,
    jobs: SyncSender<Job>,
    done: Receiver<Done>,
    places: usize,
    /// Root directories that are kept open.
    roots: usize,
    left_out: u64,
    postponed: bool,
    given_up: u64,
    troubles: Vec<String>,
    early: early::Early,
}

/// What is known of one target.
#[derive(Debug)]
struct Target {
    pid: u32,
    start_time: u64,
    /// The target that it was forked from: their mappings were the same.
    parent: Option<u32>,
    uid: u32,
    pid_inside: u32,
    /// Device and inode of its executable: an exec keeps pid and start time.
    exe: Option<(u64, u64)>,
    root: Arc<Root>,
    /// The newest last.
    spaces: Vec<Space>,
    places: BTreeMap<u64, Known>,
    /// Files that its places lie in.
    modules: BTreeSet<Module>,
    /// Where places lay when their call path was found.
    spots: BTreeMap<u64, Spot>,
    /// When its mappings may be read next for call paths.
    next_reading: Option<Instant>,
}

/// A file, and places in it with their offsets.
type InFile = (Arc<MappedObject>, Vec<(u64, u64)>);

#[derive(Debug)]
enum Known {
    /// A job is on its way.
    Asked { tries: u8 },
    /// This is what it is called.
    Named(Frame),
    /// Generated code that its map does not name yet.
    Unnamed { frame: Frame, tries: u8 },
}

impl Symbols {
    /// Starts the thread that finds names. The helper is started with the first name.
    pub fn new(options: SymbolOptions) -> std::io::Result<Self> {
        let (jobs, incoming) = mpsc::sync_channel(MAX_JOBS);
        let (outgoing, done) = mpsc::channel();
        let SymbolOptions { debug_dirs, program } = options;
        // It ends when `jobs` is dropped, or is left behind where it still reads.
        thread::Builder::new()
            .name("symbols".to_owned())
            .spawn(move || symbolize::work(program, debug_dirs, &incoming, &outgoing))?;
        Ok(Self {
            targets: BTreeMap::new(),
            jobs,
            done,
            places: 0,
            roots: 0,
            left_out: 0,
            postponed: false,
            given_up: 0,
            troubles: Vec::new(),
            early: early::Early::default(),
        })
    }

    /// Notes what a snapshot holds: examines the mappings of targets that are new or have new
    /// places, and asks for the names of these. What does not fit now is asked for the next time.
    pub fn learn(&mut self, snapshot: &Snapshot) {
        self.left_out = 0;
        self.postponed = false;
        for facts in &snapshot.targets {
            self.meet_one(facts);
            let Some(target) = self.targets.get_mut(&facts.target) else { continue };
            let mut fresh: Vec<u64> = places(facts)
                .into_iter()
                .filter(|place| target.is_wanted(*place, facts.ended.is_none()))
                .collect();
            let room = MAX_PLACES.saturating_sub(self.places);
            self.left_out += fresh.len().saturating_sub(room) as u64;
            fresh.truncate(room);
            // What is asked for at once is bounded: a live line must not wait for it.
            self.postponed |= fresh.len() > MAX_AT_ONCE;
            fresh.truncate(MAX_AT_ONCE);
            if fresh.is_empty() {
                continue;
            }
            let known = |place: &u64| target.spots.contains_key(place);
            if facts.ended.is_none() && !fresh.iter().all(known) {
                target.read_mappings();
            }
            self.ask(facts.target, fresh);
        }
    }

    fn ask(&mut self, number: u32, fresh: Vec<u64>) {
        let mut files: BTreeMap<(u64, u64), InFile> = BTreeMap::new();
        let (mut vdso, mut generated) = (Vec::new(), Vec::new());
        let (of_kernel, fresh): (Vec<u64>, Vec<u64>) =
            fresh.into_iter().partition(|place| kernel::is_address(*place));
        for (place, frame) in kernel::frames(&of_kernel) {
            self.remember(number, place, Known::Named(frame));
        }
        for place in fresh {
            // The call lies before the place that it returns to, maybe as the last of its function.
            let Some(call) = place.checked_sub(1) else { continue };
            match self.spot(number, place, call) {
                Some(Spot::File(object, offset)) => {
                    let group = files.entry(object.inode).or_insert_with(|| (object, Vec::new()));
                    group.1.push((place, offset));
                }
                Some(Spot::Vdso(offset)) => vdso.push((place, offset)),
                Some(Spot::Generated) => generated.push((place, call)),
                None => self.remember(number, place, Known::Named(Frame::default())),
            }
        }
        let Some(target) = self.targets.get(&number) else { return };
        let (root, pid_inside, uid) = (Arc::clone(&target.root), target.pid_inside, target.uid);
        for (object, places) in files.into_values() {
            for chunk in places.chunks(MAX_ADDRESSES) {
                let within = match self
                    .early
                    .file(&object)
                    .map_or_else(|| symbolize::open(&object, &root), Ok)
                {
                    Ok(file) => {
                        let (object, root) = (Arc::clone(&object), Arc::clone(&root));
                        Within::Object { file, object, root }
                    }
                    Err(error) => {
                        let module = symbolize::module(&object);
                        self.trouble(format!("{module} cannot be opened any more: {error}"));
                        self.given_up += chunk.len() as u64;
                        for &(place, offset) in chunk {
                            let at = symbolize::module_offset(&object, offset).map(|at| at + 1);
                            let frame = Frame::nameless(module.clone(), at);
                            self.remember(number, place, Known::Named(frame));
                        }
                        continue;
                    }
                };
                if !self.send(number, chunk, within) {
                    break;
                }
            }
        }
        for chunk in vdso.chunks(MAX_ADDRESSES) {
            self.send(number, chunk, Within::Vdso);
        }
        for chunk in generated.chunks(MAX_ADDRESSES) {
            let map = symbolize::open_perf_map(&root, pid_inside, uid).ok();
            let map = map.or_else(|| self.early.map(number));
            self.send(number, chunk, Within::Generated { map });
        }
    }

    /// What lay before a place when its call path was found, or lies there.
    fn spot(&self, number: u32, place: u64, call: u64) -> Option<Spot> {
        let early = self.targets.get(&number).and_then(|target| target.spots.get(&place));
        early.cloned().or_else(|| self.find(number, call))
    }

    /// What lay at an address of a target: now, earlier, or in its parent.
    fn find(&self, number: u32, address: u64) -> Option<Spot> {
        let mut next = Some(number);
        // A family of forks is not followed further than this.
        for _ in 0..16 {
            let target = self.targets.get(&next?)?;
            let lay = || target.spots.get(&address.wrapping_add(1)).cloned();
            let found = target.spaces.iter().rev().find_map(|space| space.find(address));
            let found = found.or_else(lay);
            if found.is_some() {
                return found;
            }
            next = target.parent;
        }
        None
    }

    /// Hands a job over; `false` where there is no room for it now.
    fn send(&mut self, target: u32, places: &[(u64, u64)], within: Within) -> bool {
        let job = Job { target, places: places.to_vec(), within };
        match self.jobs.try_send(job) {
            Ok(()) => {
                for &(place, _) in places {
                    let known =
                        self.targets.get(&target).and_then(|known| known.places.get(&place));
                    let tries = match known {
                        Some(Known::Unnamed { tries, .. }) => tries + 1,
                        _ => 1,
                    };
                    self.remember(target, place, Known::Asked { tries });
                }
                true
            }
            Err(TrySendError::Full(_)) => {
                // They are asked for again with the next snapshot.
                self.postponed = true;
                false
            }
            Err(TrySendError::Disconnected(_)) => {
                self.trouble("the thread that looks names up has ended".to_owned());
                for &(place, _) in places {
                    self.remember(target, place, Known::Named(Frame::default()));
                }
                true
            }
        }
    }

    fn remember(&mut self, target: u32, place: u64, known: Known) {
        if let Some(target) = self.targets.get_mut(&target)
            && target.places.insert(place, known).is_none()
        {
            self.places += 1;
        }
    }

    fn trouble(&mut self, text: String) {
        if self.troubles.len() < MAX_TROUBLES && !self.troubles.contains(&text) {
            self.troubles.push(text);
        }
    }

    /// Takes the answers that have come.
    pub fn collect(&mut self) {
        while let Ok(Done { target, frames, module, trouble }) = self.done.try_recv() {
            if let Some(trouble) = trouble {
                self.given_up += frames.len() as u64;
                self.trouble(trouble);
            }
            let Some(target) = self.targets.get_mut(&target) else { continue };
            if target.modules.len() < MAX_MODULES {
                target.modules.extend(module);
            }
            for (place, frame) in frames {
                let tries = match target.places.get(&place) {
                    Some(Known::Asked { tries }) => *tries,
                    _ => MAX_TRIES,
                };
                let generated = frame.module_offset.is_none() && frame.function.is_none();
                let known = if generated && tries < MAX_TRIES {
                    Known::Unnamed { frame, tries }
                } else {
                    Known::Named(frame)
                };
                target.places.insert(place, known);
            }
        }
    }

    /// Whether some places found no room among the jobs when it was learned last.
    #[must_use]
    pub const fn postponed(&self) -> bool {
        self.postponed
    }

    /// How many answers are still to come.
    #[must_use]
    pub fn pending(&self) -> usize {
        let known = self.targets.values().flat_map(|target| target.places.values());
        known.filter(|known| matches!(known, Known::Asked { .. })).count()
    }

    /// How many places of a snapshot have been answered, and how many there are.
    #[must_use]
    pub fn progress(&self, snapshot: &Snapshot) -> (usize, usize) {
        let (mut answered, mut all) = (0, 0);
        for shown in &snapshot.targets {
            let Some(target) = self.targets.get(&shown.target) else { continue };
            for place in places(shown) {
                all += 1;
                let known = target.places.get(&place);
                answered +=
                    usize::from(matches!(known, Some(Known::Named(_) | Known::Unnamed { .. })));
            }
        }
        (answered, all)
    }

    /// Puts the names that are known into a snapshot.
    pub fn fill(&self, snapshot: &mut Snapshot) {
        let mut facts = SymbolFacts {
            left_out: self.left_out,
            given_up: self.given_up,
            errors: self.troubles.clone(),
            ..SymbolFacts::default()
        };
        for shown in &mut snapshot.targets {
            let Some(target) = self.targets.get(&shown.target) else { continue };
            shown.modules = target.modules.iter().cloned().collect();
            for place in places(shown) {
                facts.places += 1;
                match target.places.get(&place) {
                    Some(Known::Named(frame) | Known::Unnamed { frame, .. }) => {
                        facts.named += u64::from(frame.function.is_some());
                        shown.frames.insert(place, frame.clone());
                    }
                    Some(Known::Asked { .. }) | None => facts.pending += 1,
                }
            }
        }
        facts.pending = facts.pending.saturating_sub(self.left_out);
        snapshot.symbols = Some(facts);
    }
}

impl Target {
    /// Whether a place's name is to be asked for.
    fn is_wanted(&self, place: u64, alive: bool) -> bool {
        match self.places.get(&place) {
            None => true,
            Some(Known::Unnamed { .. }) => alive,
            Some(Known::Asked { .. } | Known::Named(_)) => false,
        }
    }
}

/// All places of a target, each once.
fn places(facts: &TargetFacts) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    for allocator in &facts.allocators {
        all.extend(allocator.lifetimes.keys());
        all.extend(allocator.granules.iter().map(|granule| granule.place));
        for site in &allocator.sites {
            all.insert(site.opened_at);
            all.extend(&site.path.addresses);
        }
    }
    if let Some(growth) = &facts.growth {
        all.extend(growth.paths.keys().flat_map(|path| &path.addresses));
        all.extend(growth.touched.granules.keys().map(|(.., place)| place));
    }
    all.remove(&0);
    all
}

mod early;
mod meet;
#[cfg(test)]
mod tests;
