//! Loading the programs: each when it is first needed, or ahead of that, in the background.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
};

use aya_obj::{Object, ProgramSection};

use super::super::{mutex::lock, private_stack, syscall};

type Loaded = io::Result<OwnedFd>;

/// The programs of an object whose maps exist and are named in the instructions, by the numbers of their descriptors: they
/// must stay open as long as this.
pub(super) struct Programs {
    source: Arc<Source>,
    loaded: BTreeMap<String, OwnedFd>,
    /// Those that are on their way into the kernel.
    coming: BTreeMap<String, mpsc::Receiver<Loaded>>,
    queue: Arc<Mutex<VecDeque<Job>>>,
    workers: Vec<JoinHandle<()>>,
}

/// A program to load, and where to send it.
struct Job {
    name: String,
    to: mpsc::Sender<Loaded>,
}

struct Source {
    object: Object,
    /// What the types of the object are known by.
    types: Option<OwnedFd>,
    /// A map of these programs alone: held, since instructions name it by its number.
    _no_program: OwnedFd,
}

impl Programs {
    pub(super) fn new(object: Object, types: Option<OwnedFd>, no_program: OwnedFd) -> Self {
        Self {
            source: Arc::new(Source { object, types, _no_program: no_program }),
            loaded: BTreeMap::new(),
            coming: BTreeMap::new(),
            queue: Arc::default(),
            workers: Vec::new(),
        }
    }

    /// Begins to load programs, those that are needed first before the others: the kernel takes some milliseconds of a CPU
    /// to verify each, and placing the first takes as long, without a CPU.
    pub(super) fn begin(&mut self, names: impl IntoIterator<Item = String>) {
        let mut new = 0;
        for name in names {
            if !self.loaded.contains_key(&name) && !self.coming.contains_key(&name) {
                let (to, coming) = mpsc::channel();
                lock(&self.queue).push_back(Job { name: name.clone(), to });
                self.coming.insert(name, coming);
                new += 1;
            }
        }
        self.workers.retain(|worker| !worker.is_finished());
        let most = thread::available_parallelism().map_or(1, usize::from);
        let started: Vec<_> = (0..most.min(new)).filter_map(|_| self.start().ok()).collect();
        if new > 0 && started.is_empty() {
            // Where there can be no thread, each is loaded when it is needed.
            lock(&self.queue).clear();
        }
        self.workers.extend(started);
    }

    /// A thread that works until the queue is empty.
    fn start(&self) -> io::Result<JoinHandle<()>> {
        let (source, queue) = (Arc::clone(&self.source), Arc::clone(&self.queue));
        thread::Builder::new().name("loading".to_owned()).spawn(move || {
            while let Some(job) = next(&queue) {
                // Where the session has ended the receiver is gone.
                let _ = job.to.send(source.load(&job.name));
            }
        })
    }

    /// A program, once it is loaded.
    pub(super) fn get(&mut self, name: &str) -> io::Result<BorrowedFd<'_>> {
        if !self.loaded.contains_key(name) {
            let coming = self.coming.remove(name).and_then(|coming| coming.recv().ok());
            let program = coming.unwrap_or_else(|| self.source.load(name))?;
            self.loaded.insert(name.to_owned(), program);
        }
        self.loaded.get(name).map(OwnedFd::as_fd).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether a program is for the return of a function.
    pub(super) fn is_at_return(&self, name: &str) -> bool {
        let program = self.source.object.programs.get(name);
        program.is_some_and(|program| matches!(program.section, ProgramSection::URetProbe { .. }))
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        lock(&self.queue).clear();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Source {
    fn load(&self, name: &str) -> Loaded {
        let program = self.object.programs.get(name);
        let function =
            program.and_then(|program| self.object.functions.get(&program.function_key()));
        let (Some(program), Some(function)) = (program, function) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let types = self.types.as_ref().map(OwnedFd::as_fd);
        let functions =
            types.map(|types| (types, &function.func_info, function.func_info_rec_size));
        let places = syscall::UPROBE_MULTI;
        let loaded = syscall::load(places, &program.license, &function.instructions, functions)?;
        private_stack::exclude(name, loaded.as_fd()).map_err(io::Error::other)?;
        Ok(loaded)
    }
}

/// The lock is not held while the job is done.
fn next(queue: &Mutex<VecDeque<Job>>) -> Option<Job> {
    lock(queue).pop_front()
}
