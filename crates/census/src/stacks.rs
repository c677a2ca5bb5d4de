//! Stacks of threads, where they are proven: by a thread's stack pointer, by what the thread's library (glibc, musl) has
//! written at the stack's upper end about its first address and its size, and by a guard at its lower end. The kernel
//! joins stacks with each other and with other memory, so a mapping alone is never one. What a heap has is none.

use drainprof_process::{Process, ask_process};

use crate::{
    found::Taken,
    region::Region,
    space::{PAGE, RangeKind, Space, resident},
};

/// Bytes of a thread's stack, at most.
const MAX_STACK: u64 = 64 << 20;
/// What a library says of a stack stands so near to its end.
const MAX_ABOVE: u64 = 64 << 10;
/// Bytes that are searched for it, above one stack pointer.
const MAX_SEARCHED: u64 = 8 << 20;
/// Bytes that are searched in all: so many for each resident one of the process, so many more, and at most so many.
const SEARCHED_EACH: u64 = 4;
const SEARCHED_MORE: u64 = 8 << 20;
const MAX_ALL_SEARCHED: u64 = 256 << 20;
/// Reads of the stack pointer of a thread that runs.
const ATTEMPTS: u32 = 3;

/// The stack pointers of a process's threads. That of one that runs is not known.
pub(crate) fn pointers(process: &Process) -> Vec<u64> {
    let pointer = |thread: u32| {
        let path = format!("/proc/{}/task/{thread}/syscall", process.pid);
        let read = || ask_process(process.pid, || std::fs::read_to_string(&path));
        (0..ATTEMPTS).find_map(|_| pointer_of(&read().ok()?))
    };
    process.threads().unwrap_or_default().into_iter().filter_map(pointer).collect()
}

/// "running", or numbers that end with the stack pointer and the instruction pointer.
fn pointer_of(text: &str) -> Option<u64> {
    let pointer = text.split_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}

/// Resident bytes of the stacks that these stack pointers lie in.
pub(crate) fn bytes(space: &Space<'_>, pointers: &[u64], taken: &Taken) -> u64 {
    let searched = resident(&space.ranges).saturating_mul(SEARCHED_EACH);
    let mut left = searched.saturating_add(SEARCHED_MORE).min(MAX_ALL_SEARCHED);
    let mut stacks: Vec<(u64, u64)> = Vec::new();
    for pointer in pointers {
        let is_known = stacks.iter().any(|(start, end)| (*start..*end).contains(pointer));
        if is_known || taken.end_of(*pointer).is_some() {
            continue;
        }
        let meets = |start, end| stacks.iter().any(|(first, last)| *first < end && start < *last);
        if let Some((start, end)) = stack(space, *pointer, &mut left)
            && !taken.meets(start, end)
            && !meets(start, end)
        {
            stacks.push((start, end));
        }
    }
    let present = |(start, end): &(u64, u64)| {
        let range = space.range_at(*start).map_or(0, |range| range.rss);
        Region::new(space, *start, *end).present_bytes(*start, *end).min(range)
    };
    stacks.iter().map(present).fold(0, u64::saturating_add)
}

/// The stack that a stack pointer lies in, without its guard.
fn stack(space: &Space<'_>, pointer: u64, left: &mut u64) -> Option<(u64, u64)> {
    let range = space.range_at(pointer)?;
    if !range.writable || range.kind != RangeKind::Anonymous {
        return None;
    }
    let first = pointer / PAGE * PAGE;
    // Unless it is joined with other memory, it ends where the mapping does.
    let last = first.max(range.end.saturating_sub(MAX_ABOVE));
    let until = last.min(pointer.saturating_add(MAX_STACK));
    let found = search(space, (last, range.end), pointer, left);
    let found = found.or_else(|| search(space, (first, until), pointer, left));
    found.filter(|(_, end)| *end <= range.end)
}

/// Words of a description.
const WORDS: usize = 5;

/// Searches memory for what describes the stack.
fn search(
    space: &Space<'_>,
    (start, end): (u64, u64),
    pointer: u64,
    left: &mut u64,
) -> Option<(u64, u64)> {
    const BEFORE: u64 = (WORDS as u64 - 1) * 8;
    let end = end.saturating_add(BEFORE);
    let mut region = Region::new(space, start, end);
    let (mut at, mut searched) = (start, 0);
    let (mut words, mut known) = ([0; WORDS], 0);
    while at < end {
        if at.is_multiple_of(PAGE) {
            if !region.is_present(at) {
                at = region.next_present(at);
                known = 0;
                continue;
            }
            searched += PAGE;
            *left = left.checked_sub(PAGE).filter(|_| searched <= MAX_SEARCHED)?;
        }
        words.rotate_left(1);
        known = match region.word(at) {
            Some(word) => {
                words[WORDS - 1] = word;
                WORDS.min(known + 1)
            }
            None => 0,
        };
        if known == WORDS {
            let found = described(space, at - BEFORE, words, pointer);
            if found.is_some() {
                return found;
            }
        }
        at += 8;
    }
    None
}

/// The stack that words at an address describe: its first address and its bytes, both with the guard, then the guard's bytes
/// (glibc), or two more words before them (musl).
fn described(space: &Space<'_>, at: u64, words: [u64; WORDS], pointer: u64) -> Option<(u64, u64)> {
    let [block, bytes, near, _, far] = words;
    if !block.is_multiple_of(PAGE) || block == 0 || block > pointer {
        return None;
    }
    let end = block.checked_add(bytes)?;
    let is_guard = |guard: &u64| guard.is_multiple_of(PAGE) && (PAGE..bytes).contains(guard);
    let guard = [near, far].into_iter().find(is_guard)?;
    let start = block.checked_add(guard)?;
    let is_sane = bytes.is_multiple_of(PAGE)
        && bytes - guard <= MAX_STACK
        && (start..end).contains(&pointer)
        && at < end
        && end - at <= MAX_ABOVE
        && has_guard(space, block, start);
    is_sane.then_some((start, end))
}

/// Whether memory below a stack cannot be used: a mapping that cannot be written, or guard pages within the stack's, as far
/// as the kernel says which those are (Linux 6.15); else pages that are not there.
fn has_guard(space: &Space<'_>, block: u64, start: u64) -> bool {
    let Some(range) = space.range_at(block) else { return false };
    if !range.writable {
        return range.kind == RangeKind::Anonymous && range.rss == 0 && range.end == start;
    }
    let is_untouched = || Region::new(space, block, start).present_bytes(block, start) == 0;
    range.end > start
        && space.guarded(block, start).unwrap_or_else(is_untouched)
        // Else nothing was asked.
        && !space.budget.is_over()
}

#[cfg(test)]
mod tests;
