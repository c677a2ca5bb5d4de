//! The worlds of the readers' tests as seeds of the fuzz target `heaps`: committed, and compared by each test.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use super::{Pieces, text::KINDS};
use crate::space::Range;

/// With this variable of the environment, seeds are written, not compared.
const WRITE: &str = "DRAINPROF_WRITE_SEEDS";
/// Bytes of a seed, at most.
const MOST_BYTES: usize = 20 << 10;
/// Words in a row that follow a rule, from which on they are written as one.
const LEAST_FILLED: usize = 6;
/// Words of a line.
const WORDS: usize = 8;

/// Adds a line.
macro_rules! put {
    ($text:expr, $($what:tt)*) => {
        writeln!($text, $($what)*).expect("a text takes all")
    };
}

/// Compares a world with the seed of that name; `more` are further lines of it.
pub(crate) fn check(name: &str, memory: &Pieces, ranges: &[Range], more: &str) {
    let text = rendered(memory, ranges) + more;
    assert!(text.len() <= MOST_BYTES, "{name} has {} bytes", text.len());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/heaps");
    let path = directory.join(name);
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(&directory).expect("the corpus can be made");
        fs::write(&path, &text).expect("the seed can be written");
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    assert!(known == text, "{} is another world: write it with {WRITE}=1", path.display());
}

/// A world as the text that describes it.
fn rendered(memory: &Pieces, ranges: &[Range]) -> String {
    let mut text = String::new();
    for range in ranges {
        let name = KINDS.iter().find(|(_, kind)| *kind == range.kind).map_or("", |(name, _)| *name);
        let constant = if range.writable { "" } else { " constant" };
        let bytes = range.end - range.start;
        put!(text, "range {:x} {bytes:x} {:x} {name}{constant}", range.start, range.rss);
    }
    let pieces: BTreeMap<u64, &[u8]> =
        memory.pieces.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
    for (at, bytes) in &pieces {
        put!(text, "piece {at:x} {:x}", bytes.len());
    }
    for (at, bytes) in &pieces {
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "pieces have whole words");
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        put_words(&mut text, *at, &words);
    }
    // What no piece has is not present, so that a seed costs no more than what is in it.
    for range in ranges {
        let mut at = range.start;
        for (start, bytes) in pieces.range(..range.end) {
            put_absent(&mut text, at, *start);
            at = at.max(start + bytes.len() as u64);
        }
        put_absent(&mut text, at, range.end);
    }
    memory.absent.iter().for_each(|page| put!(text, "absent {page:x}"));
    memory.torn.iter().for_each(|(at, word)| put!(text, "torn {at:x} {word:x}"));
    memory.guards.iter().flatten().for_each(|page| put!(text, "guard {page:x}"));
    memory.vtables.iter().for_each(|(at, name)| put!(text, "vtable {at:x} {name}"));
    if memory.slow {
        put!(text, "slow");
    }
    text
}

fn put_absent(text: &mut String, start: u64, end: u64) {
    if start < end {
        put!(text, "absent {start:x} {:x}", end - start);
    }
}

/// The words that are not zero, and zeros between two of these.
fn put_words(text: &mut String, start: u64, words: &[u64]) {
    let address = |index: usize| start + index as u64 * 8;
    let mut at = 0;
    while at < words.len() {
        if words[at] == 0 {
            at += 1;
            continue;
        }
        let (period, times) = [1, 2]
            .map(|period| (period, repeated(&words[at..], period)))
            .into_iter()
            .max_by_key(|(period, times)| period * times)
            .unwrap_or((1, 0));
        if period * times >= LEAST_FILLED {
            write!(text, "fill {:x} {times:x} {:x}", address(at), period * 8).expect("it fits");
            for index in at..at + period {
                let by = words[index + period].wrapping_sub(words[index]);
                write!(text, " {:x} {by:x}", words[index]).expect("it fits");
            }
            text.push('\n');
            at += period * times;
            continue;
        }
        let is_end = |index: &usize| {
            let here = words.get(*index).is_none_or(|word| *word == 0);
            here && words.get(*index + 1).is_none_or(|word| *word == 0)
        };
        let end = (at..words.len()).find(is_end).unwrap_or(words.len()).min(at + WORDS);
        write!(text, "put {:x}", address(at)).expect("it fits");
        words[at..end].iter().for_each(|word| write!(text, " {word:x}").expect("it fits"));
        text.push('\n');
        at = end;
    }
}

/// How often the first `period` words follow each other, each larger by the same as the time before.
fn repeated(words: &[u64], period: usize) -> usize {
    let Some(first) = words.get(..2 * period) else { return 0 };
    let by: Vec<u64> = (0..period).map(|at| first[at + period].wrapping_sub(first[at])).collect();
    let follows = |(at, word): (usize, &u64)| {
        words.get(at + period).is_some_and(|next| next.wrapping_sub(*word) == by[at % period])
    };
    let followed = words.iter().enumerate().take_while(|pair| follows(*pair)).count();
    followed / period + 1
}
