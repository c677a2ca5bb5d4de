//! Reaching DWARF entries across units and across the file that `dwz` shares.
//!
//! Knows references, names, children and where a member lies; what is looked for is `types`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use gimli::{
    AttributeValue, DebugInfoOffset, DebuggingInformationEntry, EndianSlice, LittleEndian,
    SectionId, UnitHeader, UnitOffset,
};

use super::types::Trouble;

pub(super) type Reader<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Reader<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Reader<'a>>;
type Entry<'a> = DebuggingInformationEntry<Reader<'a>>;

/// Most entries that one search looks at.
const MAX_ENTRIES: u64 = 64 << 20;
/// Longest that one search may take, however the bytes are arranged.
const MAX_TIME: Duration = Duration::from_secs(20);

/// What one search may still spend.
pub(super) struct Budget {
    left: u64,
    deadline: Instant,
}

impl Budget {
    /// A search begins.
    pub(super) fn new() -> Self {
        Self { left: MAX_ENTRIES, deadline: Instant::now() + MAX_TIME }
    }

    /// The next entry is one at which the clock is read: what comes next may take long.
    pub(super) const fn look_at_clock(&mut self) {
        self.left = self.left.saturating_sub(self.left.wrapping_sub(1) % 1024);
    }

    /// One entry is looked at.
    pub(super) fn spend(&mut self) -> Result<(), Trouble> {
        let too_much = || Trouble::Fatal("more debug information than is searched".into());
        self.left = self.left.checked_sub(1).ok_or_else(too_much)?;
        if self.left.is_multiple_of(1024) && Instant::now() > self.deadline {
            return Err(too_much());
        }
        Ok(())
    }
}

/// A place in the debug information: an entry of a unit that [`Units`] keeps.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) unit: usize,
    pub(super) offset: UnitOffset,
}

/// A child of a record: a member, a base class, or something else.
pub(super) struct Child {
    pub(super) at: At,
    pub(super) tag: gimli::DwTag,
    pub(super) name: Option<Vec<u8>>,
    location: Location,
}

#[derive(Clone, Copy)]
enum Location {
    Bytes(u64),
    Bits,
    Computed,
}

impl Child {
    /// Its offset in its record.
    pub(super) fn offset_of(&self) -> Result<u64, Trouble> {
        match self.location {
            Location::Bytes(offset) => Ok(offset),
            Location::Bits => Err(Trouble::Fatal(
                "the member is a bit field: it has no address of its own".into(),
            )),
            Location::Computed => Err(Trouble::Fatal(
                "the member lies in a virtual base: its place is known only while the program runs"
                    .into(),
            )),
        }
    }
}

/// Which file a unit is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    /// The one that is searched.
    Searched,
    /// The one that it shares with other objects.
    Shared,
}

struct Kept<'a> {
    of: Of,
    unit: Unit<'a>,
}

/// A unit is named by its file, its section and where it starts.
type Key = (Of, SectionId, usize);

/// The units that were opened so far, and the way to those that references lead to.
pub(super) struct Units<'d, 'a> {
    dwarf: &'d Dwarf<'a>,
    kept: Vec<Kept<'a>>,
    index: HashMap<Key, usize>,
    /// Headers of `.debug_info` by offset, filled on the first reference into each file.
    headers: HashMap<Of, Vec<UnitHeader<Reader<'a>>>>,
    /// Type units by signature, filled on the first reference to one.
    signatures: Option<HashMap<u64, (UnitHeader<Reader<'a>>, UnitOffset)>>,
}

impl<'d, 'a> Units<'d, 'a> {
    pub(super) fn new(dwarf: &'d Dwarf<'a>) -> Self {
        Self {
            dwarf,
            kept: Vec::new(),
            index: HashMap::new(),
            headers: HashMap::new(),
            signatures: None,
        }
    }

    fn dwarf_of(&self, of: Of) -> Result<&'d Dwarf<'a>, Trouble> {
        match of {
            Of::Searched => Ok(self.dwarf),
            Of::Shared => self.dwarf.sup().ok_or_else(|| {
                Trouble::Fatal("a reference into a missing shared debug file".into())
            }),
        }
    }

    /// Keeps a unit of the searched file.
    pub(super) fn keep(&mut self, unit: Unit<'a>) -> usize {
        self.keep_of(Of::Searched, unit)
    }

    fn keep_of(&mut self, of: Of, unit: Unit<'a>) -> usize {
        let key = (of, unit.header.section(), unit.header.offset().0);
        *self.index.entry(key).or_insert_with(|| {
            self.kept.push(Kept { of, unit });
            self.kept.len() - 1
        })
    }

    fn open(&mut self, of: Of, header: UnitHeader<Reader<'a>>) -> Result<usize, Trouble> {
        if let Some(&found) = self.index.get(&(of, header.section(), header.offset().0)) {
            return Ok(found);
        }
        let unit = self.dwarf_of(of)?.unit(header)?;
        Ok(self.keep_of(of, unit))
    }

    /// The name of `entry` of a unit of the searched file.
    pub(super) fn name(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Option<Vec<u8>> {
        name_of(self.dwarf, unit, entry)
    }

    /// The entry at a place.
    pub(super) fn entry(&self, at: At) -> Result<Entry<'a>, Trouble> {
        Ok(self.kept[at.unit].unit.entry(at.offset)?)
    }

    /// The name of the entry at a place.
    pub(super) fn name_at(&self, at: At) -> Result<Option<Vec<u8>>, Trouble> {
        let Kept { of, unit } = &self.kept[at.unit];
        Ok(name_of(self.dwarf_of(*of)?, unit, &unit.entry(at.offset)?))
    }

    /// The name by which the linker knows the entry at a place, else its own.
    pub(super) fn linkage_name_at(&self, at: At) -> Result<Option<Vec<u8>>, Trouble> {
        let Kept { of, unit } = &self.kept[at.unit];
        let dwarf = self.dwarf_of(*of)?;
        let entry = unit.entry(at.offset)?;
        let linkage = entry
            .attr_value(gimli::DW_AT_linkage_name)
            .and_then(|value| Some(dwarf.attr_string(unit, value).ok()?.slice().to_vec()));
        Ok(linkage.or_else(|| name_of(dwarf, unit, &entry)))
    }

    /// Where the type of a member is.
    pub(super) fn type_of(&mut self, child: &Child) -> Result<Option<At>, Trouble> {
        match self.entry(child.at)?.attr_value(gimli::DW_AT_type) {
            None => Ok(None),
            Some(value) => self.follow(child.at, value).map(Some),
        }
    }

    /// Where a reference that stands at `from` leads to.
    pub(super) fn follow(
        &mut self,
        from: At,
        value: AttributeValue<Reader<'a>>,
    ) -> Result<At, Trouble> {
        match value {
            AttributeValue::UnitRef(offset) => Ok(At { unit: from.unit, offset }),
            AttributeValue::DebugInfoRef(offset) => self.at_offset(self.kept[from.unit].of, offset),
            AttributeValue::DebugInfoRefSup(offset) => self.at_offset(Of::Shared, offset),
            AttributeValue::DebugTypesRef(signature) => self.at_signature(signature.0),
            _ => Err(Trouble::Fatal(
                "damaged debug information: a reference of an unknown form".into(),
            )),
        }
    }

    fn at_offset(&mut self, of: Of, offset: DebugInfoOffset) -> Result<At, Trouble> {
        if !self.headers.contains_key(&of) {
            let mut headers = Vec::new();
            let mut all = self.dwarf_of(of)?.units();
            while let Some(header) = all.next()? {
                headers.push(header);
            }
            self.headers.insert(of, headers);
        }
        let headers = self.headers.get(&of).map(Vec::as_slice).unwrap_or_default();
        let after = headers.partition_point(|header| header.offset().0 <= offset.0);
        let header =
            after.checked_sub(1).and_then(|at| headers.get(at).copied()).ok_or_else(|| {
                Trouble::Fatal("damaged debug information: a reference to nowhere".into())
            })?;
        let inside = UnitOffset(offset.0 - header.offset().0);
        Ok(At { unit: self.open(of, header)?, offset: inside })
    }

    fn at_signature(&mut self, signature: u64) -> Result<At, Trouble> {
        if self.signatures.is_none() {
            let mut all = HashMap::new();
            let mut note = |header: UnitHeader<Reader<'a>>| {
                if let gimli::UnitType::Type { type_signature, type_offset } = header.type_() {
                    all.insert(type_signature.0, (header, type_offset));
                }
            };
            let mut headers = self.dwarf.type_units();
            while let Some(header) = headers.next()? {
                note(header);
            }
            let mut headers = self.dwarf.units();
            while let Some(header) = headers.next()? {
                note(header);
            }
            self.signatures = Some(all);
        }
        let (header, offset) =
            self.signatures.as_ref().and_then(|all| all.get(&signature).copied()).ok_or_else(
                || Trouble::Fatal("damaged debug information: a type unit is missing".into()),
            )?;
        Ok(At { unit: self.open(Of::Searched, header)?, offset })
    }

    /// The children of the entry at a place.
    pub(super) fn children(&self, at: At) -> Result<Vec<Child>, Trouble> {
        let Kept { of, unit } = &self.kept[at.unit];
        let dwarf = self.dwarf_of(*of)?;
        let mut cursor = unit.entries_at_offset(at.offset)?;
        let has_children = cursor.next_dfs()?.is_some_and(Entry::has_children);
        let mut children = Vec::new();
        if !has_children || !cursor.next_entry()? {
            return Ok(children);
        }
        while let Some(entry) = cursor.current() {
            children.push(Child {
                at: At { unit: at.unit, offset: entry.offset() },
                tag: entry.tag(),
                name: name_of(dwarf, unit, entry),
                location: location_of(unit, entry),
            });
            cursor.next_sibling()?;
        }
        Ok(children)
    }
}

fn name_of<'a>(dwarf: &Dwarf<'a>, unit: &Unit<'a>, entry: &Entry<'a>) -> Option<Vec<u8>> {
    let value = entry.attr_value(gimli::DW_AT_name)?;
    Some(dwarf.attr_string(unit, value).ok()?.slice().to_vec())
}

fn location_of<'a>(unit: &Unit<'a>, entry: &Entry<'a>) -> Location {
    if entry.has_attr(gimli::DW_AT_bit_size) || entry.has_attr(gimli::DW_AT_data_bit_offset) {
        return Location::Bits;
    }
    match entry.attr_value(gimli::DW_AT_data_member_location) {
        // Members of unions have none: they all start where the union does.
        None => Location::Bytes(0),
        Some(AttributeValue::Exprloc(expression)) => {
            let mut operations = expression.operations(unit.encoding());
            match (operations.next(), operations.next()) {
                (Ok(Some(gimli::Operation::PlusConstant { value })), Ok(None)) => {
                    Location::Bytes(value)
                }
                _ => Location::Computed,
            }
        }
        Some(value) => value.udata_value().map_or(Location::Computed, Location::Bytes),
    }
}
