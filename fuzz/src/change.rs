//! Changes that formats allow: inputs that a parser goes far into.

use std::ops::Range;

use fastrand::Rng;

use crate::mutate::NUMBERS;

const PAGE: u64 = 4096;

/// Lines of words, of which most are hexadecimal numbers: sizes, addresses, and what stands there. See
/// `drainprof_census::testing`.
pub(crate) fn lines(random: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let numbers: Vec<u64> = text.split_ascii_whitespace().filter_map(hex).collect();
    let known = |random: &mut Rng| random.choice(&numbers).copied().unwrap_or(0);
    let at = random.usize(0..=lines.len());
    let line = lines.get(at).cloned().unwrap_or_default();
    match random.u32(0..24) {
        // A line is gone, or is there twice, also somewhere else.
        0 => drop(lines.drain(at..(at + 1).min(lines.len()))),
        1 | 2 => {
            let by = random.choice([0, 8, 16, PAGE, 1 << 21]).unwrap_or(0);
            lines.insert(at, moved(&line, |at| at.wrapping_add(by)));
        }
        3 | 4 => {
            let by = random.choice([8u64, 16, PAGE, 8u64.wrapping_neg(), 1]).unwrap_or(8);
            replace(&mut lines, at, moved(&line, |at| at.wrapping_add(by)));
        }
        5 => {
            let other = String::from_utf8_lossy(other);
            let others: Vec<&str> = other.lines().collect();
            lines.insert(at, random.choice(others).unwrap_or_default().to_owned());
        }
        // Pages that are gone, words that change, pointers that lead anywhere.
        6 => lines.push(format!("absent {:x}", known(random))),
        7 => lines.push(format!("torn {:x} {:x}", known(random), known(random))),
        8..=11 => {
            let at = known(random).wrapping_add(random.u64(0..8) * 8);
            lines.push(format!("put {at:x} {:x}", known(random)));
        }
        12 => {
            let (step, by) = (8 << random.u32(0..8), random.choice([0, 8, 16, 4096]).unwrap_or(0));
            let (at, count) = (known(random), random.u64(0..4096));
            lines.push(format!("fill {at:x} {count:x} {step:x} {:x} {by:x}", known(random)));
        }
        13 => lines.push(format!("pointer {:x}", known(random))),
        // Two numbers change places.
        14 | 15 => {
            let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
            if words.len() > 2 {
                let (one, other) = (random.usize(1..words.len()), random.usize(1..words.len()));
                words.swap(one, other);
                replace(&mut lines, at, words.join(" "));
            }
        }
        _ => {
            let mut words: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
            if words.len() > 1 {
                let index = random.usize(1..words.len());
                if let Some(old) = hex(&words[index]) {
                    let known = known(random);
                    words[index] = format!("{:x}", number(random, old, known));
                    replace(&mut lines, at, words.join(" "));
                }
            }
        }
    }
    *bytes = lines.join("\n").into_bytes();
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word, 16).ok()
}

fn replace(lines: &mut [String], at: usize, line: String) {
    if let Some(place) = lines.get_mut(at) {
        *place = line;
    }
}

/// A line with another first number.
fn moved(line: &str, change: impl Fn(u64) -> u64) -> String {
    let mut words: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
    if let Some(word) = words.get_mut(1)
        && let Some(number) = hex(word)
    {
        *word = format!("{:x}", change(number));
    }
    words.join(" ")
}

/// What could stand in place of a number; `known` is another one of the input.
fn number(random: &mut Rng, old: u64, known: u64) -> u64 {
    match random.u32(0..12) {
        0 => old.wrapping_add(8),
        1 => old.wrapping_sub(8),
        2 => old.wrapping_add(random.u64(0..64)).wrapping_sub(32),
        3 | 4 => old ^ 1 << random.u32(0..64),
        5 => old << random.u32(1..16),
        6 => old >> random.u32(1..16),
        7 => known,
        8 => known.wrapping_add(random.u64(0..16) * 8),
        9 => (known / PAGE).wrapping_add(random.u64(0..4)).wrapping_mul(PAGE),
        10 => random.u64(0..4096),
        _ => random.choice(NUMBERS).unwrap_or(0),
    }
}

/// An ELF file of 64 bits: changes bytes of one section, the small ones as often as the large ones.
#[allow(clippy::ptr_arg, reason = "as other changes")]
pub(crate) fn sections(random: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let found = places(bytes);
    let Some(place) = random.choice(&found).cloned() else { return };
    let at = random.usize(place.clone());
    let most = (place.end - at).min(16);
    match random.u32(0..8) {
        0 => bytes[at..at + most].fill(random.u8(..)),
        1 => bytes[at] = 0xff,
        2 => bytes[at..at + most].fill(0xff),
        3 => {
            let from = random.usize(place);
            let length = most.min(bytes.len() - from);
            bytes.copy_within(from..from + length, at);
        }
        4 if at + 8 <= bytes.len() => {
            let number = random.choice(NUMBERS).unwrap_or(0).to_le_bytes();
            let length = 1 << random.u32(0..4);
            bytes[at..at + length].copy_from_slice(&number[..length]);
        }
        5 if other.len() > at + most => bytes[at..at + most].copy_from_slice(&other[at..at + most]),
        6 => bytes[at] = bytes[at].wrapping_add(random.u8(..)),
        _ => bytes[at] ^= 1 << random.u32(0..8),
    }
}

/// Where sections are in a file.
fn places(bytes: &[u8]) -> Vec<Range<usize>> {
    let number = |at: usize| {
        let word = at.checked_add(8).and_then(|end| bytes.get(at..end))?;
        word.first_chunk().map(|word| u64::from_le_bytes(*word) as usize)
    };
    let (Some(table), Some(count)) = (number(0x28), number(0x3c)) else { return Vec::new() };
    let section = |index: usize| {
        let at = table.checked_add(index * 64)?;
        let (start, length) = (number(at.checked_add(24)?)?, number(at.checked_add(32)?)?);
        let end = start.checked_add(length)?;
        (start < end && end <= bytes.len()).then_some(start..end)
    };
    (0..count & 0xff).filter_map(section).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changed lines are lines; sections that are not there are none.
    #[test]
    fn changed() {
        let mut random = Rng::with_seed(7);
        let seed = b"range 1000 2000 2000 heap\npiece 1000 2000\nput 1008 21 5 7".to_vec();
        let mut all = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let mut bytes = seed.clone();
            lines(&mut random, &mut bytes, b"slow");
            sections(&mut random, &mut bytes, &seed);
            all.insert(bytes);
        }
        assert!(all.len() > 100, "{}", all.len());
        assert!(places(&[0xff; 256]).is_empty());
        assert!(places(b"short").is_empty());
    }
}
