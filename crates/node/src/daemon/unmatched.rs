//! What processes are made of that no profile matches: most processes of a machine are of a few kinds, and each kind is
//! matched once.

use std::collections::HashSet;

use drainprof_process::Process;

use super::arrivals::fingerprint;

/// Fingerprints that are remembered.
const MAX_FINGERPRINTS: usize = 4_096;

/// Fingerprints of processes that no profile matches.
#[derive(Debug, Default)]
pub(super) struct Unmatched {
    made_of: HashSet<u64>,
}

impl Unmatched {
    /// Whether no profile matches what is made of this.
    pub(super) fn knows(&self, made_of: u64) -> bool {
        made_of != 0 && self.made_of.contains(&made_of)
    }

    /// No profile matched a process that was made of this when it was found. False where it is not any more: it has
    /// ended, or executes another program, which says nothing of the others of its kind.
    pub(super) fn learn(&mut self, process: &Process, made_of: u64) -> bool {
        if fingerprint(process) != made_of {
            return false;
        }
        if self.made_of.len() >= MAX_FINGERPRINTS {
            self.made_of.clear();
        }
        self.made_of.insert(made_of);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use drainprof_process::testing::Waiting;

    use super::*;

    /// A process that ends while profiles are tried does not speak for its kind.
    #[test]
    fn only_what_is_still_so() {
        let mut cat = Waiting::start(Path::new("/bin/cat"));
        let process = Process::open(cat.pid()).unwrap();
        let made_of = fingerprint(&process);
        let mut unmatched = Unmatched::default();
        assert!(!unmatched.knows(made_of));
        assert!(!unmatched.learn(&process, made_of + 1), "it was another program then");
        // A zombie still has its number.
        cat.0.kill().unwrap();
        let ended = || std::fs::read(format!("/proc/{}/maps", process.pid)).unwrap().is_empty();
        while !ended() {
            std::thread::yield_now();
        }
        assert!(!unmatched.learn(&process, made_of), "it has ended");
        assert!(!unmatched.knows(made_of));
        let other = Waiting::start(Path::new("/bin/cat"));
        let process = Process::open(other.pid()).unwrap();
        assert!(unmatched.learn(&process, made_of) && unmatched.knows(made_of));
        assert!(!unmatched.knows(0), "nothing is known of it");
    }
}
