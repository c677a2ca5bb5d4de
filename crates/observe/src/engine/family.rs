//! All processes of a prefork server, now and later.
//!
//! The kernel side follows a child whose parent is counted already. A child that was born before has to be added. So the
//! family is listed again and again until all its members are counted.

use std::{io, thread, time::Duration};

use drainprof_process::family;

use super::{
    Engine,
    terms::{Excluded, Sink, Step},
};
use crate::ObserveError;

/// How often the family is listed; each time, those have come that were born since.
const ROUNDS: usize = 50;
/// A child can be seen in `/proc` an instant before the kernel side enters it.
const BIRTH: Duration = Duration::from_millis(2);

impl Engine {
    /// Adds the family of `pid`: its topmost ancestor that runs the same executable, and all that descend from that one.
    /// Returns the members that cannot be observed.
    pub fn add_family(&mut self, pid: u32) -> Result<Vec<Excluded>, ObserveError> {
        if !self.families.contains(&pid) {
            self.families.push(pid);
        }
        let (mut excluded, mut skipped) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let missing = |this: &Self, skipped: &[u32], mut members: Vec<u32>| {
                members.retain(|member| !this.counts(*member) && !skipped.contains(member));
                members
            };
            let mut newcomers = missing(self, &skipped, family(pid)?);
            if round > 0 && !newcomers.is_empty() {
                thread::sleep(BIRTH);
                newcomers = missing(self, &skipped, newcomers);
            }
            if newcomers.is_empty() {
                return Ok(excluded);
            }
            for member in newcomers {
                if self.counts(member) {
                    continue;
                }
                match self.add(member, false) {
                    Ok(()) => continue,
                    Err(ObserveError::NoMatch { pid: other, comm, .. }) if member != pid => {
                        excluded.push(Excluded { pid: other, comm });
                    }
                    Err(ObserveError::Target(error)) if member != pid && error.is_gone() => {}
                    Err(error) => return Err(error),
                }
                skipped.push(member);
            }
        }
        tracing::warn!(
            pid,
            "the family grows faster than it can be listed; members may be missing"
        );
        Ok(excluded)
    }

    /// All began again: children that were born meanwhile are not followed, and are added.
    pub(super) fn add_families(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        for pid in self.families.clone() {
            match self.add_family(pid) {
                Ok(excluded) => {
                    excluded.into_iter().try_for_each(|one| sink.step(&Step::Excluded(one)))?;
                }
                // The others are still there.
                Err(error) => tracing::warn!(pid, %error, "its family is not observed"),
            }
        }
        Ok(())
    }
}
