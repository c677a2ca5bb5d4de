//! What was allocated and freed up to now, without all else that a snapshot holds.

use drainprof_common::loss::Loss;
use drainprof_report::facts::Moment;

use super::Observer;

impl Observer {
    /// The flows of all allocators, windows of a duty cycle that have ended included.
    #[must_use]
    pub fn moment(&self) -> Moment {
        let mut flows = self.windows.flows();
        for record in self.session.read_series() {
            let key = record.state.key;
            if let Some(allocator) = self.allocators.get(key.allocator as usize) {
                flows.add(key.target, &allocator.profile.name, &record.totals);
            }
        }
        flows.unmatched += self.session.read_losses()[Loss::UnmatchedFree as usize];
        Moment { after: self.observed(), flows }
    }

    /// For how long was observed, in all windows.
    #[must_use]
    pub fn observed(&self) -> std::time::Duration {
        self.windows.observed() + self.window_length()
    }
}
