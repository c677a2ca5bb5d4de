//! Putting probes in place without waiting for ever.
//!
//! The kernel may wait for a process without end meanwhile (`locks`), and nothing can end that wait. So it is asked only
//! where no lock is held that it would wait for. Between that check and the call a process can still take its lock: then
//! a thread of our own hangs, no other probe is tried until it does not any more, and the caller goes on.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    time::Duration,
};

use drainprof_process::Workers;

use super::{
    detach::Detaching,
    locks::Holder,
    mutex::lock,
    obstacles::{self, Placed},
};

/// The kernel puts one probe in place at a time, for all processes together.
static PLACER: Workers = Workers::new("attach", 1);

/// Why a probe is not in place.
#[derive(Debug)]
pub(super) enum Refused {
    /// A process holds a lock that the kernel would wait for.
    Held(Holder),
    /// The kernel has not come back with this probe or an earlier one, for so long.
    Late(Duration),
    /// What the kernel says.
    Kernel(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Kernel(error)
    }
}

/// Asks the kernel to put a probe into `file`, by `work`, and waits for it as long as `patience`. What comes after that is
/// taken out again, and `uses` what it needs until then.
pub(super) fn place<T: Send + 'static>(
    file: &Arc<File>,
    patience: Duration,
    uses: T,
    work: impl FnOnce() -> io::Result<OwnedFd> + Send + 'static,
) -> Result<Placed, Refused> {
    let refused = |refused| {
        obstacles::count_refusal();
        Err(refused)
    };
    if let Some(late) = obstacles::late() {
        return refused(Refused::Late(late));
    }
    let (done, result) = sync_channel(1);
    // Whether the caller has gone on.
    let has_left = Arc::new(Mutex::new(false));
    let (object, caller_has_left) = (Arc::clone(file), Arc::clone(&has_left));
    let work = move || {
        let checked = obstacles::check(&object).map_err(Refused::Held);
        let placed = checked.and_then(|()| Ok(Placed::new(object, work()?)));
        let has_left = lock(&caller_has_left);
        if !*has_left {
            // The caller waits until it has left.
            let _ = done.send(placed);
            return;
        }
        drop(has_left);
        obstacles::set_late(false);
        if let Ok(placed) = placed {
            // In this order: what the probe uses goes after it.
            drop(Detaching::begin(placed, uses));
        }
    };
    PLACER.start(work)?;
    let placed = match result.recv_timeout(patience) {
        Err(RecvTimeoutError::Timeout) => {
            let mut has_left = lock(&has_left);
            // It may have come meanwhile.
            result.try_recv().unwrap_or_else(|_| {
                *has_left = true;
                obstacles::set_late(true);
                tracing::warn!(
                    "the kernel does not come back with a probe: it waits for a process"
                );
                Err(Refused::Late(patience))
            })
        }
        received => {
            received.unwrap_or_else(|_| Err(Refused::Kernel(io::ErrorKind::BrokenPipe.into())))
        }
    };
    match placed {
        Err(Refused::Held(_) | Refused::Late(_)) => placed.or_else(refused),
        placed => placed,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Instant};

    use super::{super::obstacles::obstacles, *};

    fn descriptor() -> io::Result<OwnedFd> {
        Ok(File::open("/dev/null")?.into())
    }

    /// A call that does not come back costs its caller the patience, and no later one anything, until it has come back.
    #[test]
    fn late() {
        const PATIENCE: Duration = Duration::from_millis(100);
        const LONGEST: Duration = Duration::from_secs(30);
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(4096).unwrap();
        assert!(place(&file, LONGEST, (), descriptor).is_ok());
        let (answer, waits) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = waits.recv();
            descriptor()
        };
        let before = obstacles().times;
        assert!(matches!(place(&file, PATIENCE, (), hangs), Err(Refused::Late(_))));
        let began = Instant::now();
        assert!(matches!(place(&file, LONGEST, (), descriptor), Err(Refused::Late(_))));
        assert!(began.elapsed() < LONGEST / 2);
        assert!(obstacles().late.is_some() && obstacles().times >= before + 2);
        answer.send(()).unwrap();
        while obstacles().late.is_some() {
            assert!(began.elapsed() < LONGEST, "it has come back");
            thread::yield_now();
        }
        assert!(place(&file, LONGEST, (), descriptor).is_ok());
        let kernel = place(&file, LONGEST, (), || Err(io::ErrorKind::NotFound.into())).map(|_| ());
        assert!(matches!(kernel, Err(Refused::Kernel(_))), "{kernel:?}");
    }
}
