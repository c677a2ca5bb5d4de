//! What a rule remembers of each profile.

use super::signals::{MAX_PROFILES, ProfileSignals};

/// What a rule remembers of each profile; those that are gone are forgotten.
#[derive(Debug)]
pub(super) struct PerProfile<T> {
    known: Vec<(String, T)>,
}

impl<T> Default for PerProfile<T> {
    fn default() -> Self {
        Self { known: Vec::new() }
    }
}

impl<T: Default> PerProfile<T> {
    /// Calls `each` for every profile with what is remembered of it.
    pub(super) fn each<R>(
        &mut self,
        profiles: &[ProfileSignals],
        mut each: impl FnMut(&mut T, &ProfileSignals) -> R,
    ) -> Vec<R> {
        let profiles = &profiles[..profiles.len().min(MAX_PROFILES)];
        self.known.retain(|(name, _)| profiles.iter().any(|seen| seen.profile == *name));
        let mut results = Vec::with_capacity(profiles.len());
        for profile in profiles {
            let at = self.known.iter().position(|(name, _)| *name == profile.profile);
            let at = at.unwrap_or_else(|| {
                self.known.push((profile.profile.clone(), T::default()));
                self.known.len() - 1
            });
            results.push(each(&mut self.known[at].1, profile));
        }
        results
    }
}
