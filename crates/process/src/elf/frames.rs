//! The sections that say how an object's functions are unwound, as bytes.
//!
//! `.eh_frame` with its search table where the object has them, by section headers or, without these, by
//! `PT_GNU_EH_FRAME`; `.debug_frame` of the object, or of its debug file. What the bytes mean is the business
//! of `unwind`, which calls this.

use std::{fs::File, os::unix::fs::MetadataExt as _, sync::Arc};

use object::{
    elf,
    read::elf::{ProgramHeader as _, SectionHeader as _},
};

use super::{
    contents::Contents,
    debug::{self, DebugSearch},
    error::{ElfError, unread},
    read::{ENDIAN, Reader, with_open},
    segment::Segment,
};
use crate::{guard::ask, printable};

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`: how every linker writes where `.eh_frame` is.
const RELATIVE: u8 = 0x1b;

/// A section with its address.
#[derive(Clone, Debug, Default)]
pub struct PlacedBytes {
    /// Its address in the file's own address space.
    pub vaddr: u64,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// The unwind tables of one object.
#[derive(Clone, Debug, Default)]
pub struct FrameSections {
    /// The object's loadable segments.
    pub segments: Vec<Segment>,
    /// `.eh_frame`, if it has one.
    pub eh_frame: Option<PlacedBytes>,
    /// `.eh_frame_hdr`, if it has one.
    pub eh_frame_hdr: Option<PlacedBytes>,
    /// `.debug_frame`; empty if there is none.
    pub debug_frame: Vec<u8>,
}

impl FrameSections {
    /// Reads the tables of the object in `file`, at most `max` bytes of all; `shown` is what messages call it.
    pub fn read(file: File, shown: &str, max: u64) -> Result<Self, ElfError> {
        let contents = Contents::new(file);
        let reader = Reader::new(&contents, shown)?;
        let mut found = Self { segments: reader.segments()?, ..Self::default() };
        if reader.has(b".eh_frame") {
            found.eh_frame = placed(&reader, ".eh_frame", 0, max)?;
            found.eh_frame_hdr = placed(&reader, ".eh_frame_hdr", found.size(), max)?;
        } else {
            found.find_by_segment(&reader, max)?;
        }
        found.debug_frame = reader.contents_of(".debug_frame", found.size(), max)?;
        Ok(found)
    }

    fn size(&self) -> u64 {
        let tables = self.eh_frame.iter().chain(&self.eh_frame_hdr);
        tables.map(|table| table.bytes.len() as u64).sum()
    }

    /// The tables in the debug file of the object in `file`; none where there is no such file.
    pub fn read_debug(
        file: File,
        shown: &str,
        search: &DebugSearch,
        max: u64,
    ) -> Result<Self, ElfError> {
        let owner = ask(|| file.metadata()).map_err(|error| unread(shown, &error))?.uid();
        let contents = Contents::new(file);
        let object = Reader::new(&contents, shown)?;
        let (id, link) = (object.build_id()?, object.debug_link());
        let held = Arc::default();
        let Some(found) = debug::find(search, id.as_deref(), link.as_ref(), owner, &held).file
        else {
            return Ok(Self::default());
        };
        let shown = printable(found.path.as_os_str().as_encoded_bytes());
        let file = debug::open(search, owner, &found.path);
        let file = file.map_err(|error| unread(&shown, &error))?;
        let debug_frame =
            with_open(file, &shown, |reader| reader.contents_of(".debug_frame", 0, max))?;
        Ok(Self { debug_frame, ..Self::default() })
    }

    /// Finds the tables of an object whose section headers were removed.
    fn find_by_segment(&mut self, reader: &Reader<'_>, max: u64) -> Result<(), ElfError> {
        let headers = reader.segment_headers()?;
        let Some(header) =
            headers.iter().find(|header| header.p_type(ENDIAN) == elf::PT_GNU_EH_FRAME)
        else {
            return Ok(());
        };
        let hdr = PlacedBytes {
            vaddr: header.p_vaddr(ENDIAN),
            bytes: piece(reader, header.p_offset(ENDIAN), header.p_filesz(ENDIAN).min(max))?,
        };
        let Some(&[_, RELATIVE, _, _, a, b, c, d]) = hdr.bytes.first_chunk::<8>() else {
            return Ok(());
        };
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        let vaddr = hdr.vaddr.wrapping_add(4).wrapping_add_signed(distance);
        if let Some((at, size)) = self.segments.iter().find_map(|segment| segment.in_file(vaddr)) {
            let bytes = piece(reader, at, size.min(max - hdr.bytes.len() as u64))?;
            self.eh_frame = Some(PlacedBytes { vaddr, bytes });
            self.eh_frame_hdr = Some(hdr);
        }
        Ok(())
    }
}

fn placed(
    reader: &Reader<'_>,
    name: &str,
    taken: u64,
    max: u64,
) -> Result<Option<PlacedBytes>, ElfError> {
    let Some(section) = reader.section(name.as_bytes()) else { return Ok(None) };
    let bytes = reader.contents_of(name, taken, max)?;
    Ok((!bytes.is_empty()).then(|| PlacedBytes { vaddr: section.sh_addr(ENDIAN), bytes }))
}

fn piece(reader: &Reader<'_>, at: u64, size: u64) -> Result<Vec<u8>, ElfError> {
    reader
        .contents
        .bytes(at, size)
        .map_err(|error| reader.malformed(format_args!("its unwind tables: {error}")))
}
