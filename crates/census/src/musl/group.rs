//! Groups of slots, and the descriptions that lead to them.

use super::context::{AREA, AREA_HEADER, Context, META, SLOTS};
use crate::space::{PAGE, RangeKind, Space, word_of};

/// Bytes of the slots of each class, in units of 16.
pub(super) const CLASSES: [u16; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
    3276, 4095, 4680, 5460, 6552, 8191,
];
const UNIT: u64 = 16;
/// The class of a group that is one object.
const ALONE: usize = 63;
/// Reads of a description that makes no sense.
const ATTEMPTS: u32 = 16;

/// A group of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) address: u64,
    pub(super) class: usize,
    /// Bytes of a slot.
    pub(super) stride: u64,
    /// Whether the allocator made it, and can give it back.
    pub(super) is_freeable: bool,
    last: u32,
    free: u32,
    pages: u64,
}

impl Group {
    pub(super) fn slots(&self) -> u64 {
        u64::from(self.last) + 1
    }

    /// Whether it has a mapping of its own.
    pub(super) fn has_pages(&self) -> bool {
        self.pages > 0
    }

    /// Whether it is one object that is too large for any class.
    pub(super) fn is_alone(&self) -> bool {
        self.class == ALONE
    }

    /// Slots that are free, as bits.
    pub(super) fn free_mask(&self) -> u32 {
        self.free
    }

    /// Its bytes, with all that is mapped for it.
    pub(super) fn bytes(&self) -> u64 {
        match self.pages {
            0 => UNIT + self.slots().saturating_mul(self.stride),
            pages => pages * PAGE,
        }
    }

    /// Where its slots that are in use begin.
    pub(super) fn live_slots(&self) -> impl Iterator<Item = u64> {
        let (first, stride, free) = (self.address + UNIT, self.stride, self.free);
        let live = (0..=self.last).filter(move |slot| free >> slot & 1 == 0);
        live.map(move |slot| first + u64::from(slot) * stride)
    }
}

/// All groups in the order of their addresses.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) all: Vec<Group>,
    /// Where groups begin that lie in slots of others.
    inner: Vec<u64>,
    /// Descriptions that make no sense, and the bytes that they speak of.
    pub(super) refused: u64,
    pub(super) refused_bytes: u64,
}

impl Groups {
    /// Whether a slot holds a group.
    pub(super) fn holds_group(&self, slot: u64, stride: u64) -> bool {
        let next = self.inner.partition_point(|group| *group < slot);
        self.inner.get(next).is_some_and(|group| *group < slot.saturating_add(stride))
    }

    fn refuse(&mut self, bytes: u64) {
        self.refused += 1;
        self.refused_bytes = self.refused_bytes.saturating_add(bytes);
    }
}

/// What a description says, and what it would stand for if it made no sense.
enum Meta {
    Unused,
    Group(Group),
    Refused(u64),
}

/// Reads all descriptions of all areas.
pub(super) fn read(space: &Space<'_>, context: &Context) -> Groups {
    let mut found = Groups::default();
    let last = context.areas.len().saturating_sub(1);
    for (number, area) in context.areas.iter().enumerate() {
        let used = if number == last { SLOTS.saturating_sub(context.unused) } else { SLOTS };
        let mut bytes = vec![0; AREA as usize];
        let is_read = space.read(*area, &mut bytes);
        for slot in 0..used {
            let offset = AREA_HEADER + slot * META;
            let at = area + offset;
            let bytes = bytes.get(offset as usize..(offset + META) as usize);
            let first =
                bytes.filter(|_| is_read).map_or(Meta::Refused(0), |one| meta(space, at, one));
            let again = |said: Meta| match said {
                Meta::Refused(_) => {
                    let mut bytes = [0; META as usize];
                    if space.read(at, &mut bytes) { meta(space, at, &bytes) } else { said }
                }
                said => said,
            };
            match (1..ATTEMPTS).fold(first, |said, _| again(said)) {
                Meta::Unused => {}
                Meta::Group(group) if space.budget.keeps::<Group>(1) => {
                    found.all.push(group);
                }
                Meta::Group(group) => found.refuse(group.bytes()),
                Meta::Refused(bytes) => found.refuse(bytes),
            }
        }
    }
    found.all.sort_unstable_by_key(|group| group.address);
    without_strays(without_overlaps(found))
}

/// Without groups whose pages another one has.
fn without_overlaps(mut found: Groups) -> Groups {
    let (mut free_from, mut gone) = (0, Vec::new());
    found.all.retain(|group| {
        let is_one = !group.has_pages() || group.address >= free_from;
        if !is_one {
            gone.push(group.bytes());
        } else if group.has_pages() {
            free_from = group.address + group.bytes();
        }
        is_one
    });
    for bytes in gone {
        found.refuse(bytes);
    }
    found
}

/// What a description says; it is validated by the group that it leads to.
fn meta(space: &Space<'_>, at: u64, bytes: &[u8]) -> Meta {
    let word = |offset| word_of(bytes, offset).unwrap_or_default();
    let (address, masks, bits) = (word(16), word(24), word(32));
    let pages = bits >> 12;
    if address == 0 {
        return if bits == 0 && masks == 0 { Meta::Unused } else { Meta::Refused(0) };
    }
    let (last, class) = ((bits & 31) as u32, (bits >> 6 & 63) as usize);
    let (avail, freed) = (masks as u32, (masks >> 32) as u32);
    // Neighbours in a list of groups with free slots lead back.
    let leads_back = |neighbour: u64, offset| {
        neighbour == 0 || space.field(neighbour, offset).is_some_and(|back| back == at)
    };
    let group = group(space, address, (class, last, pages)).filter(|group| {
        avail & freed == 0
            && u64::from(avail | freed) >> group.slots() == 0
            && (word(0) == 0) == (word(8) == 0)
            && leads_back(word(0), 8)
            && leads_back(word(8), 0)
            && space
                .words(address)
                .is_some_and(|[back, active]| back == at && (active & 31) as u32 <= last)
    });
    match group {
        Some(group) => {
            Meta::Group(Group { free: avail | freed, is_freeable: bits >> 5 & 1 != 0, ..group })
        }
        None => Meta::Refused(refused_bytes(space, address, pages)),
    }
}

/// The bytes of what a description that makes no sense speaks of: no more than are mapped there.
fn refused_bytes(space: &Space<'_>, address: u64, pages: u64) -> u64 {
    let range = space.range_at(address).filter(|range| range.writable);
    range.map_or(0, |range| pages.saturating_mul(PAGE).min(range.end - address))
}

fn group(
    space: &Space<'_>,
    address: u64,
    (class, last, pages): (usize, u32, u64),
) -> Option<Group> {
    let bytes = pages.checked_mul(PAGE)?;
    let stride = match CLASSES.get(class) {
        // One slot takes all that is mapped.
        _ if pages > 0 && last == 0 => bytes - UNIT,
        Some(units) => u64::from(*units) * UNIT,
        None => return None,
    };
    let group = Group { address, class, stride, is_freeable: false, last, free: 0, pages };
    let range = space.range_at(address)?;
    let end = address.checked_add(group.bytes())?;
    let is_sane = (class < CLASSES.len() || class == ALONE)
        && range.writable
        && end <= range.end
        && address.is_multiple_of(UNIT)
        && (pages == 0
            || address.is_multiple_of(PAGE)
                && matches!(range.kind, RangeKind::Anonymous | RangeKind::Stack)
                && UNIT + group.slots().checked_mul(stride)? <= bytes);
    is_sane.then_some(group)
}

/// Without groups that have no pages of their own, and lie in no slot that is in use. Those that the loader has given,
/// cannot be given back.
fn without_strays(mut found: Groups) -> Groups {
    let inner = |group: &&Group| !group.has_pages() && group.is_freeable;
    found.inner = found.all.iter().filter(inner).map(|group| group.address).collect();
    let mut held = vec![false; found.inner.len()];
    for group in &found.all {
        for slot in group.live_slots() {
            let first = found.inner.partition_point(|one| *one < slot);
            let next = found.inner.partition_point(|one| *one < slot.saturating_add(group.stride));
            held[first..next.max(first)].fill(true);
        }
    }
    let strays: Vec<u64> =
        found.inner.iter().zip(&held).filter(|(_, held)| !**held).map(|(at, _)| *at).collect();
    let is_stray =
        |group: &Group| !group.has_pages() && strays.binary_search(&group.address).is_ok();
    let gone: Vec<u64> =
        found.all.iter().filter(|group| is_stray(group)).map(Group::bytes).collect();
    found.all.retain(|group| !is_stray(group));
    for bytes in gone {
        found.refuse(bytes);
    }
    found.inner.retain(|at| strays.binary_search(at).is_err());
    found
}
