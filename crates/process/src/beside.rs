//! Work about processes that may take long, such as reading all their files: it goes on beside a loop.
//!
//! A loop waits for a moment, in which most work is done, and asks again later for the rest. There are few places; the
//! processes of one user get half of them. Work that takes too long is left behind: it ends at its next answer.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    guard::{Asked, Stuck, start},
    readers::{Patience, ask},
    suspect,
};

/// Pieces of work that go on at a time.
const MAX_BESIDE: usize = 4;
/// Of processes of one user. The system's own are not counted against each other.
const MAX_OF_USER: usize = MAX_BESIDE / 2;
/// Longest time for one piece of work.
const LONGEST: Duration = Duration::from_secs(10);

/// Longest and shortest wait of a loop, and the part of the time that it may wait in vain.
static PATIENCE: Mutex<Patience> =
    Mutex::new(Patience::new(Duration::from_millis(500), Duration::from_millis(20), 4));
/// The users whose work goes on.
static PLACES: Mutex<Vec<Option<u32>>> = Mutex::new(Vec::new());

fn places() -> std::sync::MutexGuard<'static, Vec<Option<u32>>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place for work of this user's processes; `None`: the system's own.
#[derive(Debug)]
struct Place(Option<u32>);

impl Place {
    fn take(user: Option<u32>) -> Option<Self> {
        let mut places = places();
        let of_user = places.iter().filter(|taken| user.is_some() && **taken == user).count();
        if places.len() >= MAX_BESIDE || of_user >= MAX_OF_USER {
            return None;
        }
        places.push(user);
        Some(Self(user))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = places();
        let at = places.iter().position(|taken| *taken == self.0);
        at.map(|at| places.swap_remove(at));
    }
}

/// Work that goes on.
#[derive(Debug)]
pub struct Beside<T> {
    asked: Asked<T>,
    began: Instant,
    was_waited_for: bool,
    _place: Place,
}

/// Begins work about a process.
///
/// # Errors
///
/// There is no place or thread for it, or the kernel does not answer for the process.
pub fn begin<T: Send + 'static>(
    pid: u32,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Beside<T>, Stuck> {
    let user = ask(pid, move || suspect::owner(pid))?;
    let place = Place::take(user).ok_or(Stuck::Slow { pid })?;
    Ok(Beside { asked: start(work)?, began: Instant::now(), was_waited_for: false, _place: place })
}

impl<T> Beside<T> {
    /// What came of it; itself, if it still goes on. Waits at the first time, as long as a loop may now.
    ///
    /// # Errors
    ///
    /// It goes on.
    pub fn take(mut self) -> Result<Result<T, Stuck>, Self> {
        if self.was_waited_for {
            return self.asked.poll().ok_or(self);
        }
        self.was_waited_for = true;
        let began = Instant::now();
        let time = PATIENCE.lock().unwrap_or_else(PoisonError::into_inner).at(began);
        self.asked.within(time).ok_or_else(|| {
            PATIENCE.lock().unwrap_or_else(PoisonError::into_inner).waited(began);
            self
        })
    }

    /// Whether it has taken too long: it should be dropped.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.began.elapsed() > LONGEST
    }

    /// The file that it reads, as messages call it.
    #[must_use]
    pub fn file(&self) -> String {
        self.asked.file()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Work that is done in a moment is waited for; other work goes on in its place, and is asked for later. A user's
    /// processes have half of the places.
    #[test]
    fn goes_on() {
        let own = std::process::id();
        let done = begin(own, || 7).unwrap().take();
        assert!(matches!(done, Ok(Ok(7))));
        let (answer, waits) = mpsc::channel::<()>();
        let began = Instant::now();
        let slow = begin(own, move || waits.recv().is_ok()).unwrap();
        let mut slow = slow.take().unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(2) && !slow.is_late());
        // It is not waited for again.
        let began = Instant::now();
        for _ in 0..100 {
            slow = slow.take().unwrap_err();
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        answer.send(()).unwrap();
        let answered = loop {
            match slow.take() {
                Ok(found) => break found,
                Err(later) => slow = later,
            }
            std::thread::yield_now();
        };
        assert_eq!(answered, Ok(true));

        let user = Some(1000);
        let of_user: Vec<Place> = (0..9).filter_map(|_| Place::take(user)).collect();
        assert_eq!(of_user.len(), MAX_OF_USER);
        let system: Vec<Place> = (0..9).filter_map(|_| Place::take(None)).collect();
        assert_eq!(system.len(), MAX_BESIDE - MAX_OF_USER);
        assert!(Place::take(Some(1001)).is_none());
        drop((of_user, system));
        assert!(places().is_empty());
    }
}
