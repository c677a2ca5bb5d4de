//! Threads for brief work, which are kept between one piece of work and the next.
//!
//! The C library keeps the stacks of threads that ended. If each piece of work began a thread, some would begin while
//! others still end, and the mappings of a process that runs for months would grow by a stack now and then.

use std::{
    collections::VecDeque,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver},
    },
    thread::Builder,
};

/// Threads of one name.
pub struct Workers {
    name: &'static str,
    /// How many there may be.
    most: usize,
    state: Mutex<State>,
    /// There is work.
    work: Condvar,
}

struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    busy: usize,
}

type Job = Box<dyn FnOnce(Busy) + Send>;

/// A thread that works until this is dropped.
struct Busy(&'static Workers);

impl Workers {
    /// None yet. There will be as many as ever work at once, up to `most`; more work waits for them.
    #[must_use]
    pub const fn new(name: &'static str, most: usize) -> Self {
        let state = State { waiting: VecDeque::new(), threads: 0, busy: 0 };
        Self { name, most, state: Mutex::new(state), work: Condvar::new() }
    }

    /// Does `work` on one of the threads. The receiver gets its result, or is disconnected if it panics. When the
    /// result has arrived, the thread has no work.
    ///
    /// # Errors
    ///
    /// There is no thread, and none can be started: `work` is dropped.
    pub fn start<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Receiver<T>> {
        let (done, result) = mpsc::sync_channel(1);
        self.start_then(work, move |found| {
            // The caller may have stopped waiting.
            let _ = done.send(found);
        })?;
        Ok(result)
    }

    /// Does `work` likewise, and calls `then` with its result once the thread counts as one without work.
    ///
    /// # Errors
    ///
    /// As [`Workers::start`]; `then` is dropped, too.
    pub fn start_then<T>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(T) + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.state();
        if state.busy + state.waiting.len() >= state.threads && state.threads < self.most {
            match Builder::new().name(self.name.to_owned()).spawn(|| self.work()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err(error),
                // It waits for another.
                Err(_) => {}
            }
        }
        state.waiting.push_back(Box::new(move |busy| {
            let found = work();
            drop(busy);
            then(found);
        }));
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Works for ever.
    fn work(&'static self) {
        loop {
            let job = self.next();
            // After a panic there is no result, which disconnects the receiver.
            let _ = catch_unwind(AssertUnwindSafe(|| job(Busy(self))));
        }
    }

    fn next(&self) -> Job {
        let mut state = self.state();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                state.busy += 1;
                return job;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.state().busy -= 1;
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    /// One piece of work after the other needs one thread; as many work at once as may be, and the rest waits.
    #[test]
    fn are_kept() {
        static WORKERS: Workers = Workers::new("tested", 2);
        static AT_ONCE: Barrier = Barrier::new(2);
        let thread = || thread::current();
        let first = WORKERS.start(thread).unwrap().recv().unwrap();
        assert_eq!(first.name(), Some("tested"));
        for _ in 0..1000 {
            assert_eq!(WORKERS.start(thread).unwrap().recv().unwrap().id(), first.id());
        }

        let all = [(); 6].map(|()| WORKERS.start(|| AT_ONCE.wait().is_leader()).unwrap());
        assert_eq!(all.iter().filter(|one| one.recv().unwrap()).count(), 3);
        assert_eq!(WORKERS.state().threads, 2);
    }

    /// A panic ends its work, and no other.
    #[test]
    fn a_panic() {
        static WORKERS: Workers = Workers::new("tested", 1);
        let broken = WORKERS.start(|| -> u32 { panic!("a defect") }).unwrap();
        let next = WORKERS.start(|| 1).unwrap();
        assert!(broken.recv().is_err());
        assert_eq!(next.recv(), Ok(1));
        let state = WORKERS.state();
        assert_eq!((state.threads, state.busy), (1, 0));
    }
}
