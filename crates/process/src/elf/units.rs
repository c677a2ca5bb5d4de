//! Walking DWARF: entries, references between units, and the file that `dwz` shares between objects.
//!
//! Knows no question; `types` and `prototypes` ask, each as a [`Search`]. The bytes are hostile: `gimli` decodes
//! them, and the work of one search is bounded here.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use gimli::{
    AttributeValue, DebugAddrBase, DebugLocListsBase, DebugRngListsBase, DebugStrOffsetsBase,
    DebuggingInformationEntry, DwAt, EndianSlice, LittleEndian, Section as _, SectionId,
    UnitHeader, UnitOffset,
};

pub(super) type Reader<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Reader<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Reader<'a>>;
pub(super) type Entry<'a> = DebuggingInformationEntry<Reader<'a>>;

/// Most entries that one search reads.
const MAX_ENTRIES: u64 = 64 << 20;
/// Longest that one search may take, however the bytes are arranged.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Most bytes of the abbreviations of one unit, which grow about thirty-fold when they are decoded; compilers write
/// some thousand.
const MAX_ABBREVIATIONS: usize = 256 << 10;
/// Most bytes of abbreviations of units that are kept during a search.
const MAX_KEPT: usize = 3 << 20;
/// Most units of one file that references lead through.
const MAX_UNITS: usize = 100_000;
/// Most entries that are noted of one unit, and most children of one entry.
const MAX_NOTED: usize = 1 << 20;
/// Longest name that is examined.
const MAX_TEXT: usize = 16 << 10;
/// Most bytes of names that one search notes.
const MAX_TEXTS: usize = 64 << 20;

/// Why a search ends without an answer: damaged data, or more than is believed.
#[derive(Debug)]
pub(super) struct Trouble(pub(super) String);

impl From<gimli::Error> for Trouble {
    fn from(error: gimli::Error) -> Self {
        damaged(error)
    }
}

fn damaged(what: impl std::fmt::Display) -> Trouble {
    Trouble(format!("damaged debug information: {what}"))
}

/// What one search may still spend.
struct Budget {
    entries: u64,
    deadline: Instant,
    /// Bytes of abbreviations of units that are kept.
    kept: usize,
    /// Bytes of names that are noted.
    texts: usize,
}

impl Budget {
    fn new() -> Self {
        Self {
            entries: MAX_ENTRIES,
            deadline: Instant::now() + MAX_TIME,
            kept: MAX_KEPT,
            texts: MAX_TEXTS,
        }
    }

    /// Pays for a unit that is kept.
    fn keep(&mut self, abbreviations: usize) -> Result<(), Trouble> {
        self.kept = self.kept.checked_sub(abbreviations).ok_or_else(|| {
            Trouble(format!("units with more than {} MiB of abbreviations", MAX_KEPT >> 20))
        })?;
        Ok(())
    }

    /// Pays for a name.
    fn note(&mut self, text: &[u8]) -> Result<(), Trouble> {
        self.texts = self
            .texts
            .checked_sub(text.len())
            .ok_or_else(|| Trouble(format!("names of more than {} MiB", MAX_TEXTS >> 20)))?;
        Ok(())
    }

    /// Pays for one entry.
    fn spend(&mut self) -> Result<(), Trouble> {
        self.entries = self.entries.saturating_sub(1);
        if self.entries.is_multiple_of(1024) { self.check() } else { Ok(()) }
    }

    /// Fails where nothing is left.
    fn check(&self) -> Result<(), Trouble> {
        if self.entries > 0 && Instant::now() <= self.deadline {
            return Ok(());
        }
        Err(Trouble("more debug information than is searched".into()))
    }
}

/// A question to the debug information of an object.
pub(super) trait Search {
    /// What is remembered of an entry until its unit has been walked.
    type Seen;

    /// Looks at an entry: whether its children are visited too, and whether the entry is to be noted.
    fn visit<'a>(
        &mut self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
    ) -> Result<(bool, Option<Self::Seen>), Trouble>;

    /// Takes an entry that `visit` wanted; now references can be followed from it.
    fn note(&mut self, units: &mut Units<'_, '_>, at: At, seen: Self::Seen) -> Result<(), Trouble>;
}

/// Walks all units, first of the object, then of the file that it shares with others.
pub(super) fn walk(dwarf: &Dwarf<'_>, search: &mut impl Search) -> Result<(), Trouble> {
    let mut budget = Budget::new();
    walk_file(dwarf, &mut budget, search)?;
    dwarf.sup().map_or(Ok(()), |shared| walk_file(shared, &mut budget, search))
}

fn walk_file<S: Search>(
    dwarf: &Dwarf<'_>,
    budget: &mut Budget,
    search: &mut S,
) -> Result<(), Trouble> {
    let mut units =
        Units { dwarf, budget, kept: Vec::new(), known: HashMap::new(), indexes: HashMap::new() };
    let mut info = dwarf.units();
    let mut types = dwarf.type_units();
    while let Some(header) = info.next()?.map_or_else(|| types.next(), |header| Ok(Some(header)))? {
        // A unit costs more than an entry.
        units.budget.check()?;
        let (unit, size) = open_unit(dwarf, header)?;
        let mut seen = Vec::new();
        let mut cursor = unit.entries();
        let mut descend = true;
        loop {
            units.budget.spend()?;
            let next = if descend { cursor.next_dfs()? } else { cursor.next_sibling()? };
            let Some(entry) = next else {
                if descend {
                    break;
                }
                // The end of these siblings: continue after their parent.
                descend = true;
                continue;
            };
            let (inside, found) = search.visit(dwarf, &unit, entry)?;
            seen.extend(found.map(|found| (entry.offset(), found)));
            if seen.len() > MAX_NOTED {
                return Err(Trouble(format!(
                    "more than {MAX_NOTED} entries of one unit that match"
                )));
            }
            descend = inside;
        }
        if seen.is_empty() {
            continue;
        }
        let unit = units.keep(Of::Searched, unit, size)?;
        for (offset, found) in seen {
            search.note(&mut units, At { unit, offset }, found)?;
        }
    }
    Ok(())
}

/// A place in the debug information: an entry of a unit that [`Units`] keeps.
#[derive(Clone, Copy)]
pub(super) struct At {
    unit: usize,
    offset: UnitOffset,
}

/// The file of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    /// The one that is searched.
    Searched,
    /// The one that it shares with other objects.
    Shared,
}

/// All units of a file.
#[derive(Default)]
struct Index<'a> {
    /// Headers of `.debug_info`, by offset.
    headers: Vec<UnitHeader<Reader<'a>>>,
    /// Type units by signature, with the place of the type.
    signatures: HashMap<u64, (UnitHeader<Reader<'a>>, UnitOffset)>,
}

impl<'a> Index<'a> {
    fn new(dwarf: &Dwarf<'a>) -> Result<Self, Trouble> {
        let mut index = Self::default();
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            index.headers.push(header);
            index.add_type(header)?;
        }
        let mut units = dwarf.type_units();
        while let Some(header) = units.next()? {
            index.add_type(header)?;
        }
        Ok(index)
    }

    fn add_type(&mut self, header: UnitHeader<Reader<'a>>) -> Result<(), Trouble> {
        if self.headers.len() + self.signatures.len() >= MAX_UNITS {
            return Err(Trouble(format!("more than {MAX_UNITS} units")));
        }
        if let gimli::UnitType::Type { type_signature, type_offset } = header.type_() {
            self.signatures.insert(type_signature.0, (header, type_offset));
        }
        Ok(())
    }
}

/// The units that a search has opened, and the way to those that references lead to.
pub(super) struct Units<'d, 'a> {
    dwarf: &'d Dwarf<'a>,
    budget: &'d mut Budget,
    kept: Vec<(Of, Unit<'a>)>,
    /// Kept units by file, section and offset.
    known: HashMap<(Of, SectionId, usize), usize>,
    /// Filled on the first reference into each file.
    indexes: HashMap<Of, Index<'a>>,
}

impl<'d, 'a> Units<'d, 'a> {
    fn dwarf_of(&self, of: Of) -> Result<&'d Dwarf<'a>, Trouble> {
        match of {
            Of::Searched => Ok(self.dwarf),
            Of::Shared => self
                .dwarf
                .sup()
                .ok_or_else(|| Trouble("a reference into a missing shared debug file".into())),
        }
    }

    /// Keeps a unit with `size` bytes of abbreviations.
    fn keep(&mut self, of: Of, unit: Unit<'a>, size: usize) -> Result<usize, Trouble> {
        let key = (of, unit.header.section(), unit.header.offset().0);
        if let Some(&known) = self.known.get(&key) {
            return Ok(known);
        }
        self.budget.keep(size)?;
        self.kept.push((of, unit));
        self.known.insert(key, self.kept.len() - 1);
        Ok(self.kept.len() - 1)
    }

    fn open(&mut self, of: Of, header: UnitHeader<Reader<'a>>) -> Result<usize, Trouble> {
        if let Some(&found) = self.known.get(&(of, header.section(), header.offset().0)) {
            return Ok(found);
        }
        let (unit, size) = open_unit(self.dwarf_of(of)?, header)?;
        self.keep(of, unit, size)
    }

    /// The entry at a place.
    pub(super) fn entry(&mut self, at: At) -> Result<Entry<'a>, Trouble> {
        self.budget.spend()?;
        Ok(self.kept[at.unit].1.entry(at.offset)?)
    }

    /// The text of an attribute of the entry at a place.
    pub(super) fn text(&mut self, at: At, attribute: DwAt) -> Result<Option<Vec<u8>>, Trouble> {
        let entry = self.entry(at)?;
        let (of, unit) = &self.kept[at.unit];
        let text = text_of(self.dwarf_of(*of)?, unit, &entry, attribute);
        self.budget.note(text.as_deref().unwrap_or_default())?;
        Ok(text)
    }

    /// The place to which an attribute of the entry at a place refers.
    pub(super) fn follow(&mut self, at: At, attribute: DwAt) -> Result<Option<At>, Trouble> {
        let Some(value) = self.entry(at)?.attr_value(attribute) else { return Ok(None) };
        let here = self.kept[at.unit].0;
        match value {
            AttributeValue::UnitRef(offset) => Ok(At { unit: at.unit, offset }),
            AttributeValue::DebugInfoRef(offset) => self.at_offset(here, offset.0),
            AttributeValue::DebugInfoRefSup(offset) => self.at_offset(Of::Shared, offset.0),
            AttributeValue::DebugTypesRef(signature) => {
                let type_unit = self.index(Of::Searched)?.signatures.get(&signature.0).copied();
                let (header, offset) =
                    type_unit.ok_or_else(|| damaged("a type unit is missing"))?;
                Ok(At { unit: self.open(Of::Searched, header)?, offset })
            }
            _ => Err(damaged("a reference of an unknown form")),
        }
        .map(Some)
    }

    fn index(&mut self, of: Of) -> Result<&Index<'a>, Trouble> {
        if !self.indexes.contains_key(&of) {
            let index = Index::new(self.dwarf_of(of)?)?;
            self.indexes.insert(of, index);
        }
        Ok(&self.indexes[&of])
    }

    fn at_offset(&mut self, of: Of, offset: usize) -> Result<At, Trouble> {
        let headers = &self.index(of)?.headers;
        let after = headers.partition_point(|header| header.offset().0 <= offset);
        let header = after.checked_sub(1).and_then(|at| headers.get(at).copied());
        let header = header.ok_or_else(|| damaged("a reference to nowhere"))?;
        let offset = UnitOffset(offset - header.offset().0);
        Ok(At { unit: self.open(of, header)?, offset })
    }

    /// The children of the entry at a place.
    pub(super) fn children(&mut self, at: At) -> Result<Vec<At>, Trouble> {
        let mut cursor = self.kept[at.unit].1.entries_at_offset(at.offset)?;
        let has_children = cursor.next_dfs()?.is_some_and(Entry::has_children);
        let mut children = Vec::new();
        if !has_children || !cursor.next_entry()? {
            return Ok(children);
        }
        while let Some(entry) = cursor.current() {
            self.budget.spend()?;
            children.push(At { unit: at.unit, offset: entry.offset() });
            if children.len() > MAX_NOTED {
                return Err(Trouble(format!("more than {MAX_NOTED} members of one type")));
            }
            cursor.next_sibling()?;
        }
        Ok(children)
    }

    /// Where in its record the member or base class at a place begins, in bytes.
    pub(super) fn member_offset(&mut self, at: At) -> Result<u64, Trouble> {
        let entry = self.entry(at)?;
        if entry.has_attr(gimli::DW_AT_bit_size) || entry.has_attr(gimli::DW_AT_data_bit_offset) {
            return Err(Trouble("the member is a bit field: it has no address of its own".into()));
        }
        let offset = match entry.attr_value(gimli::DW_AT_data_member_location) {
            // Members of unions have none: they all start where the union does.
            None => Some(0),
            Some(AttributeValue::Exprloc(expression)) => {
                let mut operations = expression.operations(self.kept[at.unit].1.encoding());
                match (operations.next(), operations.next()) {
                    (Ok(Some(gimli::Operation::PlusConstant { value })), Ok(None)) => Some(value),
                    _ => None,
                }
            }
            Some(value) => value.udata_value(),
        };
        offset.ok_or_else(|| {
            let what =
                "the member lies in a virtual base: only the running program knows its place";
            Trouble(what.into())
        })
    }
}

/// The text of an attribute of an entry.
pub(super) fn text_of<'a>(
    dwarf: &Dwarf<'a>,
    unit: &Unit<'a>,
    entry: &Entry<'a>,
    attribute: DwAt,
) -> Option<Vec<u8>> {
    let value = entry.attr_value(attribute)?;
    let text = dwarf.attr_string(unit, value).ok()?.slice();
    (text.len() <= MAX_TEXT).then(|| text.to_vec())
}

/// Opens a unit; also says how many bytes of abbreviations it has. `gimli` would decode its lines, too, in memory
/// without limit.
fn open_unit<'a>(
    dwarf: &Dwarf<'a>,
    header: UnitHeader<Reader<'a>>,
) -> Result<(Unit<'a>, usize), Trouble> {
    let table = dwarf.debug_abbrev.reader().slice();
    let table = table.get(header.debug_abbrev_offset().0..).unwrap_or_default();
    let size = abbreviations(&table[..table.len().min(MAX_ABBREVIATIONS)]).ok_or_else(|| {
        Trouble(format!("a unit with more than {} KiB of abbreviations", MAX_ABBREVIATIONS >> 10))
    })?;
    let file_type = dwarf.file_type;
    let encoding = header.encoding();
    let mut unit = Unit {
        abbreviations: Arc::new(header.abbreviations(&dwarf.debug_abbrev)?),
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(encoding, file_type),
        addr_base: DebugAddrBase(0),
        loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, file_type),
        rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, file_type),
        line_program: None,
        dwo_id: None,
        header,
    };
    let (mut strings, mut addresses) = (unit.str_offsets_base, unit.addr_base);
    let mut cursor = unit.entries();
    if let Some(root) = cursor.next_dfs()? {
        for attribute in root.attrs() {
            match attribute.value() {
                AttributeValue::DebugStrOffsetsBase(base) => strings = base,
                AttributeValue::DebugAddrBase(base) => addresses = base,
                _ => {}
            }
        }
    }
    (unit.str_offsets_base, unit.addr_base) = (strings, addresses);
    Ok((unit, size))
}

/// How many bytes the abbreviations of a unit take, from the beginning of `bytes` on; `None`: they do not end there.
fn abbreviations(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let number = |rest: &mut &[u8]| {
        let length = rest.iter().position(|byte| byte & 0x80 == 0)? + 1;
        let (number, after) = rest.split_at(length);
        *rest = after;
        Some(number.iter().rev().fold(0_u64, |value, byte| value << 7 | u64::from(byte & 0x7f)))
    };
    while number(&mut rest)? != 0 {
        // Its tag, and whether it has children.
        number(&mut rest)?;
        rest = rest.get(1..)?;
        loop {
            let (name, form) = (number(&mut rest)?, number(&mut rest)?);
            if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                number(&mut rest)?;
            }
            if (name, form) == (0, 0) {
                break;
            }
        }
    }
    Some(bytes.len() - rest.len())
}

/// Whether a type is a record: it has members.
pub(super) fn is_record(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type | gimli::DW_TAG_class_type
    )
}

/// Whether a type only qualifies another one.
pub(super) fn is_qualifier(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_atomic_type
            | gimli::DW_TAG_restrict_type
    )
}
