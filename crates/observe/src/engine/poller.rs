//! One descriptor for everything that an observation waits for.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Instant,
};

use drainprof_probe::bpf::Session;
use rustix::event::{Timespec, epoll};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep_until,
};

/// Marks rings among the processes, whose marks are their ids.
const RING: u64 = u64::MAX;
/// Ends of processes that are taken at once.
const AT_ONCE: usize = 64;

/// Rings and processes, behind one descriptor.
pub(super) struct Poller {
    epoll: OwnedFd,
    rings: Vec<OwnedFd>,
    processes: HashMap<u32, OwnedFd>,
    /// The same descriptor, where a runtime waits for it.
    registered: Option<AsyncFd<OwnedFd>>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, rings: Vec::new(), processes: HashMap::new(), registered: None })
    }

    /// Waits for the rings of a kernel side, and no longer for those of an earlier one.
    pub(super) fn watch_rings(&mut self, session: &Session) -> io::Result<()> {
        self.forget_rings();
        for ring in [session.events_fd()?, session.stacks.snapshots_fd()?] {
            epoll::add(&self.epoll, &ring, epoll::EventData::new_u64(RING), epoll::EventFlags::IN)?;
            self.rings.push(ring);
        }
        Ok(())
    }

    /// The kernel side is about to go.
    pub(super) fn forget_rings(&mut self) {
        for ring in self.rings.drain(..) {
            // Closing it would do, were it not that a child may have a copy for a moment.
            let _ = epoll::delete(&self.epoll, &ring);
        }
    }

    /// Waits for the end of a process.
    pub(super) fn watch_process(&mut self, pid: u32, pidfd: OwnedFd) -> io::Result<()> {
        if !self.processes.contains_key(&pid) {
            let data = epoll::EventData::new_u64(pid.into());
            epoll::add(&self.epoll, &pidfd, data, epoll::EventFlags::IN)?;
            self.processes.insert(pid, pidfd);
        }
        Ok(())
    }

    /// Processes that have ended since this was last asked.
    pub(super) fn ended(&mut self) -> io::Result<Vec<u32>> {
        let mut ended = Vec::new();
        loop {
            let mut ready = Vec::with_capacity(AT_ONCE);
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&none))
            {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let before = ended.len();
            for event in &ready {
                let pid = u32::try_from(event.data.u64()).ok();
                let Some((pid, pidfd)) = pid.and_then(|pid| self.processes.remove_entry(&pid))
                else {
                    continue;
                };
                let _ = epoll::delete(&self.epoll, &pidfd);
                ended.push(pid);
            }
            if ended.len() == before || ready.len() < AT_ONCE {
                return Ok(ended);
            }
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns when something is ready, and at `due`.
    pub(super) async fn wait(&mut self, due: Instant) -> io::Result<()> {
        if self.registered.is_none() {
            let epoll = self.epoll.try_clone()?;
            // SAFETY: the descriptor is owned by the `AsyncFd`, and nothing else closes it.
            let registered = unsafe { AsyncFd::register_with_interest(epoll, Interest::READABLE) };
            self.registered = Some(registered.map_err(io::Error::from)?);
        }
        let ready = async {
            match &self.registered {
                Some(registered) => {
                    registered.readable().await.map(|mut ready| ready.clear_ready())
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ready = ready => ready,
            () = sleep_until(due.into()) => Ok(()),
        }
    }
}
