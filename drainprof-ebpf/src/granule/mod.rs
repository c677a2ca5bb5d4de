//! Granules: their life from open to close and late drain, as the programs call it.
//!
//! A slot is found through the index (series, id) while it is that id's current generation, and through
//! the references that objects hold. It is used again only when neither is left: no live object, and
//! another generation (or user space's sweep) has taken its place in the index. So a free, which holds a
//! reference, never meets another granule's slot; an alloc, which does not, counts itself by a swap of the whole
//! state, generation included.
//!
//! The program that swaps the closed generation's state word (or, without a slot, its index word) begins the next
//! one; all others try again.
//!
//! What takes long to verify is in global functions (`extern "C"`), which the verifier follows once per
//! program instead of once per path of each caller. They take numbers and return an index word.

mod close;
mod describe;
mod events;
mod hold;
mod implicit;
mod moves;
mod nest;
mod open;
mod quick;
mod slot;
pub(crate) mod slots;
mod step;

pub(crate) use self::{
    describe::{label, reparent},
    events::{close, hold, migrate, open, reset, take_off_id},
    hold::{release, take_off},
    implicit::{granule_leave, is_apart, misses},
    moves::granule_moves,
    nest::is_over,
    slot::SlotRef,
};
