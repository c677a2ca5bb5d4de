//! Signals that end an observation, or go to the command that is observed.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for signals.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Waited for only where there is a command that it can be for.
    hang_up: Option<Signal>,
}

/// One that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// SIGINT: a terminal sends it to commands, too.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP.
    HangUp,
}

impl Signals {
    /// Waits from now on for those that end an observation.
    ///
    /// # Errors
    /// If there is no runtime, or no descriptor for it.
    pub fn new() -> io::Result<Self> {
        let (interrupt, terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hang_up: None })
    }

    /// The same, and for those that are forwarded to a command.
    ///
    /// # Errors
    /// As [`Signals::new`].
    pub fn for_command() -> io::Result<Self> {
        Ok(Self { hang_up: Some(signal(SignalKind::hangup())?), ..Self::new()? })
    }

    /// Returns when one has come. Dropped earlier, none is lost.
    pub async fn next(&mut self) -> Came {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Came::Interrupt,
            _ = self.terminate.recv() => Came::Terminate,
            _ = hang_up => Came::HangUp,
        }
    }

    /// Whether one has come. Does not wait: yielding lets the runtime see what the kernel has for it.
    pub async fn have_come(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.next() => true,
            () = tokio::task::yield_now() => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;

    /// A signal that comes between two processes is noticed before the second.
    #[test]
    fn are_checked_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for one in [Signal::SIGTERM, Signal::SIGINT] {
            runtime.block_on(async {
                let mut signals = Signals::new().unwrap();
                assert!(!signals.have_come().await);
                raise(one).unwrap();
                assert!(signals.have_come().await, "{one}");
            });
        }
    }
}
