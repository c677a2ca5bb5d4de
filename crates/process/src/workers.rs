//! Threads for brief work, which are kept between one piece of work and the next.
//!
//! The C library keeps the stacks of threads that ended. If each piece of work began a thread, some would begin while
//! others still end, and the mappings of a process that runs for months would grow by a stack now and then.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, SendError, Sender},
    },
    thread::{self, Builder},
};

/// Threads of one name.
#[derive(Debug)]
pub struct Workers {
    name: &'static str,
    /// How many may wait for work.
    most: usize,
    idle: Mutex<Vec<Sender<Job>>>,
}

/// Work, and how its thread gets more.
struct Job {
    work: Box<dyn FnOnce(Busy) + Send>,
    own: Sender<Self>,
}

/// A thread that works until this is dropped.
struct Busy {
    of: &'static Workers,
    own: Option<Sender<Job>>,
}

impl Workers {
    /// None yet. There will be as many as ever work at once; `most` of them are kept.
    #[must_use]
    pub const fn new(name: &'static str, most: usize) -> Self {
        Self { name, most, idle: Mutex::new(Vec::new()) }
    }

    /// Does `work` on a thread that does nothing else meanwhile. The receiver gets its result, or is disconnected if it
    /// panics. Whoever has received the result finds the thread without work.
    ///
    /// # Errors
    ///
    /// No thread is without work, and none can be started: `work` is dropped.
    pub fn start<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Receiver<T>> {
        let (done, result) = mpsc::sync_channel(1);
        self.start_for(work, move |found| {
            // Nobody may wait any more.
            let _ = done.send(found);
        })?;
        Ok(result)
    }

    /// Does `work` likewise, and calls `then` with its result once the thread counts as one without work.
    ///
    /// # Errors
    ///
    /// As [`Workers::start`]; `then` is dropped, too.
    pub fn start_for<T>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(T) + Send + 'static,
    ) -> io::Result<()> {
        let mut work: Box<dyn FnOnce(Busy) + Send> = Box::new(move |busy| {
            let found = work();
            drop(busy);
            then(found);
        });
        loop {
            let Some(worker) = self.idle().pop() else { break };
            let own = worker.clone();
            match worker.send(Job { work, own }) {
                Ok(()) => return Ok(()),
                Err(SendError(job)) => work = job.work,
            }
        }
        let (own, jobs) = mpsc::channel();
        let first = Job { work, own };
        Builder::new().name(self.name.to_owned()).spawn(move || self.work(first, &jobs))?;
        Ok(())
    }

    /// Works until nobody can send more.
    fn work(&'static self, first: Job, jobs: &Receiver<Job>) {
        for Job { work, own } in std::iter::once(first).chain(jobs) {
            work(Busy { of: self, own: Some(own) });
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Sender<Job>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut idle = self.of.idle();
        if !thread::panicking() && idle.len() < self.of.most {
            idle.extend(self.own.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// One piece of work after the other needs one thread; of those that work at once, as many as may be are kept.
    #[test]
    fn are_kept() {
        static WORKERS: Workers = Workers::new("tested", 2);
        static AT_ONCE: Barrier = Barrier::new(3);
        let thread = || thread::current();
        let first = WORKERS.start(thread).unwrap().recv().unwrap();
        assert_eq!(first.name(), Some("tested"));
        for _ in 0..1000 {
            assert_eq!(WORKERS.start(thread).unwrap().recv().unwrap().id(), first.id());
        }

        let all = [(); 3].map(|()| WORKERS.start(|| AT_ONCE.wait().is_leader()).unwrap());
        assert_eq!(all.iter().filter(|one| one.recv().unwrap()).count(), 1);
        assert_eq!(WORKERS.idle().len(), 2);
    }

    /// A panic ends its thread, and no other work.
    #[test]
    fn a_panic() {
        static WORKERS: Workers = Workers::new("tested", 2);
        let broken = WORKERS.start(|| -> u32 { panic!("a defect") }).unwrap();
        assert!(broken.recv().is_err());
        assert_eq!(WORKERS.idle().len(), 0);
        assert_eq!(WORKERS.start(|| 1).unwrap().recv(), Ok(1));
    }
}
