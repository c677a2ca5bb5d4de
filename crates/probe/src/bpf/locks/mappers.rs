//! Which address spaces map a file: the kernel's own tree of its mappings, read word by word.
//!
//! The tree can change meanwhile, so it is walked twice; a walk has a limit, and never goes where it was.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    time::{Duration, Instant},
};

use memmap2::MmapOptions;

use super::{programs::Programs, types::Types};

/// Longest time for one walk. A step takes about a microsecond, and a process maps a library some five times.
const MAX_TIME: Duration = Duration::from_millis(400);

/// Where fields of the tree stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    /// The root, in the object.
    root: i16,
    /// The node, in a mapping.
    node: i16,
    /// The address space, in a mapping.
    space: i16,
    left: i16,
    right: i16,
}

impl Fields {
    pub(super) fn of(types: &Types) -> io::Result<Self> {
        let mapping = |fields| types.offset("vm_area_struct", fields);
        let tree = &["i_mmap", "rb_root", "rb_node"];
        Ok(Self {
            root: types.offset("address_space", tree)?,
            node: mapping(&["shared", "rb"])?,
            space: mapping(&["vm_mm"])?,
            left: types.offset("rb_node", &["rb_left"])?,
            right: types.offset("rb_node", &["rb_right"])?,
        })
    }
}

/// The address spaces that map a file.
pub(super) fn of(file: &File, programs: &Programs, fields: Fields) -> io::Result<BTreeSet<u64>> {
    let object = object_of(file, programs)?;
    let peek = |address| programs.peek(address);
    let mut found = walk(object, fields, peek)?;
    found.append(&mut walk(object, fields, peek)?);
    Ok(found)
}

/// The kernel's object for a file: what it shows of a mapping of it. Over an overlay, that is not the file's own.
fn object_of(file: &File, programs: &Programs) -> io::Result<u64> {
    let mapped = MmapOptions::new().len(1).map_raw_read_only(file)?;
    programs.object_at(mapped.as_ptr() as u64)
}

fn walk(
    object: u64,
    fields: Fields,
    peek: impl Fn(u64) -> io::Result<u64>,
) -> io::Result<BTreeSet<u64>> {
    let word = |from: u64, offset: i16| peek(from.wrapping_add_signed(offset.into()));
    let began = Instant::now();
    let (mut seen, mut spaces) = (BTreeSet::new(), BTreeSet::new());
    let mut next = vec![word(object, fields.root)?];
    while let Some(node) = next.pop() {
        if node == 0 || !seen.insert(node) {
            continue;
        }
        if began.elapsed() > MAX_TIME {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mapping = node.wrapping_sub(fields.node.cast_unsigned().into());
        spaces.insert(word(mapping, fields.space)?);
        next.extend([word(node, fields.left)?, word(node, fields.right)?]);
    }
    Ok(spaces)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeMap};

    use super::*;

    const FIELDS: Fields = Fields { root: 8, node: 32, space: 16, left: 16, right: 8 };

    /// Each mapping once, though the tree leads in circles; a word that cannot be read is an error.
    #[test]
    fn trees() {
        let memory = RefCell::new(BTreeMap::new());
        let put = |mapping: u64, space: u64, left: u64, right: u64| {
            let mut memory = memory.borrow_mut();
            memory.insert(mapping + 16, space);
            memory.insert(mapping + 48, left + if left == 0 { 0 } else { 32 });
            memory.insert(mapping + 40, right + if right == 0 { 0 } else { 32 });
        };
        memory.borrow_mut().insert(108, 1032);
        put(1000, 7, 2000, 3000);
        put(2000, 8, 0, 1000);
        put(3000, 7, 4000, 0);
        put(4000, 9, 0, 0);
        let peek =
            |at| memory.borrow().get(&at).copied().ok_or_else(|| io::ErrorKind::NotFound.into());
        assert_eq!(walk(100, FIELDS, peek).unwrap(), BTreeSet::from([7, 8, 9]));
        memory.borrow_mut().remove(&4016);
        assert!(walk(100, FIELDS, peek).is_err());
    }
}
