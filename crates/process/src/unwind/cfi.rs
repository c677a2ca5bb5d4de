//! The unwind tables of one object: from a code address to its rule.
//!
//! `.eh_frame` is searched by the linker's table (`.eh_frame_hdr`), or by an index that is built once;
//! `.debug_frame` by such an index. `gimli` decodes the entries; which sizes are believed, and how long anything
//! may take, is decided here, because the bytes are not ours. Knows no process. Called by `objects`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use drainprof_common::unwind::Rule;
use gimli::{
    BaseAddresses, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice, LittleEndian, Section,
    SectionId, UnwindContext, UnwindOffset, UnwindSection,
};

use super::{
    expression::Bytes,
    translate::{Row, Storage},
};
use crate::{FrameSections, PlacedBytes, elf::Segment};

/// Longest entry of a function. Each row of it is decoded to get to the last.
const MAX_FUNCTION: u64 = 128 << 10;
/// Longest entry that functions share (CIE); they have some twenty bytes.
const MAX_SHARED: u64 = 4 << 10;
/// Functions of an object that is indexed.
const MAX_INDEXED: usize = 4 << 20;
/// Shared entries that are kept while an index is built.
const MAX_KEPT: usize = 1024;
/// Longest that building an index may take; 100,000 functions take 11 ms.
const MAX_INDEXING: Duration = Duration::from_secs(10);
/// `DW_EH_PE_udata4`, and `DW_EH_PE_datarel | DW_EH_PE_sdata4`: how every linker writes its search table.
const COUNT: u8 = 0x03;
const ENTRIES: u8 = 0x3b;

/// What decoding works in; one serves all objects.
pub(super) type Context = UnwindContext<usize, Storage>;

/// The unwind tables of one object.
#[derive(Debug, Default)]
pub(super) struct Tables {
    segments: Vec<Segment>,
    eh: Option<Eh>,
    debug: Option<(Vec<u8>, Index)>,
}

/// `.eh_frame`, and how it is searched.
#[derive(Debug)]
struct Eh {
    frames: PlacedBytes,
    search: Search,
}

#[derive(Debug)]
enum Search {
    /// The linker's table: its section, and how many entries it has room for.
    Header(PlacedBytes, usize),
    Index(Index),
}

/// Where functions begin, in order, and where in the section their entries are.
#[derive(Debug, Default)]
struct Index(Vec<(u64, usize)>);

impl Index {
    fn find(&self, address: u64) -> Option<usize> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        Some(self.0.get(after.checked_sub(1)?)?.1)
    }
}

impl Tables {
    /// The tables in these sections; those of damaged ones say little or nothing.
    pub(super) fn new(sections: FrameSections) -> Self {
        let FrameSections { segments, eh_frame, eh_frame_hdr, debug_frame } = sections;
        let eh = eh_frame.map(|frames| Eh::new(frames, eh_frame_hdr));
        let debug = (!debug_frame.is_empty()).then(|| {
            let index = index(&debug_section(&debug_frame), &BaseAddresses::default());
            (debug_frame, index)
        });
        Self { segments, eh, debug }
    }

    /// Memory that they take, in bytes.
    pub(super) fn size(&self) -> u64 {
        let index = |index: &Index| index.0.capacity() * size_of::<(u64, usize)>();
        let eh = self.eh.as_ref().map_or(0, |eh| {
            eh.frames.bytes.len()
                + match &eh.search {
                    Search::Header(header, _) => header.bytes.len(),
                    Search::Index(functions) => index(functions),
                }
        });
        let debug =
            self.debug.as_ref().map_or(0, |(bytes, functions)| bytes.len() + index(functions));
        let segments = self.segments.len() * size_of::<Segment>();
        (size_of::<Self>() + segments + eh + debug) as u64
    }

    /// The address, in the file's own address space, of the code at `offset` of the file.
    pub(super) fn code_at(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| segment.code_at(offset))
    }

    /// The rule of a frame that goes on at `pc`; `address` is `pc`, or for a return address the byte before
    /// it. `None` where no function's entry covers the address.
    pub(super) fn rule(&self, context: &mut Context, address: u64, pc: u64) -> Option<Rule> {
        let at = At { address, pc };
        let from_eh = self.eh.as_ref().and_then(|eh| {
            let section = eh_section(&eh.frames);
            look_up(&section, &eh.bases(), context, eh.find(address)?, at)
        });
        from_eh.or_else(|| {
            let (bytes, functions) = self.debug.as_ref()?;
            let bases = BaseAddresses::default();
            look_up(&debug_section(bytes), &bases, context, functions.find(address)?, at)
        })
    }

    /// Where functions begin that have an entry.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn functions(&self) -> Vec<u64> {
        let eh = self.eh.iter().flat_map(|eh| index(&eh_section(&eh.frames), &eh.bases()).0);
        let debug = self.debug.iter().flat_map(|(_, functions)| functions.0.iter().copied());
        eh.chain(debug).map(|(start, _)| start).collect()
    }
}

#[derive(Clone, Copy)]
struct At {
    address: u64,
    pc: u64,
}

fn eh_section(placed: &PlacedBytes) -> EhFrame<Bytes<'_>> {
    let mut section = EhFrame::new(&placed.bytes, LittleEndian);
    section.set_address_size(8);
    section
}

fn debug_section(bytes: &[u8]) -> DebugFrame<Bytes<'_>> {
    let mut section = DebugFrame::from(EndianSlice::new(bytes, LittleEndian));
    section.set_address_size(8);
    section
}

impl Eh {
    fn new(frames: PlacedBytes, header: Option<PlacedBytes>) -> Self {
        let header = header.and_then(|header| {
            let entries = header_entries(&header.bytes)?;
            Some((header, entries))
        });
        let search = if let Some((header, entries)) = header {
            Search::Header(header, entries)
        } else {
            let bases = BaseAddresses::default().set_eh_frame(frames.vaddr);
            Search::Index(index(&eh_section(&frames), &bases))
        };
        Self { frames, search }
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.frames.vaddr)
    }

    /// Where in the section the entry is that could cover `address`.
    fn find(&self, address: u64) -> Option<usize> {
        let (header, entries) = match &self.search {
            Search::Index(functions) => return functions.find(address),
            Search::Header(header, entries) => (header, *entries),
        };
        let (pairs, _) = header.bytes.get(12..)?.as_chunks::<8>();
        let pairs = pairs.get(..entries)?;
        let place =
            |bytes: [u8; 4]| header.vaddr.wrapping_add_signed(i64::from(i32::from_le_bytes(bytes)));
        let after = pairs.partition_point(|[a, b, c, d, ..]| place([*a, *b, *c, *d]) <= address);
        let [_, _, _, _, a, b, c, d] = *pairs.get(after.checked_sub(1)?)?;
        usize::try_from(place([a, b, c, d]).checked_sub(self.frames.vaddr)?).ok()
    }
}

/// How many entries the linker's search table has; `None` if it is none that can be searched.
fn header_entries(header: &[u8]) -> Option<usize> {
    let head = header.first_chunk::<12>()?;
    let [1, _, COUNT, ENTRIES, _, _, _, _, a, b, c, d] = *head else { return None };
    let claimed = u32::from_le_bytes([a, b, c, d]) as usize;
    let entries = claimed.min((header.len() - head.len()) / 8);
    (entries > 0).then_some(entries)
}

/// Length of the entry at `offset`, without its length word, and where the next one begins.
fn entry(bytes: &[u8], offset: usize) -> Option<(u64, usize)> {
    let rest = bytes.get(offset..)?;
    let short = u32::from_le_bytes(*rest.first_chunk()?);
    let (length, head) = if short == u32::MAX {
        (u64::from_le_bytes(*rest.get(4..)?.first_chunk()?), 12)
    } else {
        (u64::from(short), 4)
    };
    let next = offset.checked_add(head)?.checked_add(usize::try_from(length).ok()?)?;
    Some((length, next))
}

/// The shared entry at `offset`, if it is no longer than is believed.
fn shared<'a, S: UnwindSection<Bytes<'a>> + Section<Bytes<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    offset: S::Offset,
) -> gimli::Result<CommonInformationEntry<Bytes<'a>>> {
    let at = UnwindOffset::into(offset);
    match entry(section.reader().slice(), at) {
        Some((1..=MAX_SHARED, _)) => section.cie_from_offset(bases, offset),
        _ => Err(gimli::Error::OffsetOutOfBounds(at as u64)),
    }
}

/// The rule by the function's entry at `offset`; `None` if it does not cover the address.
fn look_up<'a, S: UnwindSection<Bytes<'a>> + Section<Bytes<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    context: &mut Context,
    offset: usize,
    at: At,
) -> Option<Rule> {
    let (length, _) = entry(section.reader().slice(), offset)?;
    if length > MAX_FUNCTION {
        // It may be about this address, which is not examined.
        return Some(Rule::STOP);
    }
    let function = section.fde_from_offset(bases, offset.into(), shared).ok()?;
    if !function.contains(at.address) {
        return None;
    }
    let cie = function.cie();
    let (encoding, return_address) = (cie.encoding(), cie.return_address_register());
    let is_signal = function.is_signal_trampoline();
    let Ok(row) = function.unwind_info_for_address(section, bases, context, at.address) else {
        return Some(Rule::STOP);
    };
    let row = Row { section, found: row, encoding, return_address, is_signal, pc: at.pc };
    Some(row.rule())
}

/// Goes through a section once. Entries that cannot be read are passed by; what is beyond the bounds is left
/// out.
fn index<'a, S: UnwindSection<Bytes<'a>> + Section<Bytes<'a>>>(
    section: &S,
    bases: &BaseAddresses,
) -> Index {
    let bytes = section.reader().slice();
    let until = Instant::now() + MAX_INDEXING;
    let mut kept: HashMap<usize, CommonInformationEntry<Bytes<'a>>> = HashMap::new();
    let mut functions = Vec::new();
    let mut at = 0;
    while let Some((length, next)) = entry(bytes, at) {
        if length == 0 && S::id() == SectionId::EhFrame {
            break;
        }
        let function = section.fde_from_offset(bases, at.into(), |section, bases, offset| {
            let place = UnwindOffset::into(offset);
            if let Some(found) = kept.get(&place) {
                return Ok(found.clone());
            }
            let found = shared(section, bases, offset)?;
            if kept.len() < MAX_KEPT {
                kept.insert(place, found.clone());
            }
            Ok(found)
        });
        // Functions that the linker threw away begin at 0.
        if let Ok(function) = function
            && function.len() > 0
            && function.initial_address() > 0
        {
            functions.push((function.initial_address(), at));
        }
        at = next;
        if functions.len() >= MAX_INDEXED || Instant::now() >= until {
            break;
        }
    }
    functions.sort_unstable();
    functions.shrink_to_fit();
    Index(functions)
}

#[cfg(test)]
mod tests;
