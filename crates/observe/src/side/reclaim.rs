//! Making room: what the kernel side no longer needs is taken out before its maps are full.

use super::{
    Side,
    allocators::Allocator,
    clock::{now_ns, own_cpu},
};

/// Ending nested granules before there is a need takes at most this part of one CPU.
const NESTED_SHARE: u32 = 1_000;

impl Side {
    /// Retires closed, drained granules and forgotten ids if the maps fill up.
    pub fn reclaim(&mut self) {
        self.end_nested_in_time();
        self.take_mappings();
        if let Err(error) = self.session.reclaim() {
            tracing::warn!(%error, "cannot make room in the maps");
        }
        let allocators = self.planner.allocators();
        self.session.reclaim_objects(|number| allocators.get(number).map(Allocator::kind));
    }

    /// Ends nested granules at once where room is needed, and else as often as it is cheap. Facts never wait for that:
    /// their reader ends those granules first.
    fn end_nested_in_time(&mut self) {
        if !self.planner.allocators().has_nested() {
            return;
        }
        let now = now_ns();
        if now < self.nested_due_ns && !self.session.is_filling_up() {
            return;
        }
        let began = own_cpu();
        self.end_nested();
        let pause = own_cpu().saturating_sub(began) * NESTED_SHARE;
        self.nested_due_ns = now.saturating_add(pause.as_nanos().try_into().unwrap_or(u64::MAX));
    }

    /// Ends the granules that have gone with the one that they were nested in, where a profile has such.
    pub(super) fn end_nested(&mut self) {
        if self.planner.allocators().has_nested() {
            self.session.end_nested();
        }
    }

    /// What is counted for targets that have ended, in one value that tells whether something is still moving: calls
    /// that were under way when a process was let go.
    #[must_use]
    pub fn ended_totals(&self) -> Vec<u64> {
        let ended = self.targets.ended();
        let mut all = Vec::new();
        for record in self.session.read_series() {
            if ended.contains(&record.state.key.target) {
                all.extend_from_slice(bytemuck::cast_slice(&[record.totals]));
            }
        }
        all
    }

    /// Everything that is counted, in one value that tells whether something is still moving.
    #[must_use]
    pub fn totals(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.session.read_losses().to_vec();
        for record in self.session.read_series() {
            all.extend_from_slice(bytemuck::cast_slice(&[record.totals]));
        }
        all.extend(self.probes.hits(&self.session));
        for (_, cell) in self.session.growth.cells() {
            all.push(cell.events);
        }
        all
    }
}
