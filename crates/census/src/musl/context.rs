//! `struct malloc_context`: found in writable data by the areas that it leads to, which begin with its secret.

use std::collections::HashSet;

use crate::{
    found::data_pieces,
    space::{PAGE, Space, word_of},
};

/// Bytes of an area, of its header, and of a description; descriptions in an area.
pub(super) const AREA: u64 = 4096;
pub(super) const AREA_HEADER: u64 = 24;
pub(super) const META: u64 = 40;
pub(super) const SLOTS: u64 = (AREA - AREA_HEADER) / META;
/// Areas that are followed.
const MAX_AREAS: usize = 1 << 20;
/// Most bytes of one mapping that are searched, and of all.
const MAX_DATA: u64 = 64 << 20;
const MAX_ALL_DATA: u64 = 4 << 30;

/// Where the context has what; all behind the secret is later by 8 where the size of pages is no constant.
const SHIFTS: [u64; 2] = [0, 8];
const PAGE_SIZE: u64 = 8;
const INIT_DONE: u64 = 8;
const AVAIL_META: u64 = 24;
const AVAIL_META_COUNT: u64 = 32;
const META_ALLOC_SHIFT: u64 = 48;
const AREA_HEAD: u64 = 56;
const AREA_TAIL: u64 = 64;
const ACTIVE: u64 = 80;
const USAGE: u64 = 464;
const BRK: u64 = 920;
const BYTES: u64 = 928;
const CLASSES: u64 = 48;

/// The context, and its areas in their order.
#[derive(Clone)]
pub(super) struct Context {
    at: u64,
    shift: u64,
    bytes: Vec<u8>,
    pub(super) areas: Vec<u64>,
    /// Descriptions in the last area that were never used.
    pub(super) unused: u64,
}

impl Context {
    /// Slots of all groups of a class.
    pub(super) fn usage(&self, class: usize) -> u64 {
        self.word(USAGE + class as u64 * 8)
    }

    /// As it is now.
    pub(super) fn again(&self, space: &Space<'_>) -> Option<Self> {
        Self::read(space, self.at, self.shift)
    }

    fn word(&self, offset: u64) -> u64 {
        let at = if offset == 0 { 0 } else { offset + self.shift };
        word_of(&self.bytes, at as usize).unwrap_or_default()
    }

    fn read(space: &Space<'_>, at: u64, shift: u64) -> Option<Self> {
        let mut bytes = vec![0; (BYTES + shift) as usize];
        if !space.read(at, &mut bytes) {
            return None;
        }
        let mut context = Self { at, shift, bytes, areas: Vec::new(), unused: 0 };
        context.areas = context.areas(space)?;
        context.unused = context.word(AVAIL_META_COUNT);
        context.is_sane().then_some(context)
    }

    /// The areas from the first to the last; each begins with the secret.
    fn areas(&self, space: &Space<'_>) -> Option<Vec<u64>> {
        let (secret, last) = (self.word(0), self.word(AREA_TAIL));
        let (mut areas, mut met, mut area) = (Vec::new(), HashSet::new(), self.word(AREA_HEAD));
        loop {
            let is_new = area != 0 && area.is_multiple_of(AREA) && met.insert(area);
            let is_room = areas.len() < MAX_AREAS && space.budget.keeps::<[u64; 4]>(1);
            if !is_new || !is_room {
                return None;
            }
            let [check, next, slots] = space.words(area)?;
            if check != secret || slots & 0xffff_ffff != SLOTS {
                return None;
            }
            areas.push(area);
            if area == last {
                return (next == 0).then_some(areas);
            }
            area = next;
        }
    }

    fn is_sane(&self) -> bool {
        let page = if self.shift == 0 { PAGE } else { self.bytes_at(PAGE_SIZE) };
        let (unused, last) = (self.word(AVAIL_META_COUNT), self.word(AREA_TAIL));
        let next = last.saturating_add(AREA_HEADER + SLOTS.saturating_sub(unused) * META);
        let brk = self.word(BRK);
        let mut active = (0..CLASSES).map(|class| self.word(ACTIVE + class * 8));
        page.is_power_of_two()
            && (PAGE..=64 << 10).contains(&page)
            && unused <= SLOTS
            && self.word(AVAIL_META) == next
            && self.word(META_ALLOC_SHIFT) < 64
            && (brk == u64::MAX || brk.is_multiple_of(PAGE))
            && active.all(|meta| meta == 0 || is_meta(meta))
    }

    fn bytes_at(&self, offset: u64) -> u64 {
        word_of(&self.bytes, offset as usize).unwrap_or_default()
    }
}

/// Whether a description can be at an address.
fn is_meta(address: u64) -> bool {
    let offset = address % AREA;
    offset >= AREA_HEADER && (offset - AREA_HEADER).is_multiple_of(META)
}

/// The context: exactly one place and one layout validate.
pub(super) fn find(space: &Space<'_>) -> Option<Context> {
    let (mut found, mut left): (Vec<Context>, _) = (Vec::new(), MAX_ALL_DATA);
    for (start, end) in space.data() {
        let most = MAX_DATA.min(left);
        left -= data_pieces(space, (start, end), most, |at, piece| {
            for done in (0..piece.len()).step_by(8) {
                let word = |offset: u64| word_of(piece, done + (offset - INIT_DONE) as usize);
                let may_be = word(INIT_DONE).is_some_and(|done| done & 0xffff_ffff == 1)
                    && word(AREA_HEAD).is_some_and(|area| area != 0 && area.is_multiple_of(AREA));
                if !may_be {
                    continue;
                }
                for shift in SHIFTS {
                    let place = (done as u64).checked_sub(INIT_DONE + shift);
                    let Some(at) = place.map(|place| at + place) else { continue };
                    // Pieces overlap.
                    let is_known = |one: &Context| one.at == at && one.shift == shift;
                    if found.len() < 2 && !found.iter().any(is_known) {
                        found.extend(Context::read(space, at, shift));
                    }
                }
            }
        });
    }
    found.pop().filter(|_| found.is_empty())
}
