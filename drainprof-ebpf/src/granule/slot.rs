//! A handle for a slot: safe methods over map memory that other programs change at the same time.

use core::{mem::offset_of, ptr::NonNull};

use drainprof_common::{
    granule::{Generation, ParentWord, PinnedWord, SlotNumber},
    maps::Slot,
    spec::LABEL_BYTES,
    state::{CLOSED, Flags, State},
};

use crate::{
    atomic,
    global::{Scalar, global},
    maps,
};

/// A slot of `GRANULES`. It is always there, whichever granule it serves by now; every method reads or changes one word
/// at once.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct SlotRef(NonNull<Slot>);

// `None` is the null pointer.
impl Scalar for Option<SlotRef> {
    type Raw = *mut Slot;

    #[inline(always)]
    fn into_raw(self) -> *mut Slot {
        self.map_or(core::ptr::null_mut(), |slot| slot.0.as_ptr())
    }

    #[inline(always)]
    fn from_raw(raw: *mut Slot) -> Self {
        NonNull::new(raw).map(SlotRef)
    }
}

/// Words that are only read and written, each with its offset in the slot.
macro_rules! words {
    ($($field:ident, $set:ident: $type:ty;)*) => {$(
        #[inline(always)]
        pub(crate) fn $field(self) -> $type {
            // SAFETY: map memory, one aligned field.
            unsafe { (&raw const (*self.0.as_ptr()).$field).read_volatile() }
        }

        #[inline(always)]
        pub(crate) fn $set(self, value: $type) {
            // SAFETY: as above.
            unsafe { (&raw mut (*self.0.as_ptr()).$field).write_volatile(value) }
        }
    )*};
}

global! {
    /// [`SlotRef::mark`] against other CPUs' counts: the state before, of whichever generation.
    fn slot_mark(slot: Option<SlotRef>, generation: Generation, flags: u64) -> State = mark_far;
}

/// How often a swap is tried against other CPUs' counts.
const TRIES: usize = 16;

#[inline(always)]
fn mark_far(slot: Option<SlotRef>, generation: Generation, flags: u64) -> State {
    let Some(slot) = slot else { return State::fresh(generation.next(), CLOSED) };
    for _ in 0..TRIES {
        let seen = slot.state();
        let next = State::from_raw(seen.raw() | flags);
        if seen.generation() != generation || slot.swap_state(seen, next) {
            return seen;
        }
    }
    // Others count in it so often that only an operation that cannot fail gets through. The flags stand on another
    // generation, until they are taken back, only if all went and it began in this very instant.
    // SAFETY: map memory.
    unsafe {
        let before = State::from_raw(atomic::or(slot.word(), flags));
        if before.generation() != generation {
            atomic::and(slot.word(), !(flags & !before.raw()));
        }
        before
    }
}

impl SlotRef {
    /// The slot with this number; `None` for [`SlotNumber::NONE`].
    #[inline(always)]
    pub(crate) fn get(number: SlotNumber) -> Option<Self> {
        NonNull::new(maps::GRANULES.get_ptr_mut(number.number())?).map(Self)
    }

    words! {
        series, set_series: u32;
        id, set_id: u64;
        opened_ns, set_opened_ns: u64;
        closed_ns, set_closed_ns: u64;
        place, set_place: u64;
        bytes, set_bytes: u64;
        parent, set_parent: u64;
        parent_at, set_parent_at: ParentWord;
        label_at, set_label_at: u64;
        pinned_objects, set_pinned_objects: PinnedWord;
    }

    /// Replaces the number of pinned objects if it is still the one that was `seen`: never that of a
    /// later generation.
    #[inline(always)]
    pub(crate) fn swap_pinned_objects(self, seen: PinnedWord, next: PinnedWord) {
        // SAFETY: map memory; the number is one word.
        unsafe {
            let word = (&raw mut (*self.0.as_ptr()).pinned_objects).cast();
            atomic::compare_swap(word, seen.raw(), next.raw());
        }
    }

    /// Whether the slot serves, or has last served, this id.
    #[inline(always)]
    pub(crate) fn is_of(self, series: u32, id: u64) -> bool {
        self.id() == id && self.series() == series
    }

    #[inline(always)]
    fn word(self) -> *mut u64 {
        // SAFETY: map memory; the state is one word.
        unsafe { (&raw mut (*self.0.as_ptr()).state).cast() }
    }

    /// The state.
    #[inline(always)]
    pub(crate) fn state(self) -> State {
        // SAFETY: map memory.
        State::from_raw(unsafe { atomic::load(self.word()) })
    }

    /// Replaces the state if it is still the one that was `seen`.
    #[inline(always)]
    pub(crate) fn swap_state(self, seen: State, next: State) -> bool {
        // SAFETY: map memory.
        unsafe { atomic::compare_swap(self.word(), seen.raw(), next.raw()) == seen.raw() }
    }

    /// Counts an object in; the state before.
    #[inline(always)]
    pub(crate) fn add_object(self) -> State {
        // SAFETY: map memory.
        State::from_raw(unsafe { atomic::add(self.word(), 1) })
    }

    /// Counts an object out; the state before.
    #[inline(always)]
    pub(crate) fn remove_object(self) -> State {
        // SAFETY: map memory.
        State::from_raw(unsafe { atomic::sub(self.word(), 1) })
    }

    /// Steps to the next generation; the state before.
    #[inline(always)]
    pub(crate) fn step(self) -> State {
        // SAFETY: map memory.
        State::from_raw(unsafe { atomic::add(self.word(), State::GENERATION_STEP) })
    }

    /// Sets flags; the state before.
    #[inline(always)]
    pub(crate) fn set(self, flags: Flags) -> State {
        // SAFETY: map memory.
        State::from_raw(unsafe { atomic::or(self.word(), flags.raw()) })
    }

    /// Clears flags; the state before.
    #[inline(always)]
    pub(crate) fn clear(self, flags: Flags) -> State {
        // SAFETY: map memory.
        State::from_raw(unsafe { atomic::and(self.word(), !flags.raw()) })
    }

    /// Sets flags of this generation's state; the state before. `None`: the slot serves another generation by now,
    /// which keeps the flags that it had.
    #[inline(always)]
    pub(crate) fn mark(self, generation: Generation, flags: Flags) -> Option<State> {
        let mut seen = self.state();
        if seen.generation() == generation && !self.swap_state(seen, seen.with(flags)) {
            seen = slot_mark(Some(self), generation, flags.raw());
        }
        if seen.generation() == generation { Some(seen) } else { None }
    }

    #[inline(always)]
    fn byte_word(self) -> *mut u64 {
        // SAFETY: map memory.
        unsafe { &raw mut (*self.0.as_ptr()).live_bytes }
    }

    /// Bytes of the granule's live objects.
    #[inline(always)]
    pub(crate) fn live_bytes(self) -> u64 {
        // SAFETY: map memory.
        unsafe { atomic::load(self.byte_word()) }
    }

    /// Adds to them (wrapping).
    #[inline(always)]
    pub(crate) fn add_live_bytes(self, bytes: u64) {
        // SAFETY: map memory.
        unsafe { atomic::add(self.byte_word(), bytes) };
    }

    /// Subtracts from them.
    #[inline(always)]
    pub(crate) fn sub_live_bytes(self, bytes: u64) {
        // SAFETY: map memory.
        unsafe { atomic::sub(self.byte_word(), bytes) };
    }

    /// Sets them to 0; what they were.
    #[inline(always)]
    pub(crate) fn take_live_bytes(self) -> u64 {
        // SAFETY: map memory.
        unsafe { atomic::swap(self.byte_word(), 0) }
    }

    /// One more earlier generation has its objects counted with this one's, and its late drain deferred.
    #[inline(always)]
    pub(crate) fn add_deferred(self) {
        // SAFETY: map memory.
        unsafe { atomic::add_32(&raw mut (*self.0.as_ptr()).deferred, 1) };
    }

    /// Takes all of them; how many they were.
    #[inline(always)]
    pub(crate) fn take_deferred(self) -> u32 {
        // SAFETY: map memory.
        unsafe {
            if (*self.0.as_ptr()).deferred == 0 {
                0
            } else {
                atomic::swap_32(&raw mut (*self.0.as_ptr()).deferred, 0)
            }
        }
    }

    /// Forgets what a slot that is used for another id had counted. Only for a slot that nothing refers to.
    #[inline(always)]
    pub(crate) fn clear_counts(self) {
        // SAFETY: map memory.
        unsafe {
            (*self.0.as_ptr()).deferred = 0;
            atomic::store(self.byte_word(), 0);
        }
    }

    /// The label's words. The text's end stands first in an empty one.
    #[inline(always)]
    fn label_word(self, number: usize) -> *mut u64 {
        // SAFETY: map memory; the callers' numbers are within the label.
        unsafe { self.0.as_ptr().cast::<u64>().add(offset_of!(Slot, label) / 8 + number) }
    }

    /// The label's bytes, for a helper to write.
    #[inline(always)]
    pub(crate) fn label(self) -> *mut [u8; LABEL_BYTES] {
        // SAFETY: map memory.
        unsafe { &raw mut (*self.0.as_ptr()).label }
    }

    /// Makes the label empty by its first word.
    #[inline(always)]
    pub(crate) fn cut_label(self) {
        // SAFETY: map memory.
        unsafe { self.label_word(0).write(0) };
    }

    /// Sets all of the label to 0.
    #[inline(always)]
    pub(crate) fn clear_label(self) {
        for number in 0..LABEL_BYTES / 8 {
            // SAFETY: map memory. Volatile: else it becomes a call of a byte-wise `memset`.
            unsafe { atomic::store(self.label_word(number), 0) };
        }
    }

    /// Copies the label of another slot.
    #[inline(always)]
    pub(crate) fn copy_label(self, from: Self) {
        for number in 0..LABEL_BYTES / 8 {
            // SAFETY: map memory.
            unsafe {
                let word = atomic::load(from.label_word(number));
                atomic::store(self.label_word(number), word);
            }
        }
    }
}
