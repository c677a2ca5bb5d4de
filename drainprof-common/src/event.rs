//! What travels through the ring buffer: only what user space must act on, or was asked for.

use bytemuck::{Pod, Zeroable};

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// A granule was closed; sent for every close when events were asked for.
    Close = 1,
    /// The last pin of a pinned granule was freed; sent when events were asked for.
    LateDrain = 2,
    /// A traced process made a child process that is followed.
    Fork = 3,
    /// A traced process called exec: the old image is gone, `target_b` is the new one. With target 0: a process that was
    /// not traced has executed a program that is watched; `granule` and `live` hold its name.
    Exec = 4,
    /// A thread group's last thread (or, before Linux 6.16, its leader) ended. With target 0: it was not traced, and its
    /// name is that of a program that is watched.
    Exit = 5,
    /// An object was freed after the pinned close of its granule; sent when events were asked for, at level `stacks`.
    PinFreed = 6,
}

impl EventKind {
    /// The kind with discriminant `raw`; `None` for bytes that are no kind.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Close,
            2 => Self::LateDrain,
            3 => Self::Fork,
            4 => Self::Exec,
            5 => Self::Exit,
            6 => Self::PinFreed,
            _ => return None,
        })
    }
}

/// One record. All kinds share one shape, so that its size alone distinguishes a good record from garbage.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Event {
    /// An [`EventKind`].
    pub kind: u32,
    /// The target (index) it is about.
    pub target: u32,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub ns: u64,
    /// Thread group (process) id in the initial namespace; for a fork the child's.
    pub tgid: u32,
    /// Thread id in the initial namespace; for an exec the one that the calling thread had before; for a
    /// fork 0 where the child has executed an image of its own already (vfork).
    pub tid: u32,
    /// Fork and exec: the new target's index.
    pub target_b: u32,
    /// Close: a [`crate::state::Verdict`].
    pub verdict: u32,
    /// Close, late drain, freed pin: the series.
    pub series: u32,
    /// Close, late drain, freed pin: the granule's generation.
    pub generation: u32,
    /// Close, late drain: the granule's id. Freed pin: the same, if `live` is not 0.
    pub granule: u64,
    /// Close: objects live at the close. Freed pin: 0 where the granule was gone already, so that its id is not known.
    pub live: u64,
    /// Close: bytes of these objects, where sizes are known.
    pub live_bytes: u64,
    /// Close: bytes that the granule retains, where known. Freed pin: the object's size, where known.
    pub bytes: u64,
    /// Close: when the granule was opened (0: before the attach).
    pub opened_ns: u64,
    /// Late drain, freed pin: when the granule was closed (0: not known).
    pub closed_ns: u64,
    /// Close: return address of the call that opened the granule (0: unknown).
    pub place: u64,
    /// Close, freed pin: the granule's slot, which with its generation identifies it; or
    /// [`SlotNumber::NONE`](crate::granule::SlotNumber::NONE).
    pub slot: u32,
    /// Freed pin: the number of the object's site.
    pub site: u32,
}

/// Size of a record in bytes.
pub const EVENT_BYTES: usize = size_of::<Event>();

impl Event {
    /// Decodes a record; `None` where its size or kind is none of ours.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(EventKind, Self)> {
        let event: Self = bytemuck::try_pod_read_unaligned(bytes).ok()?;
        Some((EventKind::from_raw(event.kind)?, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record survives the way through bytes; wrong sizes and kinds are refused.
    #[test]
    fn decode_checks() {
        let event = Event { kind: EventKind::Close as u32, granule: 42, ..Event::default() };
        let bytes = bytemuck::bytes_of(&event);
        assert_eq!(Event::decode(bytes).unwrap().1.granule, 42);
        assert!(Event::decode(&bytes[1..]).is_none());
        assert!(Event::decode(&[]).is_none());
        let bad = Event { kind: 77, ..event };
        assert!(Event::decode(bytemuck::bytes_of(&bad)).is_none());
    }
}
