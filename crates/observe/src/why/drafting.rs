//! Drafts on a thread of their own: a large program has hundreds of thousands of functions, and a busy machine little time
//! for them. Memory is observed meanwhile, and the answer comes in time.

use std::{future, io, path::PathBuf, thread};

use tokio::sync::oneshot::{self, Receiver};

use super::trial::Trial;

/// A draft that is being made.
pub(super) struct Drafting(Receiver<Result<Trial, String>>);

impl Drafting {
    /// Begins to draft a profile for the program of a process.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub(super) fn begin(pid: u32, directory: PathBuf) -> io::Result<Self> {
        let (sender, receiver) = oneshot::channel();
        thread::Builder::new().name("draft".to_owned()).spawn(move || {
            // Once the time is up, no draft is needed.
            let _ = sender.send(Trial::begin(pid, &directory));
        })?;
        Ok(Self(receiver))
    }
}

/// The draft, as soon as it is made; never, where none is being made.
pub(super) async fn drafted(drafting: &mut Option<Drafting>) -> Result<Trial, String> {
    let Some(Drafting(receiver)) = drafting else { return future::pending().await };
    let drafted = receiver.await;
    *drafting = None;
    drafted.unwrap_or_else(|_| Err("the thread that drafts has ended".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A draft comes once, or the reason why there is none; where none is being made, none comes.
    #[test]
    fn comes_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            // There is no such process.
            let mut drafting = Drafting::begin(u32::MAX >> 1, directory.path().to_owned()).ok();
            assert!(drafting.is_some());
            assert!(drafted(&mut drafting).await.is_err());
            assert!(drafting.is_none());
            let none = tokio::time::timeout(Duration::from_millis(1), drafted(&mut drafting));
            assert!(none.await.is_err());
        });
    }
}
