use proptest::prelude::*;

use super::*;
use crate::{
    space::Range,
    testing::{Pieces, anonymous, seeds},
};

const AT: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 256 << 10;
/// Where glibc's description begins below the upper end, and its words within it.
const BELOW: u64 = 2304;
const WORDS: u64 = 0x690;

/// A stack of glibc's at an address with a guard of one page in it; all else is present.
fn stack_at(memory: &mut Pieces, at: u64, bytes: u64) -> u64 {
    memory.pieces.push((at, vec![0; bytes as usize]));
    memory.put(at + bytes - BELOW + WORDS, &[at, bytes, PAGE, PAGE, 0]);
    at + bytes - 8 * PAGE
}

/// A guard with a mapping of its own.
fn guard(at: u64) -> Range {
    Range { writable: false, rss: 0, ..anonymous(at, PAGE) }
}

fn found(memory: &Pieces, ranges: Vec<Range>, pointers: &[u64]) -> u64 {
    let space = Space::new(ranges, memory);
    bytes(&space, pointers, &Taken::default())
}

/// A stack behind a mapping that cannot be used; memory that the kernel has joined with it is none.
#[test]
fn joined() {
    let mut memory = Pieces::default();
    let pointer = stack_at(&mut memory, AT, BYTES);
    memory.pieces.push((AT + BYTES, vec![0; 1 << 20]));
    let joined = anonymous(AT + PAGE, BYTES - PAGE + (1 << 20));
    let of = |ranges, pointers: &[u64]| found(&memory, ranges, pointers);
    assert_eq!(of(vec![guard(AT), joined.clone()], &[pointer]), BYTES - PAGE);
    // Twice is once, and a pointer into the other memory is none into a stack.
    assert_eq!(of(vec![guard(AT), joined.clone()], &[pointer, pointer + 8]), BYTES - PAGE);
    assert_eq!(of(vec![guard(AT), joined.clone()], &[AT + BYTES + 8]), 0);
    // Neither without a guard, nor behind what is a file's, or resident.
    assert_eq!(of(vec![joined.clone()], &[pointer]), 0);
    let file = Range { kind: RangeKind::File, ..guard(AT) };
    assert_eq!(of(vec![file, joined.clone()], &[pointer]), 0);
    assert_eq!(of(vec![Range { rss: PAGE, ..guard(AT) }, joined.clone()], &[pointer]), 0);
    // Nor what a heap has.
    let space = Space::new(vec![guard(AT), joined], &memory);
    let mut taken = Taken::default();
    taken.add([(AT + BYTES - PAGE, AT + BYTES)]);
    assert_eq!(bytes(&space, &[pointer], &taken), 0);
}

/// However many pointers lead into memory that is no stack, little more of it is read than there is.
#[test]
fn searched() {
    let mut memory = Pieces::default();
    memory.pieces.push((AT, AT.to_le_bytes().repeat(BYTES as usize / 8)));
    let space = Space::new(vec![anonymous(AT, BYTES)], &memory);
    let pointers: Vec<u64> = (0..1000).map(|index| AT + index * 8).collect();
    assert_eq!(bytes(&space, &pointers, &Taken::default()), 0);
    let most = SEARCHED_EACH * BYTES + SEARCHED_MORE + (1 << 20);
    assert!(space.read_bytes() <= most, "{}", space.read_bytes());
    // Words that may begin a description are not read one by one.
    assert!(space.budget.steps() < 5000, "{}", space.budget.steps());
}

/// Stacks whose guards are pages within one mapping, each for itself; the kernel says which pages are guards, or does not.
#[test]
fn guard_pages() {
    let mut memory = Pieces::default();
    let pointers = [0, 1, 2].map(|index| stack_at(&mut memory, AT + index * BYTES, BYTES));
    let guards = [0, 1, 2].map(|index| AT + index * BYTES);
    memory.absent.extend(guards);
    let all = || vec![anonymous(AT, 3 * BYTES)];
    for (known, stacks) in [(None, 3), (Some(guards[..2].to_vec()), 2), (Some(Vec::new()), 0)] {
        memory.guards = known;
        assert_eq!(
            found(&memory, all(), &pointers),
            stacks * (BYTES - PAGE),
            "{:?}",
            memory.guards
        );
    }
    memory.guards = None;
    memory.absent.pop();
    assert_eq!(found(&memory, all(), &pointers), 2 * (BYTES - PAGE));
}

/// musl has two words more between the size and the guard's.
#[test]
fn musl() {
    let mut memory = Pieces::default();
    memory.pieces.push((AT, vec![0; BYTES as usize]));
    let top = AT + BYTES - 1024;
    memory.put(top - 200, &[AT, BYTES, top - 512, BYTES - 2 * PAGE, 2 * PAGE]);
    let rest = anonymous(AT + 2 * PAGE, BYTES - 2 * PAGE);
    let guard = Range { rss: 0, writable: false, ..anonymous(AT, 2 * PAGE) };
    assert_eq!(found(&memory, vec![guard, rest], &[top - 4096]), BYTES - 2 * PAGE);
}

/// What is not present counts as little as elsewhere, and what is too large is no stack.
#[test]
fn sizes() {
    let mut memory = Pieces::default();
    let pointer = stack_at(&mut memory, AT, BYTES);
    memory.untouched.push((AT + PAGE, AT + BYTES - 9 * PAGE));
    let rest = anonymous(AT + PAGE, BYTES - PAGE);
    let ranges = vec![guard(AT), Range { rss: 9 * PAGE, ..rest }];
    assert_eq!(found(&memory, ranges, &[pointer]), 9 * PAGE);
    let (mut memory, bytes) = (Pieces::default(), MAX_STACK + 2 * PAGE);
    memory.pieces.push((AT + bytes - BYTES, vec![0; BYTES as usize]));
    memory.put(AT + bytes - BELOW + WORDS, &[AT, bytes, PAGE, PAGE, 0]);
    let rest = anonymous(AT + PAGE, bytes - PAGE);
    assert_eq!(found(&memory, vec![guard(AT), rest], &[AT + bytes - PAGE]), 0);
}

/// A word of the description that is another: no stack.
#[test]
fn shifted() {
    for (index, by) in (0..3).flat_map(|index| [8, PAGE].map(|by| (index, by))) {
        let mut memory = Pieces::default();
        let pointer = stack_at(&mut memory, AT, BYTES);
        let mut words = [AT, BYTES, PAGE, 0, 0];
        words[index] += by;
        memory.put(AT + BYTES - BELOW + WORDS, &words);
        let ranges = vec![guard(AT), anonymous(AT + PAGE, BYTES - PAGE)];
        assert_eq!(found(&memory, ranges, &[pointer]), 0, "{index} {by}");
    }
}

/// Seeds of the fuzz target `heaps`: a guard with a mapping of its own, and guard pages in one.
#[test]
fn as_seeds() {
    let mut memory = Pieces::default();
    let pointer = stack_at(&mut memory, AT, BYTES);
    let ranges = [guard(AT), anonymous(AT + PAGE, BYTES - PAGE)];
    seeds::check("stacks-mapped-guard", &memory, &ranges, &format!("pointer {pointer:x}\n"));
    let mut memory = Pieces::default();
    let pointers = [0, 1, 2].map(|index| stack_at(&mut memory, AT + index * BYTES, BYTES));
    memory.guards = Some([0, 1, 2].map(|index| AT + index * BYTES).to_vec());
    memory.absent.extend([0, 1, 2].map(|index| AT + index * BYTES));
    let more = pointers.map(|pointer| format!("pointer {pointer:x}\n")).concat();
    seeds::check("stacks-guard-pages", &memory, &[anonymous(AT, 3 * BYTES)], &more);
}

/// The line of the kernel.
#[test]
fn lines() {
    let line = "202 0x7f0000000000 0x189 0x0 0x0 0x0 0xffffffff 0x7f00deadbee8 0x7f1122334455\n";
    assert_eq!(pointer_of(line), Some(0x7f00_dead_bee8));
    assert_eq!(pointer_of("running\n"), None);
    assert_eq!(pointer_of("-1 zz 0x0"), None);
}

proptest! {
    /// Whatever stands there, stacks are no more than what is resident.
    #[test]
    fn hostile(
        words in prop::collection::vec((0..BYTES / 8, 0..4u8, any::<u64>()), 0..200),
        pointers in prop::collection::vec(0..BYTES + PAGE, 1..5),
    ) {
        let mut memory = Pieces::default();
        memory.pieces.push((AT, vec![0; BYTES as usize]));
        for (at, kind, word) in words {
            let word = match kind {
                0 => word,
                1 => AT + word % 64 * PAGE,
                _ => word % 64 * PAGE,
            };
            memory.put(AT + at * 8, &[word]);
        }
        let pointers: Vec<u64> = pointers.iter().map(|at| AT + at).collect();
        let ranges = vec![guard(AT), anonymous(AT + PAGE, BYTES - PAGE)];
        prop_assert!(found(&memory, ranges, &pointers) < BYTES);
    }
}
