//! Names of the kernel's own code, for stacks of the kernel.

use std::fs;

use crate::Frame;

/// What frames call the kernel's code, also that of its modules.
pub const MODULE: &str = "[kernel]";
/// Names of all of the kernel's symbols; without privileges, their addresses are 0.
const SYMBOLS: &str = "/proc/kallsyms";
/// The first address of the kernel's half.
const FIRST: u64 = 1 << 63;

/// Whether an address is one of the kernel's code.
#[must_use]
pub const fn is_address(address: u64) -> bool {
    address >= FIRST
}

/// What the places are called that the kernel returns to, with each. Without a name where the kernel does not say.
#[must_use]
pub fn frames(places: &[u64]) -> Vec<(u64, Frame)> {
    if places.is_empty() {
        return Vec::new();
    }
    let text = fs::read_to_string(SYMBOLS).unwrap_or_default();
    let symbols = functions(&text);
    places.iter().map(|place| (*place, frame(&symbols, *place))).collect()
}

/// Functions by their addresses: lines of an address, a kind and a name, and a module.
fn functions(text: &str) -> Vec<(u64, &str)> {
    let mut found: Vec<(u64, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
            (is_code && is_address(address)).then_some((address, words.next()?))
        })
        .collect();
    // Several names may have one address: the first that the kernel lists counts.
    found.sort_by_key(|(address, _)| *address);
    found.dedup_by_key(|(address, _)| *address);
    found
}

fn frame(functions: &[(u64, &str)], place: u64) -> Frame {
    // The call lies before the place that it returns to.
    let next = functions.partition_point(|(start, _)| *start < place);
    let mut frame = Frame::nameless(MODULE.to_owned(), None);
    if let Some((start, name)) = next.checked_sub(1).and_then(|last| functions.get(last)) {
        frame.function = Some((*name).to_owned());
        frame.offset = Some(place - start);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place is in the function before it; data, user addresses and hidden ones are none.
    #[test]
    fn named() {
        let text = "ffffffff81000100 T second\nffffffff81000000 t first [module]\nffffffff81000000 t alias\n\
                    ffffffff81000180 d data\n0000000000000000 T hidden\nnonsense\n";
        let functions = functions(text);
        assert_eq!(
            functions,
            [(0xffff_ffff_8100_0000, "first"), (0xffff_ffff_8100_0100, "second")]
        );
        let named = |place| {
            let frame = frame(&functions, place);
            assert_eq!(frame.module.as_deref(), Some(MODULE));
            frame.function.zip(frame.offset)
        };
        assert_eq!(named(0xffff_ffff_8100_0100), Some(("first".to_owned(), 0x100)));
        assert_eq!(named(0xffff_ffff_8100_0101), Some(("second".to_owned(), 1)));
        assert_eq!(named(0xffff_ffff_8100_0000), None);
    }

    /// This kernel names its own code to root alone.
    #[test]
    fn of_this_machine() {
        let places = [u64::MAX / 4 * 3];
        let found = frames(&places);
        assert_eq!(found.len(), 1);
        assert!(frames(&[]).is_empty());
    }
}
