//! The walk over a snapshot of a stack, and what it needs to know of the process.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use drainprof_common::unwind::{self, Cursor, MAX_PATH, Rule, Stack, rule_key, step};
use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::{cfi::Context, objects::Objects, space::AddressSpace};
use crate::{
    PathEnd, Process, ProcessError,
    file::read_memory,
    readers,
    signal_return::{LONGEST_RETURN, returns_from_signal},
    space::Place,
};

/// Address spaces that are known at once; the one that was examined longest ago makes room.
const MAX_SPACES: usize = 4096;
/// How often the mappings of a process are read at most because an address lies in none of them.
const AGAIN: Duration = Duration::from_millis(50);
/// How far above the stack pointer a frame is believed to be, where the snapshot does not reach.
const MAX_FRAME: u64 = 8 << 20;
/// Longest call instruction that compilers write, with its prefixes.
const MAX_CALL: usize = 8;
/// Where programs may have code.
const CODE: std::ops::Range<u64> = 0x1000..1 << 47;

/// Bounds and places.
#[derive(Clone, Debug)]
pub struct UnwinderOptions {
    /// Memory that unwind tables may take, in bytes.
    pub table_bytes: u64,
    /// More directories laid out like `/usr/lib/debug`: objects without `.eh_frame` may have tables there.
    pub debug_dirs: Vec<PathBuf>,
}

impl Default for UnwinderOptions {
    fn default() -> Self {
        Self { table_bytes: 256 << 20, debug_dirs: Vec::new() }
    }
}

/// A frame, and the stack from there on.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The frame from which callers are searched for: usually one whose rule the kernel side did not know.
    pub start: Cursor,
    /// Address of the first byte of `bytes`.
    pub base: u64,
    /// A copy of the stack; it begins at or below `start.sp`.
    pub bytes: &'a [u8],
    /// Return addresses that the kernel has replaced because these returns are probed: the address of the
    /// word on the stack, and what stood there.
    pub returns: &'a [(u64, u64)],
}

impl Stack for Snapshot<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let word = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(*word.first_chunk()?))
    }
}

/// What a snapshot shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Where the callers of the start go on, the nearest first, as [`unwind::shown`] has them. The start's own address is
    /// not among them.
    pub addresses: Vec<u64>,
    /// The rules of the frames that were passed, the start's and the last one's too, by
    /// [`rule_key`]. They hold for the address, whatever the stack.
    pub rules: Vec<(u64, Rule)>,
    /// Why it ends.
    pub end: PathEnd,
    /// Whether the start itself is code, as far as is known; else it is no frame.
    pub starts_in_code: bool,
    /// Whether it ends at an address that was not found because the mappings had just been read: later it may go
    /// further.
    pub too_early: bool,
}

/// Unwinds stacks of processes.
#[derive(Debug)]
pub struct Unwinder {
    spaces: HashMap<u32, AddressSpace>,
    objects: Objects,
    context: Box<Context>,
}

/// What is known of a code address.
enum Known {
    Rule(Rule),
    /// It is code without unwind information.
    Nothing,
    /// It is not code, as far as is known now.
    NoCode,
    /// Not to be reported now: the mappings were read too short a time ago to be read again.
    Later,
}

impl Unwinder {
    /// One that knows no process yet.
    #[must_use]
    pub fn new(options: UnwinderOptions) -> Self {
        Self {
            spaces: HashMap::new(),
            objects: Objects::new(options.table_bytes, options.debug_dirs),
            context: Box::default(),
        }
    }

    /// Reads the mappings of process `pid`, which is address space number `space` from now on. What was
    /// known of the space stays if they cannot be read.
    ///
    /// A forked child is met under the number of its parent's space as long as it shares its rules.
    pub fn meet(&mut self, space: u32, pid: u32) -> Result<(), ProcessError> {
        let process =
            if pid == std::process::id() { Process::myself() } else { readers::open(pid) };
        self.read_mappings(space, process?)
    }

    fn read_mappings(&mut self, space: u32, process: Process) -> Result<(), ProcessError> {
        let found = AddressSpace::of(process, self.spaces.get(&space))?;
        if self.spaces.len() >= MAX_SPACES && !self.spaces.contains_key(&space) {
            let oldest = self.spaces.iter().min_by_key(|(_, space)| space.seen);
            if let Some((&oldest, _)) = oldest {
                self.spaces.remove(&oldest);
            }
        }
        self.spaces.insert(space, found);
        Ok(())
    }

    /// Whether an address space was examined, and has not had to make room since.
    #[must_use]
    pub fn knows(&self, space: u32) -> bool {
        self.spaces.contains_key(&space)
    }

    /// Forgets an address space; tables that it shares with others stay.
    pub fn forget(&mut self, space: u32) {
        self.spaces.remove(&space);
    }

    /// The executable memory of a space when it was last examined, in order: first addresses, and first
    /// addresses after. Empty for a space that is not known.
    #[must_use]
    pub fn code_ranges(&self, space: u32) -> Vec<(u64, u64)> {
        let ranges = self.spaces.get(&space).map_or(&[][..], |space| space.memory.ranges());
        ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    /// Whether code that lay somewhere in the space was found to lie there no longer, since this was last asked: a
    /// library was unloaded, and rules of its addresses may be wrong for what lies there next.
    pub fn take_moved(&mut self, space: u32) -> bool {
        self.spaces.get_mut(&space).is_some_and(|space| std::mem::take(&mut space.moved))
    }

    /// Memory that unwind tables take, in bytes.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.objects.size()
    }

    #[cfg(test)]
    pub(super) fn add_probe_page(&mut self, space: u32, start: u64) {
        self.spaces.get_mut(&space).unwrap().memory.add_probe_page(start);
    }

    /// The rule of a frame, by unwind tables alone; [`Rule::UNKNOWN`] where they say nothing of it.
    pub fn rule(&mut self, space: u32, at: &Cursor) -> Rule {
        if let Known::Rule(rule) = self.known(space, at) { rule } else { Rule::UNKNOWN }
    }

    /// Walks from the start of `snapshot` towards the outermost frame, at most [`MAX_PATH`] frames far.
    ///
    /// A walk that ends with [`PathEnd::Unreadable`] may go further with a longer snapshot, or later.
    pub fn unwind(&mut self, space: u32, snapshot: &Snapshot<'_>) -> Walk {
        let mut walk = Walk::default();
        let mut at = snapshot.start;
        let mut is_start = true;
        walk.end = loop {
            if !self.put_back(space, &mut at, snapshot) {
                break PathEnd::NoUnwindInfo;
            }
            let key = rule_key(space, &at);
            // No return address: stacks that programs make themselves begin so.
            if at.pc == 0 && at.interrupted == 0 {
                if key != 0 {
                    walk.rules.push((key, Rule::START));
                }
                break PathEnd::Start;
            }
            let known = match self.known(space, &at) {
                Known::NoCode => {
                    // Else it would be asked for each time.
                    if CODE.contains(&at.pc) && self.spaces.contains_key(&space) {
                        walk.rules.push((key, Rule::NO_CODE));
                    }
                    break PathEnd::NoUnwindInfo;
                }
                Known::Later => {
                    walk.too_early = true;
                    break PathEnd::Unreadable;
                }
                known => known,
            };
            if is_start {
                walk.starts_in_code = true;
            } else {
                walk.addresses.push(unwind::shown(&at));
            }
            is_start = false;
            let rule = match known {
                Known::Rule(rule) => rule,
                _ => match self.guess(space, &at, snapshot) {
                    Some(rule) => rule,
                    None => break PathEnd::Unreadable,
                },
            };
            walk.rules.push((key, rule));
            if walk.addresses.len() >= MAX_PATH {
                break PathEnd::TooDeep;
            }
            match unwind::advance(rule, &mut at, &mut { *snapshot }) {
                step::CALLER => {}
                step::START => break PathEnd::Start,
                step::UNREADABLE => break PathEnd::Unreadable,
                _ => break PathEnd::NoUnwindInfo,
            }
        };
        walk
    }

    /// Puts the return address back where the kernel has replaced it; `false` if it is not known.
    fn put_back(&self, space: u32, at: &mut Cursor, snapshot: &Snapshot<'_>) -> bool {
        if at.interrupted != 0 {
            return true;
        }
        match self.original(space, at.pc, at.sp.wrapping_sub(8), snapshot) {
            Some(pc) => {
                at.pc = pc;
                true
            }
            None => false,
        }
    }

    /// What the return address `pc` at `slot` was before the kernel replaced it; `None` if it was replaced
    /// and is not known.
    fn original(&self, space: u32, pc: u64, slot: u64, snapshot: &Snapshot<'_>) -> Option<u64> {
        let lies = self.spaces.get(&space).and_then(|space| space.memory.place(pc));
        // The page for probes may be younger than our examine the mappings.
        if !matches!(lies, None | Some(Place::Uprobes)) {
            return Some(pc);
        }
        let real = snapshot.returns.iter().find(|(at, _)| *at == slot).map(|(_, real)| *real);
        real.or_else(|| lies.is_none().then_some(pc))
    }

    /// What lies at an address; the mappings are read again if that is not known.
    fn find(&mut self, number: u32, address: u64) -> Result<Place, Known> {
        let Some(space) = self.spaces.get(&number) else { return Err(Known::NoCode) };
        if let Some(place) = space.memory.place(address) {
            return Ok(place);
        }
        if !CODE.contains(&address) {
            return Err(Known::NoCode);
        }
        if space.seen.elapsed() < AGAIN {
            return Err(Known::Later);
        }
        let process = space.process.clone();
        if let Err(error) = self.read_mappings(number, process) {
            tracing::debug!(space = number, %error, "mappings are not read again");
        }
        let found = self.spaces.get(&number).and_then(|space| space.memory.place(address));
        found.ok_or(Known::NoCode)
    }

    fn known(&mut self, number: u32, at: &Cursor) -> Known {
        // The call before a return address may be the last instruction of its function.
        let address = if at.interrupted == 0 { at.pc.wrapping_sub(1) } else { at.pc };
        let place = match self.find(number, address) {
            Ok(place) => place,
            Err(known) => return known,
        };
        let (tables, offset) = match place {
            Place::Vdso(offset) => (self.objects.vdso(), offset),
            Place::File(object, offset) => {
                let Some(AddressSpace { memory, loaded, .. }) = self.spaces.get_mut(&number) else {
                    return Known::NoCode;
                };
                (self.objects.of(&memory.objects()[object], &mut loaded[object]), offset)
            }
            Place::Generated => return Known::Nothing,
            // Return addresses there were put back; nothing else can be.
            Place::Uprobes => return Known::NoCode,
        };
        let Some((tables, vaddr)) =
            tables.and_then(|tables| Some((Arc::clone(&tables), tables.code_at(offset)?)))
        else {
            return Known::Nothing;
        };
        let pc = vaddr.wrapping_add(at.pc.wrapping_sub(address));
        if let Some(rule) = tables.rule(&mut self.context, vaddr, pc) {
            return Known::Rule(rule);
        }
        let Place::File(object, _) = place else { return Known::Nothing };
        let more = self.spaces.get(&number).and_then(|space| {
            let mapped = &space.memory.objects()[object];
            self.objects.debug_of(space.process.pid, mapped, space.loaded[object])
        });
        let rule = more.and_then(|tables| tables.rule(&mut self.context, vaddr, pc));
        rule.map_or(Known::Nothing, Known::Rule)
    }

    /// The rule of a frame whose code has no unwind information: the return from a signal handler, which is
    /// known by its instructions, or a function with a frame pointer, if that leads to a return address.
    /// `None` where this cannot be reported now.
    fn guess(&mut self, space: u32, at: &Cursor, snapshot: &Snapshot<'_>) -> Option<Rule> {
        let pid = self.spaces.get(&space)?.process.pid;
        let code = read_code(pid, at.pc, LONGEST_RETURN);
        if returns_from_signal(&code) {
            return Some(Rule::SIGNAL);
        }
        // In the middle of a prologue the frame pointer is still the caller's, and would hide it.
        if at.interrupted != 0 || at.bp < at.sp || at.bp & 7 != 0 || at.bp - at.sp > MAX_FRAME {
            return Some(Rule::STOP);
        }
        let slot = at.bp.checked_add(8)?;
        let returns_to = { *snapshot }.word(slot)?;
        let returns_to = self.original(space, returns_to, slot, snapshot)?;
        match self.find(space, returns_to.wrapping_sub(1)) {
            Ok(Place::File(..) | Place::Vdso(_) | Place::Generated) => {}
            Ok(Place::Uprobes) | Err(Known::NoCode) => return Some(Rule::STOP),
            Err(_) => return None,
        }
        let before = read_code(pid, returns_to.wrapping_sub(MAX_CALL as u64), MAX_CALL);
        if before.len() < MAX_CALL {
            return None;
        }
        Some(if ends_with_call(&before) { Rule::FRAME_POINTER } else { Rule::STOP })
    }
}

/// At most `size` bytes of the process's code; none where it cannot be read. The page may be one that is never delivered.
fn read_code(pid: u32, address: u64, size: usize) -> Vec<u8> {
    let read = readers::ask(pid, move || {
        let mut bytes = vec![0; size];
        let read = read_memory(pid, address, &mut bytes);
        bytes.truncate(read.unwrap_or_default());
        bytes
    });
    read.unwrap_or_default()
}

/// Whether the last instruction of `code` may be a call.
fn ends_with_call(code: &[u8]) -> bool {
    (2..=code.len()).any(|length| {
        let bytes = &code[code.len() - length..];
        let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        instruction.len() == length
            && matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls of all lengths are seen; other instructions, and calls further before, are not.
    #[test]
    fn calls_before_return_addresses() {
        for call in [
            &[0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4][..],
            &[0, 0, 0, 0, 0, 0, 0xff, 0xd0],
            &[0, 0, 0, 0, 0, 0x41, 0xff, 0xd4],
            &[0, 0, 0, 0, 0, 0xff, 0x50, 0x18],
            &[0, 0, 0xff, 0x15, 1, 2, 3, 4],
            &[0x41, 0xff, 0x94, 0x24, 1, 2, 3, 4],
        ] {
            assert!(ends_with_call(call), "{call:x?}");
        }
        for other in [
            &[0x90; 8][..],
            &[0xe8, 1, 2, 3, 4, 0x90, 0x90, 0x90],
            &[0, 0, 0, 0, 0, 0, 0xff, 0xe0],
            &[0x48, 0x8d, 0x05, 1, 2, 3, 4, 0xc3],
        ] {
            assert!(!ends_with_call(other), "{other:x?}");
        }
    }

    /// Words of a snapshot are found by their address; beyond its ends there are none.
    #[test]
    fn words_of_snapshots() {
        let bytes: Vec<u8> = (0..24).collect();
        let mut snapshot =
            Snapshot { start: Cursor::default(), base: 0x1000, bytes: &bytes, returns: &[] };
        assert_eq!(snapshot.word(0x1000), Some(0x0706_0504_0302_0100));
        assert_eq!(snapshot.word(0x1010), Some(0x1716_1514_1312_1110));
        for address in [0xfff, 0x1011, 0x1018, 0, u64::MAX] {
            assert_eq!(snapshot.word(address), None, "{address:x}");
        }
    }
}
