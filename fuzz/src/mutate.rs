//! From good inputs to bad ones.

use fastrand::Rng;

/// Bytes of an input, at most.
const MOST_BYTES: usize = 128 << 10;
/// Bytes of a piece that is moved, repeated or taken out, at most.
const MOST_PIECE: usize = 64;
/// Numbers at which counts, sizes and offsets break.
pub(crate) const NUMBERS: [u64; 12] = [
    0,
    1,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX - 7,
    u64::MAX,
];
/// What stands in texts where a number stood.
const WORDS: [&str; 14] = [
    "0",
    "-1",
    "1",
    "null",
    "\"\"",
    "[]",
    "{}",
    "1e308",
    "-0.0",
    "65536",
    "4294967295",
    "7fffffffffff",
    "9223372036854775808",
    "18446744073709551615",
];

/// Of how many changes one is to bytes where a target has changes of its own.
const BLIND: u32 = 8;

/// Changes an input as its format allows; the last one is another seed.
pub type Change = fn(&mut Rng, &mut Vec<u8>, &[u8]);

/// Makes inputs of seeds; the same ones for the same number.
#[derive(Debug)]
pub struct Mutator<'s> {
    random: Rng,
    seeds: &'s [Vec<u8>],
    own: Option<Change>,
}

impl<'s> Mutator<'s> {
    /// Of these seeds.
    #[must_use]
    pub fn new(seeds: &'s [Vec<u8>], number: u64) -> Self {
        Self { random: Rng::with_seed(number), seeds, own: None }
    }

    /// With changes that a format allows.
    #[must_use]
    pub fn with(self, own: Option<Change>) -> Self {
        Self { own, ..self }
    }

    /// The next input: a seed with one to eight changes.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut bytes = self.seed().to_vec();
        for _ in 0..1 << self.random.u32(0..4) {
            match self.own {
                Some(change) if self.random.u32(0..BLIND) > 0 => {
                    let other = self.seed();
                    change(&mut self.random, &mut bytes, other);
                }
                _ => self.change(&mut bytes),
            }
        }
        bytes.truncate(MOST_BYTES);
        bytes
    }

    fn seed(&mut self) -> &'s [u8] {
        self.random.choice(self.seeds).map_or(&[], Vec::as_slice)
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let (at, piece) = self.piece(bytes);
        let end = at + piece.len();
        match self.random.u32(0..20) {
            0 => bytes.truncate(at),
            1..=3 => drop(bytes.drain(at..end)),
            // Up to a thousand times: what nests, and what is long.
            4 => drop(bytes.splice(at..at, piece.repeat(1 << self.random.u32(0..11)))),
            5..=7 => {
                let seed = self.seed();
                let (_, other) = self.piece(seed);
                bytes.splice(at..end, other);
            }
            8..=11 => self.word(bytes, at),
            12..=15 => self.number(bytes, at),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = if self.random.bool() {
                        *byte ^ (1 << self.random.u32(0..8))
                    } else {
                        self.random.u8(..)
                    };
                }
            }
        }
    }

    /// A place, and some bytes from there on.
    fn piece(&mut self, bytes: &[u8]) -> (usize, Vec<u8>) {
        let at = self.random.usize(0..=bytes.len());
        // Where binary files have their headers.
        let at = if self.random.u32(0..4) == 0 { at.min(self.random.usize(0..256)) } else { at };
        let most = MOST_PIECE.min(bytes.len() - at);
        (at, bytes[at..at + self.random.usize(0..=most)].to_vec())
    }

    /// Puts a number in the place of bytes, mostly where one could stand.
    fn number(&mut self, bytes: &mut [u8], at: usize) {
        let size = 1 << self.random.u32(0..4);
        let at = if self.random.bool() { at / size * size } else { at };
        let near = self.random.u64(0..4096);
        let number = self.random.choice(NUMBERS).unwrap_or(0);
        let number = if self.random.bool() { number } else { near };
        if let Some(place) = bytes.get_mut(at..at + size) {
            place.copy_from_slice(&number.to_le_bytes()[..size]);
        }
    }

    /// Replaces a number of a text, the next one from a place on.
    fn word(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let Some(start) = bytes[at..].iter().position(is_digit).map(|skip| at + skip) else {
            return;
        };
        let length = bytes[start..].iter().take_while(|byte| is_digit(byte)).count();
        let word = self.random.choice(WORDS).unwrap_or_default();
        bytes.splice(start..start + length, word.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same number makes the same inputs, another one others; all are bounded.
    #[test]
    fn inputs_can_be_made_again() {
        let seeds = [b"{\"a\": 12345}".to_vec(), vec![0; 100]];
        let make = |number| {
            let mut mutator = Mutator::new(&seeds, number);
            (0..1000).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(make(7), make(7));
        assert_ne!(make(7), make(8));
        assert!(make(7).iter().all(|input| input.len() <= MOST_BYTES));
        assert!(Mutator::new(&[], 1).next_input().len() <= MOST_BYTES);
    }
}
