//! The sizes of objects by class.

use crate::{
    found::data_pieces,
    space::{Space, half_of},
};

/// Most classes.
pub(super) const MAX_CLASSES: usize = 128;
/// Bytes of an object of the last class, and fewest that make a table.
pub(super) const LARGEST: u64 = 256 << 10;
const FEWEST_CLASSES: usize = 40;
/// Most data that is searched for the table.
const MAX_DATA: u64 = 64 << 20;

/// The table of sizes by class.
pub(super) fn sizes(space: &Space<'_>) -> Option<Vec<u64>> {
    let (mut table, mut left) = (None, MAX_DATA);
    for bounds in space.data() {
        left -= data_pieces(space, bounds, left, |_, piece| {
            let mut found = (0..piece.len()).step_by(4).filter_map(|at| sizes_at(&piece[at..]));
            table = table.take().or_else(|| found.next());
        });
        if table.is_some() {
            break;
        }
    }
    table
}

/// The table that begins here: 0, 8, 16, and then each one larger, in words of four or eight bytes.
fn sizes_at(bytes: &[u8]) -> Option<Vec<u64>> {
    let half = |index| half_of(bytes, index * 4);
    // Of words of eight bytes, the upper halves are 0.
    let width = match (half(0)?, half(1)?, half(2)?, half(4)?) {
        (0, 8, 16, _) => 1,
        (0, 0, 8, 16) => 2,
        _ => return None,
    };
    let mut sizes = vec![0];
    while sizes.len() < MAX_CLASSES
        && let Some(size) = half(sizes.len() * width)
        && size.is_multiple_of(8)
        && (sizes[sizes.len() - 1] + 1..=LARGEST).contains(&size)
    {
        sizes.push(size);
    }
    (sizes.len() >= FEWEST_CLASSES && sizes.last() == Some(&LARGEST)).then_some(sizes)
}
